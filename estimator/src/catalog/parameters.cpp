#include "catalog/parameters.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "catalog/inventory.hpp"

namespace oomplan {
namespace {

using Part = ParameterPart;
using Kind = ParameterKind;
using Split = SplitAxis;

/// Gate, up and down of a dense block of `width`, or up and down where it is not gated.
void dense_block(Inventory& out, std::string_view prefix, std::int64_t h, std::int64_t width, bool gated, bool fused, bool bias,
                 Part part) {
  const Names& names = out.names;
  if (gated && fused) {
    out.linear(joined(prefix, names.gate_up), h, 2 * width, bias, part, Split::rows);
  } else {
    if (gated) out.linear(joined(prefix, names.gate), h, width, bias, part, Split::rows);
    out.linear(joined(prefix, names.up), h, width, bias, part, Split::rows);
  }
  out.linear(joined(prefix, names.down), width, h, bias, part, Split::columns);
}

void experts(Inventory& out, const FeedForward& ff, std::int64_t h) {
  const Names& names = out.names;
  const std::string prefix = joined(names.moe, names.experts);
  const std::int64_t e = ff.expert_width, in = ff.latent_width > 0 ? ff.latent_width : h;
  if (ff.fused_experts) {
    const std::int64_t wide = (ff.experts_gated ? 2 : 1) * e;
    const std::string up = joined(names.moe, names.fused_up), down = joined(names.moe, names.fused_down);
    out.tensor(up, {ff.experts, in, wide}, Part::experts, Split::rows);
    if (ff.expert_bias) out.tensor(up + "_bias", {ff.experts, wide}, Part::experts, Split::rows);
    out.tensor(down, {ff.experts, e, in}, Part::experts, Split::columns);
    if (ff.expert_bias) out.tensor(down + "_bias", {ff.experts, in}, Part::experts);
    return;
  }
  if (ff.experts_gated)
    out.linear(prefix + std::string(names.expert_gate), in, e, ff.expert_bias, Part::experts, Split::rows, ff.experts);
  out.linear(prefix + std::string(names.expert_up), in, e, ff.expert_bias, Part::experts, Split::rows, ff.experts);
  out.linear(prefix + std::string(names.expert_down), e, in, ff.expert_bias, Part::experts, Split::columns, ff.experts);
}

void moe_block(Inventory& out, const FeedForward& ff, std::int64_t h) {
  const Names& names = out.names;
  out.linear(joined(names.moe, names.router), h, ff.experts, ff.router_bias, Part::router, Split::none);
  const Kind correction = names.correction_is_parameter ? Kind::still : Kind::buffer;
  if (ff.correction_bias) out.unlearned(correction, names.correction, {ff.experts}, Part::router);
  if (ff.latent_width > 0) {
    out.linear(joined(names.moe, "fc1_latent_proj"), h, ff.latent_width, ff.bias, Part::feed_forward, Split::none);
    out.linear(joined(names.moe, "fc2_latent_proj"), ff.latent_width, h, ff.bias, Part::feed_forward, Split::none);
  }
  experts(out, ff, h);
  if (ff.shared_width > 0)
    dense_block(out, names.shared, h, ff.shared_width, ff.experts_gated, false, ff.bias, Part::shared_experts);
  if (ff.shared_gate) out.linear(names.shared_gate, h, 1, false, Part::shared_experts, Split::none);
  if (ff.width > 0) dense_block(out, names.feed_forward, h, ff.width, true, false, ff.bias, Part::feed_forward);
  if (!ff.router_scales) return;
  out.tensor("router.scale", {h}, Part::router);
  out.tensor("router.per_expert_scale", {ff.experts}, Part::router);
  for (const char* name : {"post_feedforward_layernorm_1", "post_feedforward_layernorm_2", "pre_feedforward_layernorm_2"})
    out.norm(name, NormKind::rms, h);
}

void feed_forward(Inventory& out, const FeedForward& ff, std::int64_t h) {
  switch (ff.kind) {
    case FeedForwardKind::none:
      return;
    case FeedForwardKind::linear:
      out.linear("mlp.linear_mlp", h, h, false, Part::feed_forward, Split::none);
      return;
    case FeedForwardKind::moe:
      moe_block(out, ff, h);
      return;
    case FeedForwardKind::gated:
    case FeedForwardKind::plain:
      break;
  }
  dense_block(out, out.names.feed_forward, h, ff.width, ff.kind == FeedForwardKind::gated, ff.fused_gate_up, ff.bias,
              Part::feed_forward);
}

/// A half that a layer lacks has no norm.
void norms(Inventory& out, const Layer& layer, std::int64_t h, bool before_feed_forward) {
  const Names& names = out.names;
  const bool mixer = layer.mixer.kind != MixerKind::none, ff = layer.feed_forward.kind != FeedForwardKind::none;
  const auto add = [&](std::string_view name, bool wanted) {
    if (wanted) out.norm(name, layer.norm, h);
  };
  switch (layer.norm_place) {
    case NormPlace::pre:
      add(before_feed_forward ? names.pre_ff : names.pre_mixer, before_feed_forward ? ff : mixer);
      return;
    case NormPlace::post:
      add(before_feed_forward ? names.post_ff : names.post_mixer, before_feed_forward ? ff : mixer);
      return;
    case NormPlace::pre_and_post:
      add(before_feed_forward ? names.pre_ff : names.pre_mixer, before_feed_forward ? ff : mixer);
      add(before_feed_forward ? names.post_ff : names.post_mixer, before_feed_forward ? ff : mixer);
      return;
    case NormPlace::parallel_one:
      add(names.pre_mixer, !before_feed_forward);
      return;
    case NormPlace::parallel_two:
      add(before_feed_forward ? names.pre_ff : names.pre_mixer, true);
      return;
    case NormPlace::single:
      add(names.pre_mixer, !before_feed_forward);
      return;
  }
}

/// Gemma 3n and 4: the layer's own embedding joins through a gate.
void per_layer_input_rows(Inventory& out, const Layer& layer, std::int64_t h) {
  out.linear("per_layer_input_gate", h, layer.per_layer_input, false, Part::other, Split::none);
  out.linear("per_layer_projection", layer.per_layer_input, h, false, Part::other, Split::none);
  out.norm("post_per_layer_input_norm", layer.norm, h);
}

/// Gemma 3n: learned augmented residual of low rank.
void laurel_rows(Inventory& out, std::int64_t rank, std::int64_t h) {
  out.linear("laurel.linear_left", h, rank, false, Part::other, Split::none);
  out.linear("laurel.linear_right", rank, h, false, Part::other, Split::none);
  out.norm("laurel.post_laurel_norm", NormKind::rms, h);
}

/// Gemma 3n: n copies of the hidden state, one of which passes through the layer while the others are predicted.
void altup_rows(Inventory& out, std::int64_t n, std::int64_t h) {
  out.tensor("altup.correct_output_scale", {h}, Part::other);
  out.linear("altup.correction_coefs", n, n, false, Part::other, Split::none);
  out.linear("altup.prediction_coefs", n, n * n, false, Part::other, Split::none);
  out.linear("altup.modality_router", h, n, false, Part::other, Split::none);
  out.norm("altup.router_norm", NormKind::rms, h);
}

/// DeepSeek V4: n residual streams; before each half n weights gather them, behind it n spread and n x n mix them.
void stream_rows(Inventory& out, std::int64_t n, std::int64_t h) {
  const std::int64_t mixes = (2 + n) * n;
  for (const char* half : {"attn_hc.", "ffn_hc."}) {
    out.tensor(joined(half, "fn"), {mixes, n * h}, Part::other);
    out.tensor(joined(half, "base"), {mixes}, Part::other);
    out.tensor(joined(half, "scale"), {3}, Part::other);
  }
}

/// DeepSeek V4: gathers the streams in front of the head.
void stream_head_rows(Inventory& out, std::int64_t n, std::int64_t h, std::int64_t copies = 1) {
  if (n == 0) return;
  out.tensor("hc_head.hc_fn", {n, n * h}, Part::other, Split::none, copies);
  out.tensor("hc_head.hc_base", {n}, Part::other, Split::none, copies);
  out.tensor("hc_head.hc_scale", {1}, Part::other, Split::none, copies);
}

void layer_rows(Inventory& out, const Layer& layer, std::int64_t h, std::int64_t vocab) {
  norms(out, layer, h, false);
  mixer_parameters(layer.mixer, h, layer.norm, out);
  norms(out, layer, h, true);
  feed_forward(out, layer.feed_forward, h);
  if (layer.feed_forward.token_table)
    out.unlearned(Kind::table, "mlp.gate.tid2eid", {vocab, layer.feed_forward.experts_per_token}, Part::router);
  if (layer.layer_scalars > 0) out.tensor("scalars", {layer.layer_scalars}, Part::other);
  if (layer.buffer_scalars > 0) out.unlearned(Kind::buffer, "buffers", {layer.buffer_scalars});
  if (layer.per_layer_input > 0) per_layer_input_rows(out, layer, h);
  if (layer.laurel_rank > 0) laurel_rows(out, layer.laurel_rank, h);
  if (layer.altup_inputs > 0) altup_rows(out, layer.altup_inputs, h);
  if (layer.streams > 0) stream_rows(out, layer.streams, h);
}

void mtp_rows(Inventory& out, const Architecture& model) {
  const Mtp& mtp = model.mtp;
  const std::int64_t h = model.hidden;
  out.within(Part::mtp);
  for (const LayerRun& run : mtp.layers) {
    out.at("mtp.layers.{l}.", -1, run.count);
    layer_rows(out, run.layer, h, model.vocab);
  }
  out.at("mtp.", -1, 1);
  if (mtp.projections > 0) out.tensor("eh_proj.weight", {h, 2 * h}, Part::mtp, Split::none, mtp.projections);
  if (mtp.norms > 0) out.tensor("norm.weight", {h}, Part::mtp, Split::none, mtp.norms);
  const std::int64_t copies = std::max<std::int64_t>(1, mtp.projections);
  if (!mtp.layers.empty()) stream_head_rows(out, mtp.layers.front().layer.streams, h, copies);
  if (mtp.own_embedding) out.tensor("embed_tokens.weight", {model.vocab, h}, Part::mtp, Split::vocabulary, copies);
  if (mtp.own_head) out.tensor("shared_head.head.weight", {model.vocab, h}, Part::mtp, Split::vocabulary, copies);
}

/// Gemma 3n and 4: one table for the embeddings of all layers. Gemma 3n: projections into the copies of the hidden state and
/// back.
void per_layer_tables(Inventory& out, const Architecture& model) {
  const Layer& layer = model.runs.front().layer;
  const std::int64_t h = model.hidden;
  if (model.per_layer_vocab > 0) {
    const std::int64_t width = model.layers() * layer.per_layer_input;
    out.tensor("embed_tokens_per_layer.weight", {model.per_layer_vocab, width}, Part::embedding, Split::vocabulary);
    out.linear("per_layer_model_projection", h, width, false, Part::other, Split::none);
    out.norm("per_layer_projection_norm", NormKind::rms, layer.per_layer_input);
  }
  if (layer.altup_inputs < 2) return;
  for (const char* name : {"altup_projections.{e}.weight", "altup_unembed_projections.{e}.weight"})
    out.tensor(name, {h, h}, Part::other, Split::none, layer.altup_inputs - 1);
}

void embedding_rows(Inventory& out, const Architecture& model) {
  const Names& names = out.names;
  const std::int64_t width = model.embedding_width > 0 ? model.embedding_width : model.hidden;
  out.at(std::string(names.stem), -1, 1);
  out.tensor(joined(names.embedding, ".weight"), {model.vocab, width}, Part::embedding, Split::vocabulary);
  if (model.position_rows > 0)
    out.tensor(joined(names.positions, ".weight"), {model.position_rows, model.hidden}, Part::positions);
  if (width != model.hidden) {
    out.linear("project_in", width, model.hidden, false, Part::other, Split::none);
    out.linear("project_out", model.hidden, width, false, Part::other, Split::none);
  }
  per_layer_tables(out, model);
  if (model.embedding_norm) out.norm(names.embedding_norm, model.runs.front().layer.norm, model.hidden);
}

void head_rows(Inventory& out, const Architecture& model) {
  const Names& names = out.names;
  const std::int64_t width = model.embedding_width > 0 ? model.embedding_width : model.hidden;
  out.at(std::string(names.stem), -1, 1);
  out.norm(names.final_norm, model.final_norm, model.hidden);
  stream_head_rows(out, model.runs.front().layer.streams, model.hidden);
  out.at("", -1, 1);
  if (!model.tied) out.tensor(joined(names.head, ".weight"), {model.vocab, width}, Part::head, Split::vocabulary);
  if (model.head_bias) out.tensor(joined(names.head, ".bias"), {model.vocab}, Part::head, Split::vocabulary);
}

}  // namespace

std::int64_t Parameter::elements() const {
  std::int64_t out = 1;
  for (const std::int64_t extent : shape) out *= extent;
  return out;
}

std::int64_t Parameter::total() const { return elements() * copies * layers; }

void Inventory::tensor(std::string_view name, std::vector<std::int64_t> shape, ParameterPart part, SplitAxis split,
                       std::int64_t copies) {
  Parameter row;
  row.name = prefix_ + std::string(name);
  row.shape = std::move(shape);
  row.part = part_ == Part::other ? part : part_;
  row.split = split;
  row.run = run_;
  row.copies = copies;
  row.layers = layers_;
  rows.push_back(std::move(row));
}

void Inventory::unlearned(ParameterKind kind, std::string_view name, std::vector<std::int64_t> shape, ParameterPart part) {
  tensor(name, std::move(shape), part);
  rows.back().kind = kind;
}

void Inventory::linear(std::string_view name, std::int64_t in, std::int64_t out, bool bias, ParameterPart part, SplitAxis split,
                       std::int64_t copies) {
  tensor(joined(name, ".weight"), {out, in}, part, split, copies);
  // The bias of a matrix that is cut along its columns is added once, behind the sum: it is not cut.
  if (bias) tensor(joined(name, ".bias"), {out}, part, split == Split::columns ? Split::none : split, copies);
}

void Inventory::norm(std::string_view name, NormKind kind, std::int64_t width, ParameterPart part) {
  if (kind == NormKind::none || kind == NormKind::non_parametric) return;
  tensor(joined(name, ".weight"), {width}, part);
  if (kind == NormKind::layer) tensor(joined(name, ".bias"), {width}, part);
}

std::vector<Parameter> parameters(const Architecture& model) {
  Inventory out(names_of(model.model_type, model.family));
  embedding_rows(out, model);
  const std::string prefix = joined(out.names.stem, out.names.layers);
  for (std::size_t i = 0; i < model.runs.size(); ++i) {
    out.at(prefix, static_cast<std::int64_t>(i), model.runs[i].count);
    layer_rows(out, model.runs[i].layer, model.hidden, model.vocab);
  }
  head_rows(out, model);
  mtp_rows(out, model);
  out.within(Part::tower);
  out.at("", -1, 1);
  tower_parameters(model.tower, model.hidden, out);
  for (Parameter& row : out.rows) row.dtype = model.dtype;
  return std::move(out.rows);
}

ParameterCounts count(const Architecture& model) {
  ParameterCounts out;
  for (const Parameter& row : parameters(model)) {
    const std::int64_t total = row.total();
    if (row.part == Part::tower) {
      out.tower += total;
      continue;
    }
    if (row.part == Part::mtp) {
      out.mtp += total;
      continue;
    }
    out.language += total;
    if (row.kind == Kind::learned) out.trained += total;
    if (row.kind == Kind::buffer || row.kind == Kind::table) out.buffers += total;
    if (row.part == Part::embedding) out.embedding += total;
    if (row.part == Part::head) out.head += total;
    if (row.part == Part::experts) out.experts += total;
    if (row.run >= 0) out.layers += total;
    const bool expert = row.part == Part::experts;
    const FeedForward* const ff = expert ? &model.runs[static_cast<std::size_t>(row.run)].layer.feed_forward : nullptr;
    out.active += expert ? total / ff->experts * ff->experts_per_token : total;
  }
  const Mtp& mtp = model.mtp;
  const std::int64_t blocks = std::max<std::int64_t>(1, mtp.projections);
  out.mtp_copies = ((mtp.own_embedding ? 1 : 0) + (mtp.own_head ? 1 : 0)) * model.vocab * model.hidden * blocks;
  out.mtp -= out.mtp_copies;
  return out;
}

}  // namespace oomplan
