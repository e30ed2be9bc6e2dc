// Flags whose value is JSON: what of it memory depends on.
#include <algorithm>
#include <cctype>
#include <sstream>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "catalog/architecture.hpp"
#include "catalog/facts.hpp"
#include "frontends/servers/serve_draft.hpp"
#include "units/enums.hpp"
#include "units/json_depth.hpp"
#include "units/json_text.hpp"

namespace oomplan {
namespace {

using FlagJson = nlohmann::json;

// Fields of CompilationConfig and SpeculativeConfig (vllm/config, 0.8.5, 0.9.2 and August 2026); the engine refuses others.
constexpr const char* kCompilation =
    "backend bs_to_padded_graph_size cache_dir compile_cache_save_format compile_mm_encoder compile_ranges_endpoints "
    "compile_ranges_split_points compile_sizes cudagraph_capture_sizes cudagraph_copy_inputs cudagraph_mm_encoder cudagraph_mode "
    "cudagraph_num_of_warmups cudagraph_specialize_lora custom_ops debug_dump_path dynamic_shapes_config "
    "encoder_cudagraph_max_frames_per_batch encoder_cudagraph_max_vision_items_per_batch encoder_cudagraph_token_budgets "
    "fast_moe_cold_start full_cuda_graph inductor_compile_config inductor_passes ir_enable_torch_wrap level local_cache_dir "
    "max_capture_size max_cudagraph_capture_size mode pass_config splitting_ops static_all_moe_layers use_cudagraph use_inductor "
    "use_inductor_graph_partition";
constexpr const char* kSpeculative =
    "acceptance_method attention_backend code_revision disable_by_batch_size disable_log_stats disable_logprobs "
    "disable_mqa_scorer disable_padded_drafter_batch draft_load_config draft_sample_method draft_tensor_parallel_size "
    "enforce_eager kv_cache_dtype max_model_len method model moe_backend num_speculative_tokens parallel_drafting "
    "posterior_alpha posterior_threshold prompt_lookup_max prompt_lookup_min quantization rejection_sample_method revision "
    "speculative_token_tree suffix_decoding_max_cached_requests suffix_decoding_max_spec_factor suffix_decoding_max_tree_depth "
    "suffix_decoding_min_token_prob use_local_argmax_reduction";

std::vector<std::string> split(const char* text) {
  std::istringstream in(text);
  std::vector<std::string> out;
  for (std::string one; in >> one;) out.push_back(one);
  return out;
}

/// An object, or null after a complaint that says where the text stops to be JSON.
FlagJson object_of(ServeDraft& draft, const Flag& flag) {
  const std::string text = flag.value.value_or("");
  if (const std::string deep = too_deep(text); !deep.empty()) {
    draft.complain(flag.place, deep, "a JSON object such as '{\"key\": 1}'");
    return nullptr;
  }
  try {
    FlagJson out = FlagJson::parse(text);
    if (out.is_object()) return out;
    draft.complain(flag.place, fmt::format("'{}'", text), "a JSON object such as '{\"key\": 1}'");
  } catch (const FlagJson::parse_error& error) {
    draft.complain(flag.place, fmt::format("'{}', which is no JSON from its character {} on", text, error.byte),
                   "a JSON object such as '{\"key\": 1}'");
  }
  return nullptr;
}

bool fields_are_known(ServeDraft& draft, const Flag& flag, const FlagJson& config, const char* fields) {
  const auto known = split(fields);
  bool good = true;
  for (const auto& [key, value] : config.items()) {
    if (std::find(known.begin(), known.end(), key) != known.end()) continue;
    draft.complain(flag.place, fmt::format("an unknown key '{}'", key), "a key of the engine's own configuration",
                   "the engine itself refuses it", nearest(key, known));
    good = false;
  }
  return good;
}

void not_yet(ServeDraft& draft, const Flag& flag, const std::string& key, const FlagJson& value, std::string expected,
             const char* what) {
  draft.complain(flag.place, fmt::format("\"{}\": {}", key, json_text(value, -1)), std::move(expected),
                 fmt::format("not supported yet: {}", what));
}

void graph_mode(ServeDraft& draft, const Flag& flag, const FlagJson& value) {
  const std::string word = value.is_string() ? value.get<std::string>() : json_text(value, -1);
  if (word == "NONE" || word == "0") return draft.set("enforce_eager", "true", flag);
  if (word == "FULL_AND_PIECEWISE" || word == "null") return;
  const std::vector<std::string> modes{"NONE", "PIECEWISE", "FULL", "FULL_DECODE_ONLY", "FULL_AND_PIECEWISE"};
  if (std::find(modes.begin(), modes.end(), word) == modes.end())
    return draft.complain(flag.place, fmt::format("\"cudagraph_mode\": {}", json_text(value, -1)), list_of(modes), {},
                          nearest(word, modes));
  not_yet(draft, flag, "cudagraph_mode", value, "NONE or FULL_AND_PIECEWISE", "some of the graphs only");
}

void capture_sizes(ServeDraft& draft, const Flag& flag, const FlagJson& value) {
  std::int64_t most = 0;
  bool good = value.is_array();
  if (good)
    for (const auto& one : value) {
      good = good && one.is_number_integer() && one.get<std::int64_t>() > 0;
      if (good) most = std::max(most, one.get<std::int64_t>());
    }
  if (!good) return draft.complain(flag.place, json_text(value, -1), "a list of batches, such as [1, 2, 4, 8]");
  if (value.empty()) return draft.set("enforce_eager", "true", flag);
  draft.set("graph_batch", std::to_string(most), flag);
  draft.remark(Note::Level::info, flag.place,
               "graphs are counted for all usual batches up to the largest one: a bound from above");
}

}  // namespace

void check_json(ServeDraft& draft, const Flag& flag) { object_of(draft, flag); }

Modalities read_modalities(ServeDraft& draft, const Flag& flag) {
  Modalities out;
  const std::string text = flag.value.value_or("");
  if (text.find('=') != std::string::npos && text.find('{') == std::string::npos) return out;  // image=1, before 0.10
  const FlagJson config = object_of(draft, flag);
  if (config.is_null()) return out;
  const auto none = [&](const char* key) {
    if (!config.contains(key)) return false;
    const FlagJson& limit = config[key];
    return limit == 0 || (limit.is_object() && limit.contains("count") && limit["count"] == 0);
  };
  out.images = !none("image");
  out.videos = !none("video");
  out.sound = !none("audio");
  return out;
}

void leave_out_towers(Role& role, const Modalities& limits) {
  const Tower& tower = role.architecture->tower;
  const bool hears = tower.audio.layers > 0, images = limits.none_for(tower.kind), sound = hears && !limits.sound;
  if (images && sound == hears) role.server.text_only = true;
  if (role.server.text_only) return;
  role.server.no_images = images;
  role.server.no_sound = sound;
}

void read_compilation(ServeDraft& draft, const Flag& flag) {
  if (flag.value && flag.value->size() == 1 && std::isdigit(static_cast<unsigned char>((*flag.value)[0])) != 0)
    return read_optimization_level(draft, flag);  // a number alone is a level
  const FlagJson config = object_of(draft, flag);
  if (config.is_null() || !fields_are_known(draft, flag, config, kCompilation)) return;
  for (const auto& [key, value] : config.items()) {
    if (key == "cudagraph_mode") {
      graph_mode(draft, flag, value);
    } else if (key == "cudagraph_capture_sizes") {
      capture_sizes(draft, flag, value);
    } else if (key == "max_cudagraph_capture_size" || key == "max_capture_size") {
      if (!value.is_number_integer()) return draft.complain(flag.place, json_text(value, -1), "a batch");
      if (draft.find("max-cudagraph-capture-size") != nullptr)
        draft.complain(flag.place, fmt::format("\"{}\": {}", key, json_text(value, -1)),
                       "--max-cudagraph-capture-size or this key",
                       "the engine itself refuses both (vllm/engine/arg_utils.py create_engine_config, 0.19)");
      draft.set("graph_batch", json_text(value, -1), flag);
    } else if ((key == "mode" || key == "level") && value != 3 && value != "VLLM_COMPILE" && !value.is_null()) {
      not_yet(draft, flag, key, value, "3", "a model that is not compiled");
    } else if (key == "use_cudagraph" && value == false) {
      draft.set("enforce_eager", "true", flag);
    } else if (key == "full_cuda_graph" && value == true) {
      not_yet(draft, flag, key, value, "false", "one graph of a whole step");
    }
  }
}

/// 0: nothing is compiled or captured. 2 and 3 are the engine's own; before 0.12 the number was a level of compilation, and only
/// 3 captured graphs (vllm/config/vllm.py OptimizationLevel; vllm/utils/__init__.py, 0.9.2).
void read_optimization_level(ServeDraft& draft, const Flag& flag) {
  const std::string level = flag.value.value_or("");
  const bool numbered = version_matches(draft.version, ">=0.12");
  if (level == "0" || level == "O0") return draft.set("enforce_eager", "true", flag);
  if (level == "3" || level == "O3" || ((level == "2" || level == "O2") && numbered)) return;
  if (level == "1" || level == "O1" || level == "2" || level == "O2")
    return draft.complain(flag.place, fmt::format("'{}'", level), numbered ? "0, 2 or 3" : "0 or 3",
                          "not supported yet: some of the graphs only");
  draft.complain(flag.place, fmt::format("'{}'", level), "a level from 0 to 3");
}

namespace {

/// vllm/config/speculative.py SpeculativeMethod, 0.19; names that end with _mtp beside.
constexpr const char* kMethods =
    "mtp eagle eagle3 ngram ngram_gpu suffix medusa mlp_speculator dflash draft_model extract_hidden_states";

bool is_method(const std::string& method) {
  const auto known = split(kMethods);
  return std::find(known.begin(), known.end(), method) != known.end();
}

/// Drafts that this program describes, and what it says of the others.
void refuse_method(ServeDraft& draft, const Flag& flag, const std::string& method) {
  if (method != "draft_model" && !is_method(method))
    return draft.complain(flag.place, fmt::format("\"method\": \"{}\"", method),
                          fmt::format("one of {}", fmt::join(split(kMethods), ", ")),
                          "the engine has no such method (vllm/config/speculative.py, 0.19)", nearest(method, split(kMethods)));
  const char* const what = method == "ngram" || method == "ngram_gpu" || method == "suffix"
                               ? "drafts that are looked up in the prompt"
                           : method == "medusa" || method == "mlp_speculator" || method == "dflash"
                               ? "drafts by further heads (Medusa, MLP speculators, DFlash)"
                               : "whole models as drafts";
  draft.complain(flag.place, fmt::format("'{}'", *flag.value),
                 R"({"method": "mtp", ...}, or "eagle" or "eagle3" with a "model", and "num_speculative_tokens")",
                 fmt::format("not supported yet: {}", what));
}

/// The method that vLLM takes where none is said: by the draft's name (vllm/config/speculative.py __post_init__, 0.19).
std::string method_of(const FlagJson& config) {
  const auto text = [&](const char* key) {
    return config.contains(key) && config[key].is_string() ? config[key].get<std::string>() : std::string();
  };
  std::string method = text("method");
  if (!method.empty() && method != "draft_model") return method;
  std::string model = text("model");
  std::transform(model.begin(), model.end(), model.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  if (model == "ngram" || model == "[ngram]") return "ngram";
  return model.find("eagle-") != std::string::npos   ? "eagle"
         : model.find("eagle3") != std::string::npos ? "eagle3"
                                                     : "draft_model";
}

/// Another checkpoint's head: its keys beside method and number.
bool read_head(ServeDraft& draft, const Flag& flag, const FlagJson& config, const std::string& method) {
  if (!config.contains("model") || !config["model"].is_string()) {
    draft.complain(flag.place, fmt::format("'{}'", *flag.value), "a \"model\"", fmt::format("{} drafts with a head", method));
    return false;
  }
  if (config.contains("draft_tensor_parallel_size") && config["draft_tensor_parallel_size"].is_number_integer()) {
    const Flag* const tensor = draft.find("tensor-parallel-size");
    const auto degree = tensor == nullptr ? 1 : count_of(tensor->value.value_or("1")).value_or(1);
    if (config["draft_tensor_parallel_size"].get<std::int64_t>() != degree)
      not_yet(draft, flag, "draft_tensor_parallel_size", config["draft_tensor_parallel_size"], std::to_string(degree),
              "a draft that is divided otherwise than its model");
  }
  for (const char* const key : {"quantization", "speculative_token_tree", "parallel_drafting"})
    if (config.contains(key) && !config[key].is_null() && config[key] != false)
      not_yet(draft, flag, key, config[key], "none", "such drafts");
  draft.set("draft_model", config["model"].get<std::string>(), flag);
  draft.set("draft_method", method, flag);
  return true;
}

}  // namespace

void read_speculative(ServeDraft& draft, const Flag& flag) {
  const FlagJson config = object_of(draft, flag);
  if (config.is_null() || !fields_are_known(draft, flag, config, kSpeculative)) return;
  const std::string method = method_of(config);
  const bool head = method == "eagle" || method == "eagle3";
  if (!head && method != "mtp" && !method.ends_with("_mtp")) return refuse_method(draft, flag, method);
  if (head && !read_head(draft, flag, config, method)) return;
  const auto ahead = config.contains("num_speculative_tokens") ? config["num_speculative_tokens"] : FlagJson(head ? 0 : 1);
  if (!ahead.is_number_integer() || ahead.get<std::int64_t>() < 1)
    return draft.complain(flag.place, fmt::format("\"num_speculative_tokens\": {}", json_text(ahead, -1)),
                          "a whole number above 0");
  draft.set("draft_tokens", json_text(ahead, -1), flag);
}

}  // namespace oomplan
