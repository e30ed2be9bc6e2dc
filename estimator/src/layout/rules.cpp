#include "layout/rules.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "layout/letters.hpp"

namespace oomplan {
namespace {

bool divides(std::int64_t part, std::int64_t whole) { return whole == 0 || whole % part == 0; }

/// Key/value heads are split, or repeated when there are fewer of them than ranks.
bool kv_splits(std::int64_t ranks, std::int64_t kv_heads) {
  return kv_heads == 0 || kv_heads % ranks == 0 || ranks % kv_heads == 0;
}

std::string list_of_degrees(const std::vector<std::int64_t>& degrees) { return fmt::format("{}", fmt::join(degrees, ", ")); }

void heads_rule(char letter, std::int64_t ranks, const ModelShape& shape, const std::vector<std::int64_t>& valid,
                std::vector<std::string>& out) {
  if (!divides(ranks, shape.heads)) {
    out.push_back(fmt::format("{0}{1} does not divide the {2} attention heads; {0} can be {3}", letter, ranks, shape.heads,
                              list_of_degrees(valid)));
  } else if (!kv_splits(ranks, shape.kv_heads)) {
    out.push_back(fmt::format("{0}{1} neither divides the {2} key/value heads nor is a multiple of them; {0} can be {3}", letter,
                              ranks, shape.kv_heads, list_of_degrees(valid)));
  }
}

void fsdp_rules(const Layout& l, EngineKind engine, const ModelShape& shape, std::vector<std::string>& out) {
  if (l.pipeline > 1) out.push_back(fmt::format("p{}: FSDP has no pipeline parallelism", l.pipeline));
  if (l.expert > 1 || l.hybrid) out.push_back("e: FSDP has no expert parallelism");
  if (l.tensor > 1 && engine == EngineKind::fsdp1) out.push_back(fmt::format("t{}: FSDP1 has no tensor parallelism", l.tensor));
  if (l.tensor > 1 && l.context > 1)
    out.push_back(fmt::format("c{}: Ulysses together with tensor parallelism is not supported yet", l.context));
  // DTensor shards whole heads: AReaL areal/engine/fsdp_utils/parallel.py (1.0) refuses others, torchtitan's views fail
  if (!divides(l.tensor, shape.heads) || !divides(l.tensor, shape.kv_heads))
    out.push_back(fmt::format("t{} does not divide the {} attention heads and the {} key/value heads", l.tensor, shape.heads,
                              shape.kv_heads));
  heads_rule('c', l.context, shape, ulysses_degrees(l.world(), shape), out);
}

/// areal/experimental/models/archon/utils.py, 1.0.4: validate_tp_constraints, validate_cp_constraints.
void archon_rules(const Layout& l, const ModelShape& shape, std::vector<std::string>& out) {
  if (l.pipeline > 1) out.push_back(fmt::format("p{}: not supported yet: pipelines of Archon", l.pipeline));
  if (l.expert > 1 || l.hybrid) out.push_back("not supported yet: expert parallelism of Archon");
  if (shape.heads == 0) return;
  const std::int64_t kv = shape.kv_heads == 0 ? shape.heads : shape.kv_heads;
  if (!divides(l.tensor, shape.heads) || !divides(l.tensor, kv))
    return out.push_back(fmt::format("t{} does not divide the {} attention heads and the {} key/value heads", l.tensor,
                                     shape.heads, shape.kv_heads));
  const std::int64_t heads = shape.heads / l.tensor, left = kv / l.tensor;
  const bool repeats = left < l.context;
  if (!divides(l.context, heads) ||
      (repeats ? !divides(left, l.context) || !divides(l.context / left, shape.heads / kv) : !divides(l.context, left)))
    out.push_back(fmt::format("c{} does not divide the {} attention heads and {} key/value heads that t{} leaves a rank",
                              l.context, heads, left, l.tensor));
}

/// vLLM has whole experts on all ranks of a server or on none (vllm/model_executor/layers/fused_moe/config.py
/// FusedMoEParallelConfig.make, 0.9.2 to August 2026); SGLang divides the experts' numbers by e and their width by t / e
/// (sglang/srt/distributed/parallel_state.py initialize_model_parallel, 0.5.10).
void expert_rules(const Layout& l, bool vllm, const ModelShape& shape, std::vector<std::string>& out) {
  if (l.hybrid) out.push_back("a list of its own for the experts is for training: write e behind the letters");
  if (l.expert == 1) return;
  if (shape.experts == 0 && shape.layers > 0) return out.push_back(fmt::format("e{}: the model has no experts", l.expert));
  const std::int64_t all = l.tensor * shape.attention_data;
  if (vllm && l.expert != all)
    out.push_back(fmt::format("e{}: vLLM's enable_expert_parallel divides the experts over all {} ranks of a server: e{}",
                              l.expert, all, all));
  if (!vllm && !divides(l.expert, l.tensor)) out.push_back(fmt::format("e{} does not divide t{}", l.expert, l.tensor));
}

void attention_rules(const Layout& l, bool vllm, const ModelShape& shape, std::vector<std::string>& out) {
  const std::int64_t groups = shape.attention_data;
  if (groups == 1) return;
  if (vllm && shape.experts == 0 && shape.layers > 0)
    out.push_back(
        fmt::format("attention_data {}: data-parallel ranks of a model without experts are replicas: d{}", groups, groups));
  if (vllm && !divides(groups, l.data)) out.push_back(fmt::format("attention_data {} does not divide d{}", groups, l.data));
  if (!vllm && !divides(groups, l.tensor)) out.push_back(fmt::format("attention_data {} does not divide t{}", groups, l.tensor));
}

void server_rules(const Layout& l, bool vllm, const ModelShape& shape, std::vector<std::string>& out) {
  if (l.context > 1) out.push_back(fmt::format("c{}: context parallelism is for training", l.context));
  expert_rules(l, vllm, shape, out);
  attention_rules(l, vllm, shape, out);
  if (shape.layers > 0 && l.pipeline > shape.layers)
    out.push_back(fmt::format("p{}: the model has {} layers", l.pipeline, shape.layers));
  const std::int64_t groups = vllm || !divides(shape.attention_data, l.tensor) ? 1 : shape.attention_data;
  if (groups == 1) return heads_rule('t', l.tensor, shape, tensor_degrees(l.world(), shape), out);
  const std::int64_t ranks = l.tensor / groups;
  if (!divides(ranks, shape.heads) || !kv_splits(ranks, shape.kv_heads))
    out.push_back(fmt::format("t{} in {} groups: {} ranks do not divide the {} attention heads and {} key/value heads", l.tensor,
                              groups, ranks, shape.heads, shape.kv_heads));
}

}  // namespace

std::vector<std::string> broken_rules(const Layout& l, EngineKind engine, const ModelShape& shape) {
  std::vector<std::string> out;
  switch (engine) {
    case EngineKind::single:
      if (l.world() > l.tensor)
        out.push_back(fmt::format("engine single runs on one GPU, or splits matrices over t: the layout takes {}", l.world()));
      else if (l.tensor > 1)
        fsdp_rules(l, engine, shape, out);  // parallelize_module alone: the same DTensors
      break;
    case EngineKind::fsdp2:
    case EngineKind::fsdp1:
      fsdp_rules(l, engine, shape, out);
      break;
    case EngineKind::deepspeed:
      if (l.world() != l.data * l.context || l.expert > 1 || l.hybrid)
        out.push_back("not supported yet: DeepSpeed with more than data parallelism (d) and Ulysses (c)");
      heads_rule('c', l.context, shape, ulysses_degrees(l.world(), shape), out);
      break;
    case EngineKind::ddp:
      if (l.world() != l.data) out.push_back("this engine has only data parallelism (d)");
      break;
    case EngineKind::archon:
      archon_rules(l, shape, out);
      break;
    case EngineKind::megatron:
      if (l.expert > 1 && shape.experts == 0 && shape.layers > 0)
        out.push_back(fmt::format("e{}: the model has no experts", l.expert));
      if (!divides(l.expert, shape.experts))
        out.push_back(fmt::format("e{} does not divide the {} experts", l.expert, shape.experts));
      if (shape.layers > 0 && l.pipeline > shape.layers)
        out.push_back(fmt::format("p{}: the model has {} layers", l.pipeline, shape.layers));
      heads_rule('t', l.tensor, shape, tensor_degrees(l.world(), shape), out);
      break;
    case EngineKind::sglang:
    case EngineKind::vllm:
      server_rules(l, engine == EngineKind::vllm, shape, out);
      break;
  }
  return out;
}

std::vector<std::int64_t> ulysses_degrees(std::int64_t gpus, const ModelShape& shape) {
  std::vector<std::int64_t> out;
  const std::int64_t most = std::min(gpus, shape.heads > 0 ? shape.heads : kMostDegree);
  for (std::int64_t c = 1; c <= most; ++c)
    if (gpus % c == 0 && divides(c, shape.heads) && kv_splits(c, shape.kv_heads)) out.push_back(c);
  return out;
}

std::vector<std::int64_t> tensor_degrees(std::int64_t gpus, const ModelShape& shape) { return ulysses_degrees(gpus, shape); }

}  // namespace oomplan
