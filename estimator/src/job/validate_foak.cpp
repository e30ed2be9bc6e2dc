#include "job/validate_foak.hpp"

#include <algorithm>
#include <array>
#include <string_view>

#include "job/kernel_sets.hpp"

namespace oomplan {
namespace {

/// How many of the modules have adapters; no targets at all are every linear layer.
template <std::size_t N>
std::size_t adapted(const Lora& lora, const std::array<std::string_view, N>& modules) {
  if (lora.targets.empty()) return N;
  return static_cast<std::size_t>(std::count_if(modules.begin(), modules.end(), [&](std::string_view module) {
    return std::find(lora.targets.begin(), lora.targets.end(), module) != lora.targets.end();
  }));
}

void check_lora(const Trainer& t, EngineKind engine, std::vector<BaseProblem>& out) {
  const Lora& lora = t.lora;
  const auto refuse = [&](std::string expected, std::string why) {
    out.push_back({"foak", "lora", std::move(expected), std::move(why)});
  };
  const bool packed = lora.base.format == BaseFormat::nf4 || lora.base.format == BaseFormat::gptq;
  if (lora.rank == 0 || !packed) refuse("lora.base: nf4 or gptq", "its fused adapters stand beside a quantised base alone");
  if (lora.base.format == BaseFormat::nf4 && !lora.base.double_quant)
    refuse("lora.base_double_quant: true", "its fused adapters unpack nested scales");
  if (!t.autocast) refuse("autocast: true", "its fused adapters ask for mixed precision");
  if (lora.base.prepare_kbit) refuse("lora.prepare_kbit: false", "it prepares a base by itself, which casts nothing");
  const std::size_t three = adapted(lora, std::array<std::string_view, 3>{"q_proj", "k_proj", "v_proj"});
  if (three != 0 && three != 3)
    refuse("q_proj, k_proj and v_proj together", "its fused adapters do all three projections in one function");
  if (lora.rank > 0 && three + adapted(lora, std::array<std::string_view, 1>{"o_proj"}) == 0)
    refuse("adapters of attention", "its fused adapters do attention's projections");
  if (adapted(lora, std::array<std::string_view, 3>{"gate_proj", "up_proj", "down_proj"}) == 3)
    refuse("adapters of attention alone", "not supported yet: its fused feed-forward block, whose backward pass fails");
  if (engine == EngineKind::fsdp1 && lora.format != AdapterFormat::fp32)
    refuse("lora.format: fp32", "not supported yet: its fused adapters, which FSDP1 ignores, in another format");
}

}  // namespace

std::vector<BaseProblem> foak_problems(const Trainer& t, EngineKind engine) {
  std::vector<BaseProblem> out;
  if (!t.foak.rope && !t.foak.rms_norm && !t.foak.lora) return out;
  if (engine != EngineKind::single && engine != EngineKind::fsdp1)
    out.push_back({"foak", "its operators", "[]", "not supported yet: fms-acceleration's operators beyond one device and FSDP1"});
  if (!of_transformers(t.kernels))
    out.push_back({"foak", "its operators", "[]", "they stand in the place of those of transformers' models: kernels: hf_flash"});
  if (t.loop.of_framework)
    out.push_back({"foak", "its operators", "[]", "fms-acceleration runs the Trainer of transformers: framework: torch"});
  if ((t.foak.rope && t.liger.rope) || (t.foak.rms_norm && t.liger.rms_norm))
    out.push_back({"foak", "an operator that liger has too", "one of them", "a module is patched once"});
  if (t.foak.lora) check_lora(t, engine, out);
  return out;
}

}  // namespace oomplan
