// GatedDeltaNet of Megatron-core: linear attention by flash-linear-attention's rule.
//
// megatron/core/ssm/gated_delta_net.py and models/gpt/experimental_attention_variant_module_specs.py, 0.18.0. Legend: K and V
// columns of keys and values on a rank, n heads of values, k and v dims of a head.
#include "layers/fla.hpp"
#include "layers/megatron.hpp"
#include "layers/megatron_delta_context.hpp"
#include "layers/ops.hpp"

namespace oomplan {
namespace {

using namespace ops;
using axis::B;

/// Of a rank, between both exchanges where several ranks share the tokens of a sequence out.
struct Widths {
  Widths(const Mixer& m, const ChunkOptions& o)
      : key_heads(m.linear_key_heads / o.te.tensor / o.te.context),
        heads(m.linear_value_heads / o.te.tensor / o.te.context),
        key(m.linear_key_dim),
        value(m.linear_value_dim) {}
  std::int64_t key_heads, heads, key, value;
  std::int64_t keys() const { return key_heads * key; }
  std::int64_t values() const { return heads * value; }
  std::int64_t convolved() const { return 2 * keys() + values(); }
  std::int64_t projected() const { return convolved() + values() + 2 * heads; }
};

/// _unpack_sequence and cat: a copy of each sequence's rows behind one another. Each slice has a gradient of all rows.
Tensor joined_sequences(Eager& g, const Tensor& x, const ChunkOptions& o, const std::string& name) {
  Tensor y = g.make(name, x.shape, x.dtype);
  g.record(y, "CatBackward0", {&x}, [&g, several = o.packed > 1, name](Gradients in) {
    Tensor sum = gradient(g, (name + "_backward").c_str(), in[0].shape, in[0].dtype);
    if (several) Tensor next = gradient(g, (name + "_backward.next").c_str(), in[0].shape, in[0].dtype);
    return Gradients{std::move(sum)};
  });
  return y;
}

/// _unpack_sequence: a slice of each sequence's rows. Each has a gradient of all rows.
Tensor unpacked(Eager& g, const Tensor& x, const ChunkOptions& o, const std::string& name) {
  Tensor y = x.alias(x.shape);
  g.record(y, "SliceBackward0", {&x}, [&g, several = o.packed > 1, name, from = x.shape](Gradients in) {
    Tensor sum = gradient(g, (name + "_backward").c_str(), from, in[0].dtype);
    if (several) Tensor next = gradient(g, (name + "_backward.next").c_str(), from, in[0].dtype);
    return Gradients{std::move(sum)};
  });
  return y;
}
/// The cat of what the sequences gave.
Tensor put_together(Eager& g, const Tensor& x, const std::string& name) {
  Tensor y = g.make(name, x.shape, x.dtype);
  g.record(y, "CatBackward0", {&x}, [](Gradients in) { return in; });
  return y;
}

/// One kernel of torch.compile: keeps what it reads, and hands on gradients of it.
template <class Out>
void kernel_of(Eager& g, Out& out, const char* name, const std::vector<const Tensor*>& in, std::size_t outputs = 1) {
  if (!g.will_record(in)) return;
  std::vector<Saved> saved;
  for (const Tensor* x : in) saved.push_back(g.save(*x));
  g.record(
      out, name, in,
      [&g, saved, name](const Gradients&) {
        Gradients grads;
        for (const Saved& x : saved) {
          const Tensor& read = x.get();
          grads.push_back(gradient(g, (std::string(name) + "_backward").c_str(), read.shape, read.dtype));
        }
        return grads;
      },
      outputs);
}

struct Prepared {
  Tensor query, key, value, gate, beta, alpha;
};

/// repeat_interleave over the heads, or a copy where a head of values has its own.
Tensor for_every_value(Eager& g, const Tensor& x, const Widths& w, const std::string& name) {
  if (w.heads == w.key_heads) return te_contiguous(g, x, name);
  Shape shape = x.shape;
  shape[2] = Dim(w.heads);
  Tensor y = g.make(name, std::move(shape), x.dtype);
  g.record(y, "ExpandBackward0", {&x}, [&g, from = x.shape, name](Gradients in) {
    return Gradients{gradient(g, (name + "_backward").c_str(), from, in[0].dtype)};
  });
  return y;
}

/// _prepare_qkv_for_gated_delta_rule
Prepared prepare(Eager& g, const Tensor& mixed, const Tensor& gate, const Tensor& beta, const Tensor& alpha, const Widths& w) {
  const Dim tokens = mixed.shape[0];
  const Shape both{tokens, B, Dim(2 * w.key_heads), Dim(w.key)}, values{tokens, B, Dim(w.heads), Dim(w.value)};
  std::vector<Tensor> parts = split(g, mixed, {both, values});
  Prepared out;
  {
    Tensor normed = fla::l2norm(g, te_contiguous(g, parts[0], "query_key"), false, "query_key.normed");
    parts[0].reset();
    const Shape keys{tokens, B, Dim(w.key_heads), Dim(w.key)};
    const std::vector<Tensor> halves = split(g, normed, {keys, keys});
    out.query = for_every_value(g, halves[0], w, "query");
    out.key = for_every_value(g, halves[1], w, "key");
  }
  out.value = te_contiguous(g, parts[1], "value");
  out.gate = te_contiguous(g, gate, "gate");
  out.beta = te_contiguous(g, beta, "beta");
  out.alpha = te_contiguous(g, alpha, "alpha");
  return out;
}

/// _compute_g_and_beta: one kernel, whose gradients of the layer's own vectors are small.
std::pair<Tensor, Tensor> decay_and_beta(Eager& g, const Tensor& alpha, const Tensor& beta) {
  Tensor decay = g.make("decay", alpha.shape, DType::fp32), open = g.make("beta.sigmoid", beta.shape, beta.dtype);
  Tensor joint = decay.alias(decay.shape);
  kernel_of(g, joint, "decay_and_beta", {&alpha, &beta}, 2);
  decay.grad_fn = open.grad_fn = joint.grad_fn;
  open.output = 1;
  return {std::move(decay), std::move(open)};
}

/// _apply_gated_norm: Transformer Engine's norm breaks the compiled graph; what is behind it is one kernel.
Tensor gated_norm(Eager& g, const Tensor& x, const Tensor& gate, NormKind norm) {
  const Tensor normed = te_norm(g, x, norm, "out_norm");
  Tensor out = g.make("gated_norm", x.shape, x.dtype);
  kernel_of(g, out, "gated_norm", {&normed, &gate});
  return out;
}

}  // namespace

Tensor run_megatron_delta(Eager& g, const Architecture& a, const Layer& layer, const ChunkOptions& o, const Tensor& x) {
  const Widths w(layer.mixer, o);
  const Dim tokens = Dim(o.te.context) * o.te.whole();
  const auto rows = [&](std::int64_t heads, std::int64_t width) { return Shape{tokens, B, Dim(heads), Dim(width)}; };
  const std::int64_t columns = o.te.context * w.projected();
  Tensor projected = o.adapters ? adapted_norm_column(g, x, layer.norm, columns, o.te, o.adapters, "in_proj")
                                : te_norm_column_linear(g, x, layer.norm, columns, o.te, "in_proj");
  const bool shared = o.te.context > 1, packed = o.packed > 0;
  const auto exchanged = [&](const Tensor& rows_of_rank) {
    return tokens_for_heads(g, rows_of_rank, {w.keys(), w.keys(), w.values(), w.values(), w.heads, w.heads}, o);
  };
  std::vector<Tensor> names;  // lists of sequences, until the layer has returned
  Tensor all;
  if (shared && packed) {
    names.push_back(exchanged(unpacked(g, projected, o, "in_proj.by_sequence")));
    all = put_together(g, names.back(), "in_proj.joined");
  } else if (shared) {
    all = exchanged(projected);
    projected.reset();
  } else {
    all = packed ? joined_sequences(g, projected, o, "in_proj.by_sequence") : projected;
  }
  const std::vector<Tensor> parts = split(
      g, all, {{tokens, B, Dim(w.convolved())}, rows(w.heads, w.value), {tokens, B, Dim(w.heads)}, {tokens, B, Dim(w.heads)}});
  const Tensor weight = shared       ? heads_of_weight(g, w.convolved(), layer.mixer.conv_kernel, o)
                        : o.adapters ? g.scalar(DType::bf16)
                                     : te_weight(g);
  const Tensor mixed = fla::short_convolution(g, parts[0], weight, o.delta_chunks, layer.mixer.conv_kernel);
  Prepared in = prepare(g, mixed, parts[1], parts[2], parts[3], w);
  auto [decay, beta] = decay_and_beta(g, in.alpha, in.beta);
  in.beta = std::move(beta);
  const fla::Rule rule{.heads = Dim(w.heads),
                       .key_dim = Dim(w.key),
                       .value_dim = Dim(w.value),
                       .chunks = o.delta_chunks,
                       .norms = false,
                       .tokens = tokens};
  Tensor core = fla::chunk_gated_delta_rule(g, rule, {in.query, in.key, in.value, decay, in.beta});
  core.shape = rows(w.heads, w.value);
  Tensor normed = gated_norm(g, core, in.gate, NormKind::rms);
  if (o.te.several_sequences) normed = te_contiguous(g, normed, "gated_norm.by_token");
  normed.shape = {tokens, B, Dim(w.values())};
  Tensor before = std::move(normed);
  if (shared && packed) {
    names.push_back(heads_for_tokens(g, unpacked(g, before, o, "gated_norm.by_sequence"), o));
    normed = put_together(g, names.back(), "gated_norm.joined");
  } else if (shared) {
    normed = heads_for_tokens(g, before, o);
    before.reset();
  } else {
    normed = packed ? joined_sequences(g, before, o, "gated_norm.by_sequence") : before;
  }
  return o.adapters ? adapted_row(g, normed, a.hidden, o.te, o.adapters, "out_proj")
                    : te_row_linear(g, normed, a.hidden, o.te, "out_proj");
}

}  // namespace oomplan
