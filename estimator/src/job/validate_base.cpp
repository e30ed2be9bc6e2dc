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

/// What was executed of a base in 4 bits under FSDP2: fully_shard of layers with bitsandbytes' modules and peft's adapters.
void check_fsdp2(const Trainer& t, std::vector<BaseProblem>& out) {
  const QuantisedBase& base = t.lora.base;
  const auto refuse = [&](std::string knob, std::string was, std::string expected, std::string why) {
    out.push_back({std::move(knob), std::move(was), std::move(expected), std::move(why)});
  };
  const std::string format = fmt::format("'{}'", spelling(base.format));
  if (base.format != BaseFormat::nf4 && base.format != BaseFormat::fp4)
    return refuse("lora.base", format, "full, nf4 or fp4",
                  "not supported yet: a base in other formats than bitsandbytes' 4 bits under FSDP2");
  const bool ours = t.kernels == Kernels::hf_flash || t.kernels == Kernels::hf_sdpa || t.kernels == Kernels::hf_eager;
  if (t.loop.of_framework || !ours)
    refuse("lora.base", format, "full",
           "not supported yet: a quantised base under FSDP2 beside other models than transformers', or under RL");
  if (t.storage != t.compute || t.compute == DType::fp32)
    refuse("precision.storage", fmt::format("'{}'", spelling(t.storage)), "16 bits, as precision.compute",
           "FSDP2 casts what is stored in another format, and packed bytes bear no cast");
  if (!base.version.empty() && compare_versions(base.version, "0.50.0") < 0)
    refuse("lora.bitsandbytes", fmt::format("'{}'", base.version), "0.50.0 or later",
           "not supported yet: older releases under FSDP2");
  if (t.reference != ReferencePass::none)
    refuse("reference", "a reference", "none", "not supported yet: a reference's forward pass over a quantised base under FSDP2");
  if (t.cpu_offload_policy)
    refuse("cpu_offload_policy", "true", "false", "not supported yet: packed matrices that FSDP2 keeps on the host");
  if (base.casts_heads) refuse("lora.casts_heads", "true", "false", "TRL casts nothing of a quantised base that is sharded");
}

}  // namespace

std::vector<BaseProblem> base_problems(const Trainer& t, EngineKind engine) {
  const QuantisedBase& base = t.lora.base;
  std::vector<BaseProblem> out;
  if (t.lora.dora) {
    const auto refuse = [&](std::string why) { out.push_back({"lora.dora", "true", "false", std::move(why)}); };
    if (t.lora.rank == 0) refuse("it is a form of LoRA: lora.rank");
    if (engine == EngineKind::fsdp1 && t.lora.own_units)
      out.push_back({"lora.own_units", "true", "false",
                     "peft's DoRA calls an adapter twice and asks for the shape of its matrix, which fails on adapters that are "
                     "units of their own"});
    if (engine == EngineKind::megatron) refuse("not supported yet: DoRA under this engine");
    if (engine == EngineKind::deepspeed && t.zero.stage == 3 && t.recompute != Recompute::none)
      refuse("not supported yet: DoRA under ZeRO stage 3 beside recomputation: zero.stage 1 or 2, or recompute: none");
    if (base.format != BaseFormat::full) refuse("not supported yet: DoRA beside a quantised base");
  }
  check_int8(t, engine, out);
  const bool in_4_bits = base.format == BaseFormat::nf4 || base.format == BaseFormat::fp4;
  if (base.whole && (!in_4_bits || !shards_by_fsdp2(engine)))
    out.push_back({"lora.base_whole", "true", "false", "it is a setting of a base in 4 bits under FSDP2"});
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
  if (shards_by_fsdp2(engine)) check_fsdp2(t, out);
  if (engine == EngineKind::fsdp1 && (t.compute != t.storage || base.prepare_kbit))
    refuse("not supported yet: FSDP1 of a quantised base whose other parameters have another format");
  if (t.layout.tensor > 1) refuse("not supported yet: tensor parallelism of a quantised base");
  if (!base.version.empty() && compare_versions(base.version, "0.42.0") < 0)
    out.push_back(
        {"lora.bitsandbytes", fmt::format("'{}'", base.version), "0.42.0 or later", "not supported yet: older releases"});
  return out;
}

}  // namespace oomplan
