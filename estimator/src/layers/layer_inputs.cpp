#include "layers/layer_inputs.hpp"

#include <algorithm>

#include "layers/ops.hpp"

namespace oomplan {
namespace {

using namespace ops;
using axis::B, axis::S, axis::T;

std::int64_t width_of(const Architecture& a) { return a.runs.front().layer.per_layer_input; }

}  // namespace

LayerInputLeaves declare_layer_inputs(Eager& g, const Architecture& a, DType outer, DType dtype, const AdapterOptions& adapters) {
  LayerInputLeaves out;
  const std::int64_t width = a.layers() * width_of(a);
  out.table = g.parameter("model.embed_tokens_per_layer.weight", {a.per_layer_vocab, width}, outer);
  out.projection = g.parameter("model.per_layer_model_projection.weight", {width, a.hidden}, dtype);
  if (adapters.outside("per_layer_model_projection"))
    g.add_low_rank(out.projection, adapters.rank, a.hidden, width, adapters.dtype);
  out.norm = declare_norm(g, NormKind::rms, "model.per_layer_projection_norm", width_of(a), dtype);
  return out;
}

Tensor layer_tokens(Eager& g, const Architecture& a, const LayerInputLeaves& leaves, const Tensor& ids, bool own,
                    EmbeddingSort sort) {
  Tensor w = g.leaf(leaves.table);
  Tensor out = g.make("layer_inputs.embedding", {B, S, Dim(a.layers() * width_of(a))}, w.dtype);
  const Saved saved = own || g.hooks != nullptr ? g.save(ids) : Saved();
  g.record(out, "EmbeddingBackward0", {&w}, [&g, shape = w.shape, saved, sort](Gradients in) {
    (void)saved.get();
    return Gradients{embedding_gradient(g, "layer_inputs.embedding_backward", shape, in[0].dtype, {B, S}, sort)};
  });
  g.leave(leaves.table);
  return scale(g, std::move(out), "layer_inputs.tokens");
}

Tensor make_layer_inputs(Eager& g, const FamilyCode& code, const Architecture& a, const LayerInputLeaves& w, const Tensor& embeds,
                         Tensor tokens) {
  const Dim width(a.layers() * width_of(a));
  const Shape apart{B, S, Dim(a.layers()), Dim(width_of(a))};
  tokens.shape = apart;
  Tensor projected = linear(g, embeds, w.projection, -1, T, {B, S, width}, "layer_inputs.projected");
  if (code.layer_scalar) {
    Tensor scaled = scale(g, projected, "layer_inputs.scaled");
    projected = std::move(scaled);
  } else {
    projected = scale_in_place(g, Tensor(projected), false);  // Gemma 3n
  }
  projected.shape = apart;
  Tensor normed = run_norm(g, code.norm, projected, w.norm, "layer_inputs.norm");
  projected = std::move(normed);
  Tensor both = add(g, projected, tokens, "layer_inputs.sum");
  return scale(g, std::move(both), "layer_inputs");
}

Tensor input_of_layer(Eager& g, const Tensor& all) { return slice(g, all, {all.shape[0], all.shape[1], all.shape[3]}); }

}  // namespace oomplan
