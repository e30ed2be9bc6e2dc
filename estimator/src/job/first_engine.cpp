#include "job/first_engine.hpp"

#include <algorithm>
#include <iterator>

#include <fmt/format.h>

#include "catalog/facts.hpp"
#include "job/kernel_needs.hpp"

namespace oomplan {
namespace {

constexpr std::string_view kFirstWithBoth = "0.8", kFirstWithout = "0.10.2", kLastOfTheFirst = "0.7.3";

bool before(const Server& s, std::string_view release) { return compare_versions(s.version, release) < 0; }

/// What the second engine lacks up to a release, and a setting asks for.
struct Lack {
  std::string_view until;  ///< the release that has it
  bool (*asked)(const Server&, std::string_view sm);
  std::string_view words;
};
constexpr Lack kLacks[] = {
    {kFirstWithout, [](const Server& s, std::string_view) { return s.first_engine; }, "it is asked to"},
    {"0.8.3", [](const Server& s, std::string_view) { return s.lora.slots > 0; }, "adapters"},
    {"0.9.2", [](const Server& s, std::string_view) { return s.weights == DType::fp32; }, "weights in fp32"},
    {kFirstWithout, [](const Server&, std::string_view sm) { return sm.starts_with("sm") && compute_capability(sm) < 80; },
     "a GPU of compute capability below 8.0"},
};

/// vllm/engine/arg_utils.py V1_BACKENDS, 0.8.0 to 0.10.1; the release from which on a name stands there.
struct Backend {
  std::string_view name, since = "0.8";
};
constexpr Backend kSecondKnows[] = {{"FLASH_ATTN_VLLM_V1"},
                                    {"FLASH_ATTN"},
                                    {"PALLAS"},
                                    {"PALLAS_VLLM_V1"},
                                    {"TRITON_ATTN_VLLM_V1"},
                                    {"TRITON_MLA"},
                                    {"FLASHMLA"},
                                    {"FLASHINFER", "0.8.5"},
                                    {"FLASHINFER_VLLM_V1", "0.8.5"},
                                    {"CUTLASS_MLA_VLLM_V1", "0.9.1"},
                                    {"ROCM_AITER_MLA", "0.9"},
                                    {"TORCH_SDPA_VLLM_V1", "0.9.1"},
                                    {"FLEX_ATTENTION", "0.9.1"}};

}  // namespace

bool has_both_engines(std::string_view version) {
  return !version.empty() && compare_versions(version, kFirstWithBoth) >= 0 && compare_versions(version, kFirstWithout) < 0;
}

std::string_view goes_back_for(EngineKind engine, const Server& s, std::string_view sm) {
  if (engine != EngineKind::vllm || !has_both_engines(s.version)) return {};
  for (const Lack& lack : kLacks)
    if (before(s, lack.until) && lack.asked(s, sm)) return lack.words;
  return {};
}

std::string first_engine_remark(EngineKind engine, const Server& s, std::string_view sm) {
  const std::string_view why = goes_back_for(engine, s, sm);
  return why.empty() ? std::string() : fmt::format("vLLM {} runs its first engine (V0): {}", s.version, why);
}

bool runs_first_engine(EngineKind engine, const Server& s, std::string_view sm) {
  if (engine != EngineKind::vllm || s.version.empty()) return false;
  return before(s, kFirstWithBoth) || !goes_back_for(engine, s, sm).empty();
}

std::string facts_version(EngineKind engine, const Server& s, std::string_view sm) {
  return goes_back_for(engine, s, sm).empty() ? s.version : std::string(kLastOfTheFirst);
}

bool asks_for_first_engine(std::string_view use_v1, std::string_view backend, std::string_view version) {
  if (!has_both_engines(version)) return false;
  if (use_v1 == "0") return true;
  const auto known = std::find_if(std::begin(kSecondKnows), std::end(kSecondKnows),
                                  [&](const Backend& b) { return b.name == backend && compare_versions(version, b.since) >= 0; });
  return !backend.empty() && known == std::end(kSecondKnows);
}

}  // namespace oomplan
