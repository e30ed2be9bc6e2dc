#include "layers/fla.hpp"

#include "layers/ops.hpp"
#include "layers/ops_state.hpp"

namespace oomplan::fla {
namespace {

using axis::B;

Tensor temporary(Eager& g, const char* name, Shape shape, DType dtype) {
  return g.make(name, std::move(shape), dtype, Category::temporaries);
}

/// input_guard: x.contiguous().
Tensor guarded(Eager& g, const Tensor& x, bool copies, const std::string& name) {
  return copies ? g.make(name + ".contiguous", x.shape, x.dtype) : x;
}

/// l2norm_fwd, of rows.
struct Normed {
  Tensor y, rstd;
};
Normed normed(Eager& g, const Tensor& x, const std::string& name) {
  Normed out;
  const Dim rows = elements(Shape(x.shape.begin(), x.shape.end() - 1));
  out.y = ops::view(g.make(name, {rows, x.shape.back()}, x.dtype), x.shape);
  out.rstd = g.make(name + ".rstd", {rows}, DType::fp32);
  return out;
}

/// Shapes of the rule, by token.
struct RuleShapes {
  Shape keys, values, rates, pairs, states;
  Shape passed, first, borders;  ///< between ranks: what each gives, the first sequence's state, those of all sequences
  explicit RuleShapes(const Rule& r)
      : keys{B, r.tokens, r.heads, r.key_dim},
        values{B, r.tokens, r.heads, r.value_dim},
        rates{B, r.tokens, r.heads},
        pairs{B, r.tokens, r.heads, Dim(kChunk)},
        states{B, Dim(r.chunks), r.heads, r.key_dim, r.value_dim},
        passed{r.heads, r.key_dim, Dim(r.key_dim.coefficient + r.value_dim.coefficient)},
        first{Dim(1), r.heads, r.key_dim, r.value_dim},
        borders{Dim(r.sequences), r.heads, r.key_dim, r.value_dim} {}
};

/// What the rule keeps, in the order of save_for_backward.
struct Kept {
  Normed query, key;
  Tensor value, decay, beta, pairs, state;
};

/// chunk_gated_delta_rule_fwd_h_pre_process and the same of backward: states of this rank's sequences that come from others.
Tensor exchanged_states(Eager& g, const Rule& r, const RuleShapes& s, const std::string& name) {
  if (r.ranks == 1) return {};
  Tensor own = temporary(g, (name + ".passed").c_str(), s.passed, DType::fp32);
  Tensor states = temporary(g, (name + ".states").c_str(), s.borders, DType::fp32);
  Shape all = s.passed;
  all.insert(all.begin(), Dim(r.ranks));
  Tensor gathered = g.make(name + ".gathered", std::move(all), DType::fp32, Category::communication);
  return states;
}

/// ChunkGatedDeltaRuleFunction.forward: names of chunk_gated_delta_rule_fwd go with it.
Tensor run_forward(Eager& g, const Rule& r, Kept& kept) {
  const RuleShapes s(r);
  const DType dtype = kept.query.y.dtype;
  Tensor cumulated = g.make("rule.decay_cumulated", s.rates, DType::fp32);
  kept.decay = std::move(cumulated);
  kept.pairs = g.make("rule.A", s.pairs, dtype);
  Tensor w = temporary(g, "rule.w", s.keys, dtype);
  Tensor u = temporary(g, "rule.u", s.values, dtype);
  kept.state = exchanged_states(g, r, s, "rule.exchange");
  Tensor h = temporary(g, "rule.h", s.states, dtype);
  Tensor v_new = temporary(g, "rule.v_new", s.values, dtype);
  if (kept.state && r.sequences > 1) {  // compress_h0: only the first sequence began on another rank
    Tensor first = g.make("rule.state", s.first, DType::fp32);
    kept.state = std::move(first);
  }
  return g.make("rule.o", s.values, dtype);
}

/// Gradients of what the rule reads: normed queries and keys, where it norms them.
struct RuleGradients {
  Tensor query, key, value, decay, beta;
};

/// A tile of the keys' dims has a row of the decay's gradients of its own: 128 of them on Hopper and later (chunk_o.py
/// chunk_bwd_dqkwg); on others there are more rows, of which none is there at the highest level.
std::int64_t tiles_of(Dim key_dim) { return ceil_div(key_dim.coefficient, 128); }

/// chunk_gated_delta_rule_bwd: w, u, h and v_new are made anew.
RuleGradients run_backward(Eager& g, const Rule& r, DType dtype) {
  const RuleShapes s(r);
  RuleGradients d;
  Tensor w = temporary(g, "rule_backward.w", s.keys, dtype);
  Tensor u = temporary(g, "rule_backward.u", s.values, dtype);
  Tensor begins = r.ranks > 1 && r.sequences > 1 ? temporary(g, "rule_backward.states", s.borders, DType::fp32) : Tensor();
  Tensor h = temporary(g, "rule_backward.h", s.states, dtype);
  Tensor v_new = temporary(g, "rule_backward.v_new", s.values, dtype);
  Tensor inner = temporary(g, "rule_backward.dv_local", s.values, dtype);
  Tensor ends = exchanged_states(g, r, s, "rule_backward.exchange");
  begins.reset();
  Tensor dh = temporary(g, "rule_backward.dh", s.states, dtype);
  Tensor next = temporary(g, "rule_backward.dv_new", s.values, dtype);
  inner = std::move(next);
  d.query = temporary(g, "rule_backward.dq", s.keys, dtype);
  d.key = temporary(g, "rule_backward.dk", s.keys, dtype);
  Tensor dw;
  {
    Tensor tiles = temporary(g, "rule_backward.dg_tiles", {Dim(tiles_of(r.key_dim)), B, r.tokens, r.heads}, DType::fp32);
    dw = temporary(g, "rule_backward.dw", s.keys, dtype);
    d.decay = temporary(g, "rule_backward.dg", s.rates, DType::fp32);
  }
  Tensor more_key = temporary(g, "rule_backward.dk_of_w", s.keys, dtype);
  d.value = temporary(g, "rule_backward.dv", s.values, dtype);
  Tensor more_decay = temporary(g, "rule_backward.dg_of_w", s.rates, DType::fp32);
  d.beta = temporary(g, "rule_backward.dbeta", s.rates, dtype);
  inner.reset();
  Tensor cumulated = temporary(g, "rule_backward.dg_cumulated", s.rates, DType::fp32);
  d.decay = std::move(cumulated);
  return d;
}

}  // namespace

std::int64_t chunks_of(std::int64_t tokens, const std::vector<std::int64_t>& lengths) {
  if (lengths.empty()) return ceil_div(tokens, kChunk);
  std::int64_t chunks = 0;
  for (const std::int64_t length : lengths) chunks += ceil_div(length, kChunk);
  return chunks;
}

Tensor chunk_gated_delta_rule(Eager& g, const Rule& r, const RuleInput& in) {
  Kept kept;
  Tensor out;
  {
    Tensor query = guarded(g, in.query, r.copies_query, "rule.q"), key = guarded(g, in.key, r.copies_key, "rule.k");
    kept.value = guarded(g, in.value, r.copies_value, "rule.v");
    kept.beta = in.beta;
    kept.query = r.norms ? normed(g, query, "rule.q_normed") : Normed{query, {}};
    kept.key = r.norms ? normed(g, key, "rule.k_normed") : Normed{key, {}};
    out = run_forward(g, r, kept);
  }
  if (!g.will_record({&in.query, &in.key, &in.value, &in.decay, &in.beta})) return out;
  std::vector<Saved> saved;
  for (const Tensor* one : {&kept.query.y, &kept.query.rstd, &kept.key.y, &kept.key.rstd, &kept.value, &kept.decay, &kept.beta,
                            &kept.pairs, &kept.state})
    if (*one) saved.push_back(g.save(*one));
  const DType dtype = out.dtype;
  g.record(out, "ChunkGatedDeltaRuleFunctionBackward", {&in.query, &in.key, &in.value, &in.decay, &in.beta},
           [&g, r, saved, dtype](const Gradients&) {
             for (const Saved& one : saved) (void)one.get();
             RuleGradients d = run_backward(g, r, dtype);
             for (Tensor* one : {&d.query, &d.key}) {
               if (!r.norms) break;
               Tensor of_input = temporary(g, "rule_backward.l2norm", one->shape, dtype);
               *one = std::move(of_input);
             }
             return Gradients{d.query, d.key, d.value, d.decay, d.beta};
           });
  return out;
}

Tensor l2norm(Eager& g, const Tensor& x, bool copied, const std::string& name) {
  Normed out;
  {
    const Tensor whole = guarded(g, x, copied, name);
    out = normed(g, whole, name);
  }
  Tensor y = out.y;
  if (!g.will_record({&x})) return y;
  Saved saved_y = g.save(out.y), saved_rstd = g.save(out.rstd);
  g.record(y, "L2NormFunctionBackward", {&x}, [&g, saved_y, saved_rstd, name](const Gradients&) {
    (void)saved_rstd.get();
    return Gradients{g.make(name + ".backward", saved_y.get().shape, saved_y.get().dtype, Category::temporaries)};
  });
  return y;
}

Tensor rms_norm_gated(Eager& g, const Tensor& x, const Tensor& gate, int weight, bool gate_copied, std::int64_t multiprocessors,
                      const std::string& name) {
  Tensor w = g.leaf(weight);
  const Tensor open = guarded(g, gate, gate_copied, name + ".gate");
  Tensor out = g.make(name + ".output", x.shape, x.dtype);
  Tensor root = g.make(name + ".rstd", Shape(x.shape.begin(), x.shape.end() - 1), DType::fp32);
  if (!g.will_record({&x, &gate, &w})) return out;
  const Saved saved = g.save(x), saved_gate = g.save(open), saved_weight = g.save(w), saved_root = g.save(root);
  const bool for_w = w.needs_grad();
  const Shape width = w.shape;
  const DType format = w.dtype;
  g.record(out, "LayerNormGatedFunctionBackward", {&x, &gate, &w}, [=, &g](const Gradients&) {
    (void)saved_weight.get();
    (void)saved_root.get();
    const Shape rows = saved.get().shape;
    const DType dtype = saved.get().dtype;
    Gradients grads(3);
    grads[0] = g.make(name + ".backward", rows, dtype, Category::temporaries);
    grads[1] = g.make(name + ".gate_backward", saved_gate.get().shape, dtype, Category::temporaries);
    Tensor every = g.make(name + ".weight_gradients", {Dim(multiprocessors), width[0]}, DType::fp32, Category::temporaries);
    Tensor sum = g.row_sum(every, width, name + ".weight_gradient", Category::gradients);
    Tensor cast = ops::to(g, std::move(sum), format, name + ".weight_gradient");
    if (for_w) grads[2] = std::move(cast);
    return grads;
  });
  return out;
}

Tensor causal_conv1d(Eager& g, const Tensor& x, int weight, const Tensor& sequences, const std::string& name) {
  Tensor w = g.leaf(weight);
  Tensor out = g.make(name, x.shape, x.dtype);
  if (!g.will_record({&x, &w})) return out;
  const Saved saved = g.save(x), saved_weight = g.save(w), saved_sequences = sequences ? g.save(sequences) : Saved();
  const bool for_w = w.needs_grad();
  g.record(out, "CausalConv1dFnBackward", {&x, &w}, [=, &g, shape = w.shape, format = w.dtype](const Gradients&) {
    (void)saved_weight.get();
    if (sequences) (void)saved_sequences.get();
    Gradients grads(2);
    grads[0] = g.make(name + ".backward", saved.get().shape, saved.get().dtype, Category::temporaries);
    Tensor wide = g.make(name + ".weight_gradient_fp32", shape, DType::fp32, Category::gradients);
    Tensor cast = ops::to(g, std::move(wide), format, name + ".weight_gradient");
    if (for_w) grads[1] = std::move(cast);
    return grads;
  });
  return out;
}

Tensor short_convolution(Eager& g, const Tensor& x, const Tensor& weight, std::int64_t chunks, std::int64_t kernel) {
  Tensor y = g.make("conv1d", x.shape, x.dtype);
  if (!g.will_record({&x, &weight})) return y;
  const Saved saved = g.save(x), saved_weight = g.save(weight);
  g.record(y, "CausalConv1dFunctionBackward", {&x, &weight}, [=, &g, shape = x.shape](const Gradients&) {
    (void)saved.get();
    (void)saved_weight.get();
    const Dim channels = shape.back();
    Tensor plain = temporary(g, "conv1d_backward.without_silu", shape, DType::bf16);
    Gradients grads(2);
    grads[0] = temporary(g, "conv1d_backward", shape, DType::bf16);
    Tensor tiles = temporary(g, "conv1d_backward.weight_tiles", {B, Dim(chunks), channels, Dim(kernel)}, DType::fp32);
    Tensor sum = temporary(g, "conv1d_backward.weight_fp32", {channels, Dim(kernel)}, DType::fp32);
    tiles.reset();
    grads[1] = temporary(g, "conv1d_backward.weight", {channels, Dim(kernel)}, DType::bf16);
    return grads;
  });
  return y;
}

}  // namespace oomplan::fla
