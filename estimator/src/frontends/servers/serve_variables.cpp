// Variables in front of a server's command that memory depends on.
#include <array>
#include <cstdint>
#include <string_view>

#include <fmt/format.h>

#include "catalog/facts.hpp"
#include "frontends/servers/serve_draft.hpp"
#include "job/first_engine.hpp"
#include "units/enums.hpp"

namespace oomplan {
namespace {

enum class VariableMeans : std::uint8_t {
  asked_later,  ///< by check_together
  nothing,      ///< memory does not depend on it
  not_yet,      ///< refused unless it has the value of `usual`
  engine,       ///< it may ask for vLLM's first engine where a release has both, else as not_yet
  bounds,       ///< memory depends on it, and this is not described: told
};

struct VariableRow {
  std::string_view name;
  VariableMeans means;
  std::string_view usual;     ///< the engine's own value; "" none
  std::string_view versions;  ///< for which `usual` is the engine's own
  std::string_view what;
};

using V = VariableMeans;

// vllm/envs.py, 0.9.2 and August 2026; sglang/srt/environ.py, 0.5.10 and 0.5.18.
constexpr VariableRow kVariables[] = {
    {"CUDA_VISIBLE_DEVICES", V::asked_later, "", "", ""},
    {"VLLM_ALL2ALL_BACKEND", V::asked_later, "", "", ""},
    {"VLLM_ALLOW_LONG_MAX_MODEL_LEN", V::asked_later, "", "", ""},
    {"SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN", V::asked_later, "", "", ""},
    {"VLLM_USE_V1", V::not_yet, "0", "<0.8", "the second engine in a release that tries it out; name a newer release"},
    {"VLLM_USE_V1", V::engine, "1", ">=0.8", "the first engine in a release that lacks it, or where it is not described"},
    {"VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS", V::not_yet, "0", "<0.21", "graphs inside of the share of the card"},
    {"VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS", V::not_yet, "1", ">=0.21", "graphs outside of the share of the card"},
    {"VLLM_PP_LAYER_PARTITION", V::not_yet, "", "", "stages of stated numbers of layers"},
    {"VLLM_FLASHINFER_WORKSPACE_BUFFER_SIZE", V::bounds, "", "", ""},
    {"VLLM_FUSED_MOE_CHUNK_SIZE", V::bounds, "", "", ""},
    {"VLLM_USE_V2_MODEL_RUNNER", V::bounds, "0", "", ""},
    {"VLLM_ENABLE_FUSED_MOE_ACTIVATION_CHUNKING", V::bounds, "", "", ""},
    {"SGLANG_ENABLE_POST_CAPTURE_KV_SIZING", V::not_yet, "0", "", "a pool that is sized behind the graphs"},
    {"SGLANG_MEMORY_SAVER_CUDA_GRAPH", V::not_yet, "0", "", "graphs that are given back when the server sleeps"},
    {"SGLANG_SYMM_MEM_PREALLOC_GB_SIZE", V::bounds, "", "", ""},
    {"SGLANG_ENABLE_LOGITS_PROCESSER_CHUNK", V::bounds, "", "", ""},
    {"PYTORCH_CUDA_ALLOC_CONF", V::nothing, "", "", ""},
    {"PYTORCH_ALLOC_CONF", V::nothing, "", "", ""},
    {"VLLM_ATTENTION_BACKEND", V::nothing, "", "", ""},
    {"VLLM_ATTENTION_BACKEND", V::engine, "", ">=0.8,<0.10.2", ""},
    {"VLLM_WORKER_MULTIPROC_METHOD", V::nothing, "", "", ""},
    {"VLLM_LOGGING_LEVEL", V::nothing, "", "", ""},
    {"VLLM_API_KEY", V::nothing, "", "", ""},
    {"VLLM_USE_MODELSCOPE", V::nothing, "", "", ""},
    {"SGLANG_USE_MODELSCOPE", V::nothing, "", "", ""},
};

std::string switch_value(std::string_view value) {
  if (value == "true" || value == "True" || value == "TRUE") return "1";
  if (value == "false" || value == "False" || value == "FALSE") return "0";
  return std::string(value);
}

/// A variable of one name at a time: what the other one says is heard when its turn comes.
void choose_engine(ServeDraft& draft, const Word& word, const VariableRow& row, const std::string& value) {
  const bool by_number = row.name == "VLLM_USE_V1";
  if (asks_for_first_engine(by_number ? value : "", by_number ? "" : word.text, draft.version))
    draft.settings["first_engine"] = {"server.first_engine", "true", {Origin::Kind::override_, word.place, {}, {}}};
  else if (by_number && value != row.usual)
    draft.complain(word.place, fmt::format("'{}'", word.text), std::string(row.usual),
                   fmt::format("not supported yet: {}", row.what));
}

void understand(ServeDraft& draft, const Word& word, const VariableRow& row) {
  const std::string value = switch_value(word.text);
  const bool usual = !row.usual.empty() && value == row.usual;
  switch (row.means) {
    case V::not_yet:
      if (!usual)
        draft.complain(word.place, fmt::format("'{}'", word.text), row.usual.empty() ? "none" : std::string(row.usual),
                       fmt::format("not supported yet: {}", row.what));
      return;
    case V::bounds:
      if (!usual) draft.remark(Note::Level::warning, word.place, "memory depends on it, but how is not described: not looked at");
      return;
    case V::engine:
      return choose_engine(draft, word, row, value);
    case V::asked_later:
    case V::nothing:
      return;
  }
}

}  // namespace

void read_variables(ServeDraft& draft) {
  for (const auto& [name, word] : draft.variables) {
    const VariableRow* found = nullptr;
    std::vector<std::string> names;
    for (const VariableRow& row : kVariables) {
      names.emplace_back(row.name);
      if (row.name == name && (row.versions.empty() || version_matches(draft.version, row.versions))) found = &row;
    }
    if (found != nullptr) {
      understand(draft, word, *found);
    } else if (name.starts_with("VLLM_") || name.starts_with("SGLANG_")) {
      const std::string near = nearest(name, names);
      draft.remark(
          Note::Level::info, word.place,
          "not described: taken as without effect on memory" + (near.empty() ? "" : fmt::format("; did you mean {}?", near)));
    }
  }
}

}  // namespace oomplan
