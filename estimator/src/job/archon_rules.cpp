#include "job/archon_rules.hpp"

#include <algorithm>

#include "catalog/facts.hpp"

namespace oomplan {
namespace {

/// areal/experimental/engine/archon_engine.py: parameters, gathered ones, gradients and states of the optimizer have one format
/// (`dtype`), reductions run in fp32.
void check_formats(const Trainer& t, std::vector<Clash>& out) {
  if (t.compute != t.storage)
    out.push_back({"precision.compute", "as precision.storage", "Archon stores parameters in the format that it computes in"});
  if (t.storage != DType::bf16)
    out.push_back({"precision.storage", "bf16", "not supported yet: Archon in another format than bf16"});
  if (t.reduce != DType::fp32) out.push_back({"precision.reduce", "fp32", "Archon reduces in fp32 whatever is configured"});
}

/// apply_fsdp of areal/experimental/models/archon/*/infra/parallelize.py.
void check_units(const Trainer& t, std::vector<Clash>& out) {
  constexpr std::string_view kWhy = "Archon's units are the embedding, each block, and norm with output layer";
  if (!t.wrap_embedding) out.push_back({"wrap_embedding", "true", std::string(kWhy)});
  if (!t.wrap_head) out.push_back({"wrap_head", "true", std::string(kWhy)});
  if (!t.wrap_norm) out.push_back({"wrap_norm", "true", std::string(kWhy)});
  if (t.replicas > 1) out.push_back({"replicas", "1", "Archon has one shard group"});
  if (t.reshard_ranks > 0) out.push_back({"reshard_ranks", "auto", "Archon reshards over all ranks or not at all"});
  if (t.forward_prefetch) out.push_back({"forward_prefetch", "false", "Archon prefetches experts alone"});
  if (!t.gradient_sync_every_micro_batch)
    out.push_back({"gradient_sync_every_micro_batch", "true", "Archon reduces gradients with every micro-batch"});
}

/// A block with experts is known where the model is (layers/archon.cpp).
void check_compile(const Trainer& t, std::vector<Clash>& out) {
  if (!t.compile) return;
  if (t.layout.tensor > 1)
    out.push_back({"compile", "false", "not supported yet: torch.compile of Archon's blocks under tensor parallelism"});
  if (t.layout.context > 1)
    out.push_back({"compile", "false", "not supported yet: torch.compile of Archon's blocks whose ranks share a sequence (c)"});
  if (t.tree_training)
    out.push_back({"compile", "false", "not supported yet: torch.compile of Archon's blocks with packed trees"});
  if (t.float8 != Float8::none)
    out.push_back({"compile", "false", "AReaL turns torch.compile off for Archon in 8 bits (archon_utils.py)"});
}

void check_rest(const Trainer& t, std::vector<Clash>& out) {
  if (t.optimizer != OptimizerKind::adamw && t.optimizer != OptimizerKind::sgd)
    out.push_back({"optimizer", "adamw or sgd", "Archon has torch's AdamW and SGD (archon_utils.py: create_optimizer)"});
  if (t.float8 != Float8::none && t.float8 != Float8::blockwise)
    out.push_back({"float8", "none or blockwise", "Archon has blocks of 128 alone (archon/fp8.py)"});
  if (t.float8 == Float8::blockwise && t.layout.tensor > 1)
    out.push_back({"float8", "none", "not supported yet: Archon in 8 bits under tensor parallelism"});
  if (t.float8 == Float8::blockwise && (t.tokens_per_micro_batch / std::max<std::int64_t>(1, t.layout.context)) % 128 != 0)
    out.push_back({"tokens_per_micro_batch", "a multiple of 128 tokens for each rank",
                   "not supported yet: products in 8 bits whose rows are padded to blocks of 128"});
  if (t.tree_training && (t.layout.tensor > 1 || t.layout.context > 1))
    out.push_back({"tree_training", "false", "not supported yet: trees whose ranks share a sequence (t or c above 1)"});
  if (t.tree_training && t.head == LossHead::value)
    out.push_back({"tree_training", "false", "not supported yet: values of packed trees"});
  if (t.tree_training && t.tokens_per_micro_batch % 128 != 0)
    out.push_back(
        {"tokens_per_micro_batch", "a multiple of 128 tokens", "AReaL packs trees in blocks of 128 (tree_attn/tree.py)"});
  if (t.head != LossHead::areal_compiled && t.head != LossHead::areal_eager && t.head != LossHead::value)
    out.push_back({"head", "areal_compiled", "Archon computes AReaL's log-probs"});
  if (t.lora.rank > 0) out.push_back({"lora.rank", "none", "Archon has no LoRA"});
  check_compile(t, out);
  if (t.cpu_offload_policy)
    out.push_back({"cpu_offload_policy", "false", "not supported yet: Archon with its parameters on the host (offload_params)"});
  if (t.liger.rope || t.liger.rms_norm || t.liger.swiglu) out.push_back({"liger", "[]", "Archon has operators of its own"});
  if (t.autocast) out.push_back({"autocast", "false", "Archon computes without autocast"});
  if (t.padding_mask) out.push_back({"padding_mask", "false", "Archon packs its sequences"});
  if (t.sequences_per_micro_batch > 0) out.push_back({"sequences_per_micro_batch", "auto", "Archon packs its sequences"});
  if (t.reentrant) out.push_back({"reentrant", "false", "Archon's checkpoints are not reentrant"});
  if (t.logits_to_keep > 0) out.push_back({"logits_to_keep", "auto", "Archon makes logits of all tokens"});
}

}  // namespace

std::vector<Clash> archon_clashes(const Role& role) {
  const Trainer& t = role.trainer;
  const bool engine = role.engine == EngineKind::archon, kernels = t.kernels == Kernels::archon;
  std::vector<Clash> out;
  if (!engine && kernels) out.push_back({"kernels", "hf_flash", "these are the models of AReaL's Archon: engine: archon"});
  if (!engine && t.tree_training)
    out.push_back({"tree_training", "false", "not supported yet: tree training outside of AReaL's Archon"});
  if (!engine) return out;
  if (!t.loop.has_archon) {
    out.push_back({"engine", "fsdp2", "Archon is AReaL's: framework: areal"});
    return out;
  }
  if (!t.framework_version.empty() && compare_versions(t.framework_version, "0.5.3") < 0) {
    out.push_back({"engine", "fsdp2",
                   compare_versions(t.framework_version, "0.5.2") < 0
                       ? "AReaL has Archon from 0.5.2 on"
                       : "not supported yet: Archon of AReaL 0.5.2, which makes the whole model on every GPU"});
    return out;
  }
  if (!kernels) out.push_back({"kernels", "archon", "Archon has models of its own"});
  check_formats(t, out);
  check_units(t, out);
  check_rest(t, out);
  return out;
}

}  // namespace oomplan
