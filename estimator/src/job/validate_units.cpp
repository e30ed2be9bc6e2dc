#include "job/validate_units.hpp"

#include <string>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "catalog/architecture.hpp"
#include "catalog/wide_routers.hpp"
#include "job/kernel_sets.hpp"

namespace oomplan {
namespace {

/// Adapters inside of their layer's flat parameter.
void check_joint(const Trainer& t, std::vector<KnobProblem>& out) {
  const auto wants = [&](std::string knob, std::string found, std::string expected, std::string why) {
    out.push_back({std::move(knob), std::move(found), std::move(expected), std::move(why)});
  };
  if (t.lora.rank == 0) return wants("lora.own_units", "false", "true", "there are no adapters");
  if (!t.use_orig_params)
    wants("use_orig_params", "false", "true",
          "a flat parameter of trained and frozen parts needs it: FSDP1 refuses it otherwise");
  if (t.lora.format != AdapterFormat::storage && t.storage != DType::fp32)
    wants("lora.format", "fp32", "storage", "a flat parameter has one format");
  if (t.lora.base.format != BaseFormat::full)
    wants("lora.own_units", "false", "true", "not supported yet: packed matrices in a flat parameter that is trained");
}

/// torch/distributed/fsdp/_runtime_utils.py, 2.13: frozen units alone hang their hook on the checkpoint's input.
void check_checkpointed_units(const Trainer& t, std::vector<KnobProblem>& out) {
  const auto refuse = [&](std::string why) { out.push_back({"checkpoint_units", "true", "false", std::move(why)}); };
  if (t.recompute != Recompute::full || !t.reentrant)
    return refuse("not supported yet: units inside of other checkpoints than reentrant ones (recompute: full, reentrant: true)");
  if (t.lora.rank > 0 && !t.lora.own_units)
    refuse("not supported yet: units of trained and frozen parameters inside of checkpoints");
}

/// What the next module cannot take, and models that were not executed.
void check_output(const Trainer& t, EngineKind engine, std::vector<KnobProblem>& out) {
  if (!t.output || !shards_by_fsdp2(engine)) return;
  const auto refuse = [&](std::string expected, std::string why) {
    out.push_back({"precision.output", std::string(name(*t.output)), std::move(expected), std::move(why)});
  };
  if (!of_transformers(t.kernels)) return refuse("none", "not supported yet: output_dtype beyond transformers' models");
  if (t.vision.images > 0) return refuse("none", "not supported yet: output_dtype beside a vision tower");
  if (*t.output == t.compute) return;
  if (!t.cast_parameters || !t.cast_inputs)
    refuse("none, or precision.compute", "the next layer multiplies it by matrices of another format, and casts no arguments");
  else if (!t.wrap_head)
    refuse("none, or precision.compute", "the output layer is no unit, and multiplies it by a matrix of another format");
}

/// A policy that leaves a format unnamed has none of its own.
void check_policy(const Trainer& t, EngineKind engine, std::vector<KnobProblem>& out) {
  const auto named = [&](std::string knob, std::string why) {
    out.push_back({std::move(knob), "false", "true", std::move(why)});
  };
  if (!t.cast_parameters && t.compute != t.storage)
    named("precision.cast_parameters", "without a param_dtype FSDP computes in the stored format: precision.compute is another");
  if (!t.cast_gradients && t.reduce != t.compute)
    named("precision.cast_gradients",
          "without a reduce_dtype FSDP reduces in the format of the gradients: precision.reduce is another");
  if (!t.cast_parameters && t.lora.base.format != BaseFormat::full)
    named("precision.cast_parameters", "not supported yet: packed matrices under a policy without a param_dtype");
  check_output(t, engine, out);
  if (engine != EngineKind::archon) return;
  for (const auto& [knob, given] :
       {std::pair{"precision.cast_parameters", t.cast_parameters}, {"precision.cast_inputs", t.cast_inputs}})
    if (!given) named(knob, "Archon's policy has it");
}

}  // namespace

std::vector<KnobProblem> mixed_unit_problems(const Role& role) {
  std::vector<KnobProblem> out;
  const Trainer& t = role.trainer;
  const bool flat = role.engine == EngineKind::fsdp1, adapters = t.lora.rank > 0;
  if (role.architecture == nullptr || !of_transformers(t.kernels) || (!flat && !shards_by_fsdp2(role.engine))) return out;
  const WideRouter* router = wide_router(*role.architecture, t.transformers_version);
  if (router == nullptr) return out;
  // torch/distributed/fsdp, 2.13: _flat_param.py _validate_tensors_to_flatten, _fully_shard/_fsdp_param_group.py
  // _init_mp_dtypes, which looks at trained parameters alone
  if (t.storage != DType::fp32 && (flat || !adapters))
    out.push_back(
        {"precision.storage", std::string(name(t.storage)), "fp32",
         fmt::format("{} refuses it: the routers of '{}' are made in fp32, and the parameters of a unit must have one "
                     "format ('{}')",
                     flat ? "FSDP1" : "FSDP2", router->family,
                     flat ? "Must flatten tensors with uniform dtype" : "FSDP expects uniform original parameter dtype")});
  if (flat && !adapters && router->frozen_part && !t.use_orig_params)
    out.push_back(
        {"use_orig_params", "false", "true",
         fmt::format("FSDP1 refuses it: the routers of '{}' have a parameter that is not trained ('Must flatten tensors "
                     "with uniform `requires_grad` when `use_orig_params=False`')",
                     router->family)});
  return out;
}

std::vector<KnobProblem> unit_problems(const Trainer& t, EngineKind engine) {
  std::vector<KnobProblem> out;
  if (engine == EngineKind::fsdp1 || shards_by_fsdp2(engine)) check_policy(t, engine, out);
  if (engine == EngineKind::fsdp1) {
    if (!t.lora.own_units) check_joint(t, out);
    if (t.checkpoint_units) check_checkpointed_units(t, out);
  }
  if (!t.lora.base.casts_heads) return out;
  if (!t.lora.base.prepare_kbit)
    out.push_back({"lora.casts_heads", "true", "false, or lora.prepare_kbit: true", "it casts back what was prepared"});
  if (!t.autocast)
    out.push_back({"lora.casts_heads", "true", "false, or autocast: true", "TRL casts where training is under bf16 autocast"});
  return out;
}

}  // namespace oomplan
