#include "frontends/oumi/server.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

namespace oomplan::oumi {
namespace {

using compose::Node;

constexpr const char* kEngineCode = "src/oumi/inference/vllm_inference_engine.py";

/// vllm/config/lora.py MaxLoRARanks, August 2026.
constexpr std::array<std::int64_t, 9> kRanks{1, 8, 16, 32, 64, 128, 256, 320, 512};

bool truthy(const Node& n) {
  if (n.kind == Node::Kind::boolean) return n.boolean;
  return n.kind == Node::Kind::integer ? n.integer != 0 : n.kind != Node::Kind::null;
}

class ServerMaker {
 public:
  ServerMaker(const ServerGiven& given, const Telling& t, OumiSettings& s, NativeText& out, std::vector<Note>& notes)
      : g_(given), t_(t), s_(s), out_(out), notes_(notes) {}

  void run() {
    if (scores_texts(g_.text)) return s_.refuse(g_.key, "log-probs of whole texts by vLLM, which lm-evaluation-harness asks for");
    s_.put("server.model", t_.text(at("model.model_name")), s_.origin(at("model.model_name")));
    s_.put("server.engine", fmt::format("vllm {}", g_.vllm), s_.origin(g_.key));
    s_.put("server.layout", fmt::format("t{}", g_.gpus), s_.by_code(fmt::format("{}: all visible GPUs", kEngineCode)));
    s_.put("server.gpu_memory_utilization", "0.9", s_.by_code(kEngineCode));
    s_.put("server.enforce_eager", "true", s_.by_code(kEngineCode));
    const std::string longest = at("model.model_max_length");
    if (t_.has(longest)) s_.put("server.max_model_len", fmt::format("{}", t_.whole(longest, 0)), s_.origin(longest));
    if (const std::string format = t_.text(at("model.torch_dtype_str"));
        format == "float32" || format == "float" || format == "f32")
      s_.put("server.weights", "fp32", s_.origin(at("model.torch_dtype_str")));
    words();
    adapters();
  }

 private:
  std::string at(std::string_view path) const { return g_.at + std::string(path); }

  /// What Oumi hands on of model_kwargs. The rest reaches nobody under this engine.
  void words() {
    const Node* all = t_.at(at("model.model_kwargs"));
    if (all == nullptr) return;
    for (const auto& entry : all->entries) {
      const std::string key = at("model.model_kwargs." + entry.key);
      if (entry.key == "load_in_4bit" || entry.key == "load_in_8bit") {
        // both are vLLM's 4 bits: nothing says which
        if (truthy(entry.value)) s_.put("server.online_quantization", "bitsandbytes", s_.origin(key));
      } else if (entry.key == "filename" && entry.value.text.ends_with(".gguf")) {
        s_.refuse(key, "a GGUF file, of which every tensor has a format of its own");
      } else if (entry.key == "language_model_only" && hands_on()) {
        s_.put("server.text_only", truthy(entry.value) ? "true" : "false", s_.origin(key));
      } else if (entry.key == "hf_config_path" && hands_on()) {
        s_.refuse(key, "a configuration that lies elsewhere than the model");
      } else if (entry.key != "quantization_config") {  // of MXFP4, which the checkpoint itself says
        notes_.push_back({Note::Level::info, s_.place(key), "Oumi does not hand it to vLLM: it changes nothing"});
      }
    }
  }
  bool hands_on() const { return g_.text.release >= *find_release("0.8"); }

  /// vLLM makes room for the rank that the adapter's own file states (src/oumi/utils/peft_utils.py get_lora_rank).
  void adapters() {
    const std::string key = at("model.adapter_model");
    if (!t_.has(key)) return;
    const std::string file = t_.text(key) + "/adapter_config.json";
    std::optional<std::string> text;
    if (g_.beside.open) text = g_.beside.open(file);
    const auto config = nlohmann::json::parse(text.value_or(""), nullptr, false);
    const bool states = config.is_object() && config.contains("r") && config["r"].is_number_integer();
    if (!states)
      return missing(key, "a folder beside the file, with an adapter_config.json that states r", "Oumi reads the rank there");
    const auto rank = config["r"].get<std::int64_t>();
    if (std::find(kRanks.begin(), kRanks.end(), rank) == kRanks.end())
      return missing(key, fmt::format("adapters of a rank of {}", fmt::join(kRanks, ", ")),
                     fmt::format("r is {} there, and vLLM takes no other (vllm/config/lora.py MaxLoRARanks)", rank));
    s_.put("server.lora.slots", "1", s_.origin(key));
    s_.put("server.lora.rank", fmt::format("{}", rank), s_.origin(key));
  }
  void missing(std::string_view key, std::string expected, std::string why) {
    const Node* n = t_.at(key);
    out_.problems.push_back({s_.place(key), n == nullptr ? "" : compose::describe(*n), std::move(expected), {}, std::move(why)});
  }

  const ServerGiven& g_;
  const Telling& t_;
  OumiSettings& s_;
  NativeText& out_;
  std::vector<Note>& notes_;
};

}  // namespace

void put_server(const ServerGiven& given, const Telling& t, OumiSettings& s, NativeText& out, std::vector<Note>& notes) {
  ServerMaker(given, t, s, out, notes).run();
}

bool scores_texts(const OumiText& text) {
  const Node* tasks = text.kind == FileKind::evaluation ? text.root.at("tasks") : nullptr;
  return tasks != nullptr && std::any_of(tasks->items.begin(), tasks->items.end(), [](const Node& task) {
           const Node* backend = task.at("evaluation_backend");
           return backend != nullptr && backend->text == "lm_harness";
         });
}

}  // namespace oomplan::oumi
