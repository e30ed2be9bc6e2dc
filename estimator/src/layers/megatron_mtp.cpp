// MultiTokenPredictionBlock of Megatron-core: megatron/core/transformer/multi_token_prediction.py, 0.16.1. verl takes the decoder
// and the embedding out of its gradients (verl/models/mcore/mtp_patch.py, 0.8 to 0.10: _patched_get_embeddings_for_detach). So do
// slime and Relax, and the output layer (docker/patch/latest/megatron.patch), unless Relax has --mtp-detach-paths none.
#include "layers/megatron.hpp"
#include "layers/megatron_recompute.hpp"
#include "layers/ops.hpp"

namespace oomplan {
namespace {

using namespace ops;
using axis::B, axis::S;

/// The projection of both, whose output is put together over the tensor-parallel ranks; under sequence parallelism the layer
/// takes its own tokens as a view of that.
Tensor project_both(Eager& g, const Architecture& a, const ChunkOptions& o, const Tensor& both) {
  const TeOptions& te = o.te;
  Tensor x = te_column_linear(g, both, a.hidden / te.tensor, te, "eh_proj");
  if (te.tensor == 1) return x;
  const Shape part = x.shape, whole{te.whole(), B, Dim(a.hidden)};
  Tensor gathered = g.make("eh_proj.gathered", whole, DType::bf16);
  g.record(gathered, "GatherFromModelParallelRegion", {&x},
           [&g, part](Gradients) { return Gradients{gradient(g, "eh_proj_backward.split", part, DType::bf16)}; });
  if (!te.sequence_parallel) return gathered;
  Tensor own = gathered.alias({S, B, Dim(a.hidden)});
  g.record(own, "ScatterToSequenceParallelRegion", {&gathered},
           [&g, whole](Gradients) { return Gradients{gradient(g, "eh_proj_backward.gathered", whole, DType::bf16)}; });
  return own;
}

/// Its norm has a weight that is trained, so that its backward pass runs; what it makes for the input goes at once.
Tensor without_history(const Eager& g, const Tensor& x) {
  auto node = std::make_shared<Node>();
  node->name = "AccumulateGrad";
  node->sequence = kAccumulates;
  node->scope = g.scope;
  node->apply = [](const Gradients&) { return Gradients{}; };
  Tensor out = x.alias(x.shape);
  out.grad_fn = std::move(node);
  return out;
}

/// MultiTokenPredictionLayer._proj_and_transformer_layer.
Tensor block(Eager& g, const Architecture& a, const ChunkOptions& o, const Tensor& hidden, const Tensor& embedded) {
  const Layer& layer = a.runs.back().layer;
  Tensor e = te_norm(g, predicts_apart(o) && g.grad_enabled ? without_history(g, embedded) : embedded, layer.norm, "enorm");
  Tensor h = te_norm(g, hidden, layer.norm, "hnorm");
  Tensor both = cat(g, {e, h}, {S, B, Dim(2 * a.hidden)}, "eh_proj.input");
  Tensor x = project_both(g, a, o, both);
  for (Tensor* name : {&both, &e, &h}) name->reset();
  Tensor out = run_megatron_layer(g, a, layer, o, x);
  return te_norm(g, out, a.final_norm, "mtp.final_layernorm");
}

}  // namespace

Tensor run_megatron_mtp(Eager& g, const Architecture& a, const ChunkOptions& o, const Tensor& hidden,
                        const std::function<Tensor()>& embed, const std::function<Tensor(const Tensor&)>& leaf,
                        const Tensor& beside) {
  // its own recomputation knows no blocks of layers (_checkpointed_forward)
  const bool checkpointed = o.recompute == Recompute::full && o.settings.recompute_method == RecomputeMethod::uniform;
  std::vector<Tensor> parts{hidden};
  for (std::int64_t i = 0; i < o.mtp; ++i) {
    Tensor embedded = embed();
    if (predicts_apart(o)) embedded = embedded.alias(embedded.shape);
    const Tensor before = predicts_apart(o) ? leaf(parts.back()) : parts.back();
    const Saved kept = checkpointed && beside ? g.save(beside) : Saved();
    const auto body = [&g, &a, &o, kept](const std::vector<Tensor>& in) {
      return std::vector<Tensor>{block(g, a, o, in[0], in[1])};
    };
    Tensor next = checkpointed ? checkpoint_several(g, {before, embedded}, body) : block(g, a, o, before, embedded);
    parts.push_back(std::move(next));
  }
  return cat(g, std::move(parts), {Dim(o.mtp + 1) * S, B, Dim(a.hidden)}, "mtp.hidden_states");
}

}  // namespace oomplan
