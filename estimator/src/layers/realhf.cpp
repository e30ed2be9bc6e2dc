#include "layers/realhf.hpp"

#include "layers/megatron_local.hpp"
#include "layers/megatron_moe.hpp"
#include "layers/ops.hpp"

namespace oomplan {
namespace {

using namespace ops;
using axis::B, axis::S;

bool scatters(const ChunkOptions& o) { return o.te.sequence_parallel && o.te.tensor > 1; }

/// LlamaRMSNorm, which is written in PyTorch's operators (REAL_LLM_USE_TE is off by default).
Tensor rms(Eager& g, const Tensor& x, const std::string& name) {
  Tensor wide = to(g, x, DType::fp32, name + ".fp32");
  Tensor square = pow2(g, wide);
  Tensor variance = mean_last(g, std::move(square));
  Tensor shifted = add_scalar(g, variance, name + ".shifted");
  Tensor root = rsqrt(g, std::move(shifted), name + ".rsqrt");
  Tensor scaled = mul(g, std::move(wide), std::move(root), name + ".scaled");
  Tensor narrow = to(g, std::move(scaled), x.dtype, name + ".normed");
  return mul(g, te_weight(g), std::move(narrow), name);
}

/// MergedLinearWithGradAccumulationAndAsyncCommunication: several products of one input, which is gathered into a buffer that
/// stays. Backward adds the gradients of the input up one by one, out of place. `views`: of the first so many outputs gradients
/// come as parts of one block, and are copied.
std::vector<Tensor> merged_linear(Eager& g, const Tensor& x, const std::vector<std::int64_t>& columns, bool bias,
                                  const ChunkOptions& o, std::size_t views, const std::string& name) {
  const Dim tokens = o.te.whole();
  std::vector<Tensor> out;
  for (const std::int64_t width : columns) {
    Tensor y = g.make(name, {tokens, B, Dim(width)}, x.dtype);
    if (bias) {
      Tensor biased = g.make(name + ".biased", y.shape, x.dtype);
      y = std::move(biased);
    }
    out.push_back(std::move(y));
  }
  if (!g.will_record({&x})) return out;
  Saved saved = g.save(x);
  Tensor all = x.alias(x.shape);
  const bool scattered = scatters(o);
  const auto backward = [&g, saved, columns, tokens, scattered, views, name](Gradients in) {
    const Tensor& input = saved.get();
    const Shape whole{tokens, B, input.shape.back()};
    Tensor sum;
    for (std::size_t i = 0; i < columns.size(); ++i) {
      const Tensor product = gradient(g, (name + "_backward.product").c_str(), whole, input.dtype);
      Tensor next = gradient(g, (name + "_backward.sum").c_str(), whole, input.dtype);
      sum = std::move(next);
    }
    std::vector<Tensor> names;
    for (std::size_t i = 0; i < views; ++i)
      names.push_back(gradient(g, (name + "_backward.contiguous").c_str(), {tokens, B, Dim(columns[i])}, input.dtype));
    Tensor part = scattered ? gradient(g, (name + "_backward.scattered").c_str(), input.shape, input.dtype) : Tensor();
    for (const std::int64_t width : columns)
      names.push_back(gradient(g, (name + ".weight_gradient").c_str(), {Dim(width), input.shape.back()}, input.dtype));
    (void)in;
    return Gradients{scattered ? std::move(part) : std::move(sum)};
  };
  g.record(all, "MergedLinearWithGradAccumulation", {&x}, backward, columns.size());
  for (std::size_t i = 0; i < out.size(); ++i) {
    out[i].grad_fn = all.grad_fn;
    out[i].output = i;
  }
  return out;
}

/// x seen with another shape, with its gradient.
Tensor view_of(const Tensor& x, Shape as) {
  Tensor out = x.alias(std::move(as));
  out.grad_fn = x.grad_fn;
  out.output = x.output;
  return out;
}
Tensor view_with_node(Eager& g, const Tensor& x, Shape as) {
  Tensor out = x.alias(std::move(as));
  const Shape before = x.shape;
  g.record(out, "ViewBackward0", {&x}, [before](Gradients in) { return Gradients{in[0].alias(before)}; });
  return out;
}

/// rotate_half: halves exchanged, one of them negated.
Tensor rotated_half(Eager& g, const Tensor& x) {
  const Shape half = with_last(x.shape, Dim(x.shape.back().coefficient / 2));
  const std::vector<Tensor> parts = split(g, x, {half, half});
  Tensor negative = neg(g, parts[1], "rotary.negative");
  return cat(g, {std::move(negative), parts[0]}, x.shape, "rotary.rotated");
}

/// apply_rotary_varlen on queries and keys in one block; cosines and sines of every token are made anew.
Tensor rotary(Eager& g, const Tensor& x, std::int64_t width) {
  const Dim tokens = x.shape[0];
  const Tensor rows = g.make("rotary.indices", {tokens}, DType::int64);
  const auto table = [&](const char* name) {
    const Tensor half = g.make("rotary.rows", {tokens, Dim(width / 2)}, x.dtype);
    return g.make(name, {tokens, Dim(width)}, x.dtype);
  };
  const Tensor cos = table("rotary.cos"), sin = table("rotary.sin");
  Tensor left = mul(g, x, cos, "rotary.by_cos");
  Tensor turned = rotated_half(g, x);
  Tensor right = mul(g, std::move(turned), sin, "rotary.by_sin");
  Tensor sum = add(g, std::move(left), std::move(right), "rotary.sum");
  const Tensor rest = slice(g, x, with_last(x.shape, Dim(0)));  // what is not turned: nothing, whose gradient is zeros
  return cat(g, {std::move(sum), rest}, x.shape, "rotary.out");
}

/// flash_attn_varlen_func (flash-attention 2): the queries' gradients are summed up in fp32, and keys and values that several
/// queries share have gradients for each of them first.
Tensor flash(Eager& g, const Tensor& q, const Tensor& k, const Tensor& v, bool insides) {
  Tensor out = g.make("attention.out", q.shape, q.dtype);
  Tensor lse = g.make("attention.lse", {q.shape[2], q.shape[0]}, DType::fp32);
  if (!g.will_record({&q, &k, &v})) return out;
  Saved sq = g.save(q), sk = g.save(k), sv = g.save(v), so = g.save(out), sl = g.save(lse);
  g.record(out, "FlashAttnVarlenFunc", {&q, &k, &v}, [&g, sq, sk, sv, so, sl, insides](Gradients) {
    (void)so.get();
    (void)sl.get();
    const Tensor &query = sq.get(), &key = sk.get(), &value = sv.get();
    Gradients grads;
    for (const Tensor* x : {&query, &key, &value})
      grads.push_back(gradient(g, "attention_backward", x->shape, x->dtype));
    if (!insides) return grads;
    const Tensor sums = gradient(g, "attention_backward.sums", query.shape, DType::fp32);
    if (key.shape[2] == query.shape[2]) return grads;
    const Tensor keys = gradient(g, "attention_backward.keys", query.shape, key.dtype);
    const Tensor values = gradient(g, "attention_backward.values", query.shape, key.dtype);
    return grads;
  });
  return out;
}

/// CausalSelfAttentionLayer.forward. Keys and values are names of the block until it returns.
Tensor attention(Eager& g, const Architecture& a, const Layer& layer, const ChunkOptions& o, const Tensor& x,
                 std::vector<Tensor>& names) {
  const Mixer& m = layer.mixer;
  const std::int64_t heads = m.heads / o.te.tensor, groups = m.kv_heads / o.te.tensor, k = m.head_dim;
  const Dim tokens = o.te.whole();
  const bool normed = m.qk_norm == QkNorm::head;
  std::vector<Tensor> parts;
  {
    const Tensor in = rms(g, x, "attention.norm");
    parts = merged_linear(g, in, {heads * k, groups * k, groups * k}, m.q_bias, o, normed ? 0 : 2, "qkv");
  }
  Tensor q = view_with_node(g, parts[0], {tokens, B, Dim(heads), Dim(k)});
  Tensor key = view_with_node(g, parts[1], {tokens, B, Dim(groups), Dim(k)});
  const Tensor value = view_with_node(g, parts[2], {tokens, B, Dim(groups), Dim(k)});
  parts.clear();
  if (normed) {
    q = rms(g, q, "attention.q_norm");
    key = rms(g, key, "attention.k_norm");
  }
  const Shape joint{tokens, B, Dim(heads + groups), Dim(k)};
  Tensor placed;
  {
    const Tensor both = cat(g, {q, key}, joint, "attention.q_and_k");
    placed = rotary(g, both, m.rotary_dim);
  }
  const std::vector<Tensor> turned =
      split(g, placed, {{tokens, B, Dim(heads), Dim(k)}, {tokens, B, Dim(groups), Dim(k)}});
  q = turned[0];
  key = turned[1];
  const Tensor out = flash(g, q, key, value, o.realhf.insides);
  const Tensor flat = view_of(out, {tokens, B, Dim(heads * k)});
  names = {placed, key, value};
  return local_row_linear(g, flat, a.hidden, o.te, "c_proj");
}

/// LlamaLayerNormMLP.forward.
Tensor mlp(Eager& g, const Architecture& a, const Layer& layer, const ChunkOptions& o, const Tensor& x) {
  const std::int64_t width = layer.feed_forward.width / o.te.tensor;
  const Tensor in = rms(g, x, "mlp.norm");
  const std::vector<Tensor> parts = merged_linear(g, in, {width, width}, false, o, 0, "gate_and_up");
  Tensor active = activation(g, parts[0], "mlp.activation");
  const Tensor inner = mul(g, std::move(active), parts[1], "mlp.inner");
  return local_row_linear(g, inner, a.hidden, o.te, "down_proj");
}

/// logits /= temperature of a part of the logits, whose other rows pad what the ranks share: CopySlices clones the whole
/// gradient, the part of it for the operator, and writes that one's result back (torch/csrc/autograd/functions/tensor.cpp).
Tensor divided_part(Eager& g, const Tensor& logits) {
  Tensor base = logits.alias(logits.shape);
  g.record(base, "CopySlices", {&logits}, [&g](Gradients in) {
    Tensor result = gradient(g, "division_backward.whole", in[0].shape, in[0].dtype);
    const Tensor part = gradient(g, "division_backward.part", in[0].shape, in[0].dtype);
    const Tensor divided = gradient(g, "division_backward", in[0].shape, in[0].dtype);
    return Gradients{std::move(result)};
  });
  return base;
}
Tensor divided(Eager& g, const Tensor& logits) {
  Tensor out = logits.alias(logits.shape);
  g.record(out, "DivBackward0", {&logits},
           [&g](Gradients in) { return Gradients{gradient(g, "division_backward", in[0].shape, in[0].dtype)}; });
  return out;
}

/// _VocabParallelCrossEntropy of 16-bit logits: the softmax is a tensor of its own, and becomes the gradient.
Tensor split_cross_entropy(Eager& g, const Tensor& logits) {
  const Shape rows = with_last(logits.shape, 1);
  const Tensor softmax = g.make("loss.softmax", logits.shape, logits.dtype, Category::logits);
  Tensor loss = g.make("loss.rows", rows, logits.dtype);
  if (!g.will_record({&logits})) return loss;
  const Tensor foreign = g.make("loss.foreign", rows, DType::boolean), targets = g.make("loss.targets", rows, DType::int64);
  Saved kept = g.save(softmax), mask = g.save(foreign), columns = g.save(targets);
  g.record(loss, "VocabParallelCrossEntropyBackward", {&logits}, [kept, mask, columns](Gradients) {
    (void)mask.get();
    (void)columns.get();
    return Gradients{kept.get()};
  });
  return loss;
}

/// gather_logprobs under torch.compile: logits are kept as they are, with numbers of the rows; backward makes their gradient.
Tensor compiled_log_probs(Eager& g, const Tensor& logits) {
  const Shape rows = with_last(logits.shape, 1);
  Tensor out = g.make("log_probs", rows, logits.dtype);
  if (!g.will_record({&logits})) return out;
  const Tensor numbers = g.make("log_probs.rows", with_last(logits.shape, 2), DType::fp32);
  Saved kept = g.save(logits), by_row = g.save(numbers);
  g.record(out, "CompiledFunctionBackward", {&logits}, [&g, kept, by_row](Gradients) {
    (void)by_row.get();
    return Gradients{gradient(g, "log_probs_backward", kept.get().shape, kept.get().dtype)};
  });
  return out;
}

Tensor mean_of(Eager& g, const Tensor& rows) {
  Tensor loss = g.make("loss", {}, DType::fp32);
  const Shape whole = rows.shape;
  g.record(loss, "MeanBackward0", {&rows},
           [&g, whole](const Gradients&) { return Gradients{gradient(g, "loss_backward", whole, DType::fp32)}; });
  return loss;
}

/// OutputHead of a critic, or SequenceParallelCriticHead, which gathers the hidden states into a tensor of their own.
Tensor values(Eager& g, const Architecture& a, const ChunkOptions& o, const Tensor& hidden) {
  const Shape whole{o.te.whole(), B, Dim(a.hidden)};
  const Tensor in = scatters(o) ? moved_rows(g, hidden, whole, {}, hidden.dtype, "value_head.input") : hidden;
  Tensor out = g.make("values", with_last(whole, 1), hidden.dtype);
  if (!g.will_record({&in})) return out;
  Saved saved = g.save(in);
  g.record(out, "MmBackward0", {&in},
           [&g, saved](Gradients) { return Gradients{gradient(g, "value_head_backward", saved.get().shape, saved.get().dtype)}; });
  return to(g, out, DType::fp32, "values.fp32");
}

}  // namespace

Tensor run_realhf_layer(Eager& g, const Architecture& a, const Layer& layer, const ChunkOptions& o, const Tensor& x, bool last) {
  std::vector<Tensor> names;
  Tensor hidden;
  {
    const Tensor out = attention(g, a, layer, o, x, names);
    hidden = add(g, x, out, "block.hidden");
  }
  Tensor sum;
  {
    Tensor out = mlp(g, a, layer, o, hidden);
    sum = add(g, std::move(out), hidden, "block.out");
  }
  hidden.reset();
  if (!last) return sum;
  const Tensor normed = rms(g, sum, "ln_f");
  return normed;
}

Tensor run_realhf_head(Eager& g, const Architecture& a, const ChunkOptions& o, const Tensor& hidden, const SharedWeight& weight,
                       Tensor& logits) {
  if (o.realhf.value) return mean_of(g, values(g, a, o, hidden));
  Tensor made = megatron_output_layer(g, a, o, hidden, weight);
  logits = made.alias(made.shape);  // the stage's output
  if (o.realhf.divides) {
    Tensor next = o.realhf.padded ? divided_part(g, made) : divided(g, made);
    made = std::move(next);
  }
  if (o.realhf.padded) {
    Tensor part = slice(g, made, made.shape);
    made = std::move(part);
  }
  const Tensor rows = o.te.tensor > 1 ? split_cross_entropy(g, made) : compiled_log_probs(g, made);
  return mean_of(g, rows);
}

std::string unsupported_realhf(const Architecture& a, const ChunkOptions& o) {
  for (const auto& run : a.runs) {
    const Mixer& m = run.layer.mixer;
    if (m.kind != MixerKind::attention || run.layer.norm != NormKind::rms || m.rotary_dim != m.head_dim)
      return "realhf has llama's kind of layers: attention with rotary positions behind RMSNorm";
    if (run.layer.feed_forward.kind != FeedForwardKind::gated) return "experts of the realhf trainer are not supported yet";
    if (m.kv_heads % o.te.tensor != 0 || m.heads % o.te.tensor != 0)
      return "realhf itself asks for heads and key/value heads that the tensor-parallel ranks divide";
  }
  return {};
}

}  // namespace oomplan
