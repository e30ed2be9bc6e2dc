#include "job/validate_base.hpp"

#include <fmt/format.h>

#include "catalog/facts.hpp"
#include "job/int8_rules.hpp"
#include "job/names.hpp"

namespace oomplan {
namespace {

/// AutoGPTQ's triton_v2 kernels: what they unpack is fp16.
void check_gptq(const Trainer& t, std::vector<BaseProblem>& out) {
  const QuantisedBase& base = t.lora.base;
  if (t.storage != DType::fp16)
    out.push_back({"precision.storage", fmt::format("'{}'", spelling(t.storage)), "fp16",
                   "GPTQ's kernels that train unpack to fp16: not supported yet with other formats"});
  if (base.bits != 2 && base.bits != 4 && base.bits != 8)
    out.push_back({"lora.base_bits", fmt::format("{}", base.bits), "2, 4 or 8", "the bits that GPTQ's kernels unpack"});
  if (base.double_quant) out.push_back({"lora.base_double_quant", "true", "false", "it is a setting of bitsandbytes"});
  if (base.prepare_kbit) out.push_back({"lora.prepare_kbit", "true", "false", "peft casts nothing of a GPTQ base"});
}

}  // namespace

std::vector<BaseProblem> base_problems(const Trainer& t, EngineKind engine) {
  const QuantisedBase& base = t.lora.base;
  std::vector<BaseProblem> out;
  if (t.lora.dora) {
    const auto refuse = [&](std::string why) { out.push_back({"lora.dora", "true", "false", std::move(why)}); };
    if (t.lora.rank == 0) refuse("it is a form of LoRA: lora.rank");
    if (engine != EngineKind::single && engine != EngineKind::ddp && !shards_by_fsdp2(engine))
      refuse("not supported yet: DoRA on parameters sharded by anything but FSDP2");
    if (t.framework == Framework::agilerl) refuse("AgileRL's fused adapters refuse it");
    if (base.format != BaseFormat::full) refuse("not supported yet: DoRA beside a quantised base");
  }
  check_int8(t, engine, out);
  const std::string format = fmt::format("'{}'", spelling(base.format));
  if (base.format == BaseFormat::full) {
    if (base.prepare_kbit)
      out.push_back({"lora.prepare_kbit", "true", "false, or lora.base: nf4", "it prepares a quantised base"});
    return out;
  }
  const auto refuse = [&](std::string why) { out.push_back({"lora.base", format, "full", std::move(why)}); };
  if (t.lora.rank == 0)
    out.push_back({"lora.rank", "none", "a rank", "a quantised base is frozen: it is trained through adapters"});
  if (base.format == BaseFormat::gptq) check_gptq(t, out);
  if (shards_by_fsdp2(engine)) refuse("not supported yet: a quantised base under FSDP2");
  if (engine == EngineKind::fsdp1 && (t.compute != t.storage || base.prepare_kbit))
    refuse("not supported yet: FSDP1 of a quantised base whose other parameters have another format");
  if (t.layout.tensor > 1) refuse("not supported yet: tensor parallelism of a quantised base");
  if (!base.version.empty() && compare_versions(base.version, "0.42.0") < 0)
    out.push_back(
        {"lora.bitsandbytes", fmt::format("'{}'", base.version), "0.42.0 or later", "not supported yet: older releases"});
  return out;
}

}  // namespace oomplan
