#include "frontends/oumi/generator.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "frontends/oumi/server.hpp"

namespace oomplan::oumi {
namespace {

using compose::Node;

constexpr std::string_view kNewest = "5.9.0";  ///< pyproject.toml of 0.8 and behind it: below 5.10
constexpr std::int64_t kNewTokens = 1024;      ///< GenerationParams.max_new_tokens

class GeneratorMaker {
 public:
  GeneratorMaker(const GeneratorGiven& given, const Telling& t, OumiSettings& s, NativeText& out, std::vector<Note>& notes)
      : g_(given), t_(t), s_(s), out_(out), notes_(notes) {}

  void run() {
    s_.put("generator.model", t_.text(at("model.model_name")), s_.origin(at("model.model_name")));
    s_.put("generator.engine", "single", s_.by_code("one process, or copies"));
    s_.put("generator.head", evaluates() ? "lm_eval" : "next_token", s_.origin(at("generation")));
    s_.put("generator.transformers", std::string(g_.transformers == "newest" ? kNewest : g_.transformers),
           s_.by_code("pyproject.toml of the release"));
    refuse();
    processes();
    format();
    kernels();
    batch();
    lengths();
  }

 private:
  std::string at(std::string_view path) const { return g_.at + std::string(path); }

  bool evaluates() const { return scores_texts(g_.text); }

  void refuse() {
    if (t_.has(at("model.adapter_model")))
      s_.refuse(at("model.adapter_model"), "adapters beside a model that Transformers runs: their rank stands in their own file");
    if (const Node* words = t_.at(at("model.model_kwargs")); words != nullptr && !words->entries.empty())
      s_.refuse(at("model.model_kwargs"), "arguments of from_pretrained by model_kwargs");
    if (t_.flag(at("model.compile"))) s_.refuse(at("model.compile"), "torch.compile of a model that generates");
    if (t_.whole(at("generation.num_beams"), 1) > 1) s_.refuse(at("generation.num_beams"), "a search over several beams");
  }

  /// device_map "auto" spreads the model over all GPUs of its process (src/oumi/builders/models.py); an evaluation does where
  /// shard_for_eval says so, and has one GPU otherwise. A launcher starts a process for every GPU, each with a copy.
  void processes() {
    const std::string key = at(evaluates() ? "model.shard_for_eval" : "model.device_map");
    const Origin from = s_.origin(key);
    if (g_.text.world.distributed) return s_.put("generator.layout", fmt::format("d{}", g_.gpus), from);
    const std::string map = t_.text(at("model.device_map"), "auto");
    const bool spreads = evaluates() ? t_.flag(key) : map == "auto" || map == "balanced";
    if (!evaluates() && !spreads && !map.starts_with("cuda")) return s_.refuse(key, fmt::format("device_map {}", map));
    s_.put("generator.layout", spreads && g_.gpus > 1 ? fmt::format("p{}", g_.gpus) : "d1", from);
  }

  void format() {
    const std::string path = at("model.torch_dtype_str"), written = t_.text(path, "auto");
    if (written == "auto")
      notes_.push_back(
          {Note::Level::warning, s_.place(path), "auto: taken as bf16; a checkpoint in another format has that one"});
    const std::string format = written == "auto" ? "bf16" : g_.format(written);
    if (format.empty()) return s_.refuse(path, fmt::format("parameters in {}", written));
    s_.put("generator.precision.storage", format, s_.origin(path));
  }

  void kernels() {
    const std::string path = at("model.attn_implementation"), attention = t_.text(path);
    const std::string_view kernels = g_.kernels(attention);
    if (kernels.empty()) return s_.refuse(path, fmt::format("attention by {}", attention));
    s_.put("generator.kernels", std::string(kernels), s_.origin(path));
    if (t_.flag(at("model.enable_liger_kernel")) && !evaluates())
      s_.put("generator.liger", "[rope, rms_norm, swiglu]", s_.origin(at("model.enable_liger_kernel")));
  }

  void batch() {
    const std::string path = at("generation.batch_size");
    const Node* said = t_.at(path);
    const bool automatic = said != nullptr && said->kind == Node::Kind::null;
    if (automatic && evaluates())
      notes_.push_back(
          {Note::Level::info, s_.place(path),
           "lm-evaluation-harness tries 64 texts at once, then half as many until they fit: the least, one, is counted"});
    const std::int64_t sequences = automatic ? 1 : t_.whole(path, 1);
    s_.put("generator.sequences_per_micro_batch", fmt::format("{}", sequences), s_.origin(path));
    // prompts are padded to the longest and carry a mask; texts that are scored carry none
    s_.put("generator.padding_mask", sequences > 1 && !evaluates() ? "true" : "false", s_.origin(path));
  }

  void lengths() {
    const std::int64_t fresh = t_.whole(at("generation.max_new_tokens"), kNewTokens);
    const std::int64_t stated = t_.whole(at("model.model_max_length"), 0), told = g_.beside.sequence_tokens;
    const std::int64_t tokens = told > 0 ? told : evaluates() || stated > fresh ? stated : stated > 0 ? stated + fresh : 0;
    if (tokens <= 0) {
      out_.problems.push_back({{"command line", 0, 0, "--sequence-tokens"},
                               "no length of a prompt with its response",
                               "--sequence-tokens N",
                               {},
                               "no key caps a prompt, and model_max_length is not written"});
      return;
    }
    s_.put("generator.sequence_tokens", fmt::format("{}", tokens), s_.origin(at("model.model_max_length")));
    const bool keeps = !evaluates() && t_.flag(at("generation.use_cache"));
    // lm-evaluation-harness leaves the model's own use_cache, which is on
    s_.put("generator.kv_cache", keeps || evaluates() ? "true" : "false", s_.origin(at("generation.use_cache")));
    // stated without a cache, too: what is advised keeps the task
    if (!evaluates())
      s_.put("prompt_tokens",
             fmt::format("{}", std::clamp<std::int64_t>(tokens - fresh, 1, std::max<std::int64_t>(1, tokens - 2))),
             s_.by_code("model_max_length without max_new_tokens"));
    if (told > 0) return;
    const std::string what =
        evaluates()
            ? fmt::format("texts of {} tokens are counted, the longest that can be scored; those of most tasks are far shorter",
                          tokens)
        : stated > fresh
            ? fmt::format("prompts are taken to have {} tokens with their responses: no key caps a prompt", tokens)
            : fmt::format("prompts are taken to have {} tokens, and responses {} more: no key caps a prompt", stated, fresh);
    notes_.push_back({evaluates() ? Note::Level::warning : Note::Level::info, s_.place(at("model.model_max_length")),
                      what + "; --sequence-tokens says how long yours are"});
  }

  const GeneratorGiven& g_;
  const Telling& t_;
  OumiSettings& s_;
  NativeText& out_;
  std::vector<Note>& notes_;
};

}  // namespace

void put_generator(const GeneratorGiven& given, const Telling& t, OumiSettings& s, NativeText& out, std::vector<Note>& notes) {
  GeneratorMaker(given, t, s, out, notes).run();
}

}  // namespace oomplan::oumi
