// MoELayer of Megatron-core: router, alltoall dispatcher, grouped experts, shared experts.
//
// megatron/core/transformer/moe/{moe_layer,router,moe_utils,token_dispatcher,experts,shared_experts}.py, 0.16.1; permutation and
// grouped products are Transformer Engine's (pytorch/permutation.py, pytorch/module/grouped_linear.py, 2.11). Routing is taken as
// even.
//
// Legend: T tokens of this rank, E experts, k experts a token, R = T k (x ranks that split an expert) rows that this rank's
// experts get, w width of an expert, h hidden.
#include "layers/megatron.hpp"
#include "layers/ops.hpp"

namespace oomplan {
namespace {

using namespace ops;
using axis::B;

struct RoutedSizes {
  Dim tokens, routed, rows;  ///< T, T k, R
  std::int64_t experts = 0, local = 0, top = 0, width = 0, hidden = 0;
  bool gathers = false;  ///< several ranks split an expert
  bool exchanges = false;
};
RoutedSizes sizes_of(const Architecture& a, const FeedForward& f, const ChunkOptions& o) {
  RoutedSizes s;
  s.tokens = B * axis::S;
  s.routed = s.tokens * Dim(f.experts_per_token);
  s.rows = s.routed * Dim(o.expert_tensor);
  s.experts = f.experts;
  s.local = f.experts / o.expert;
  s.top = f.experts_per_token;
  s.width = f.expert_width / o.expert_tensor;
  s.hidden = a.hidden;
  s.gathers = o.expert_tensor > 1;
  s.exchanges = o.expert > 1;
  return s;
}

/// A tensor whose gradient is one tensor of its input's shape.
Tensor step(Eager& g, const Tensor& x, Shape shape, const std::string& name, DType dtype) {
  Tensor y = g.make(name, std::move(shape), dtype);
  const Shape before = x.shape;
  const DType format = x.dtype;
  g.record(y, "Backward", {&x}, [&g, name, before, format](Gradients) {
    return Gradients{gradient(g, (name + "_backward").c_str(), before, format)};
  });
  return y;
}

struct ScatteredRouting {
  Tensor probabilities;  ///< [T, E], scattered
};

/// TopKRouter.forward with an auxiliary loss: its scores are a softmax of their own.
ScatteredRouting route_scattered(Eager& g, const FeedForward& f, const ChunkOptions& o, const RoutedSizes& s, const Tensor& x) {
  const DType dtype = o.settings.router;
  const Shape all{s.tokens, Dim(s.experts)}, top{s.tokens, Dim(s.top)};
  Tensor logits = g.make("router.logits", all, dtype);
  if (g.will_record({&x})) {
    Saved saved = g.save(x);
    g.record(logits, "RouterGatingLinear", {&x}, [&g, saved, dtype](Gradients) {
      const Tensor& input = saved.get();
      Tensor wide = dtype == DType::bf16 ? Tensor() : gradient(g, "router_backward.fp32", input.shape, dtype);
      return Gradients{gradient(g, "router_backward", input.shape, DType::bf16)};
    });
  }
  Tensor chosen;
  // a division of the top k by their sum is Megatron's softmax behind the choice
  if (f.score == RouterScore::softmax && !f.normalise_top_k) {
    Tensor scores = softmax(g, logits, DType::fp32, "router.scores");
    if (dtype != DType::fp32) scores = to(g, std::move(scores), dtype, "router.scores_cast");
    chosen = topk(g, scores, top, "router.top").values;
  } else {
    Tensor best = topk(g, logits, top, "router.top").values;
    Tensor probabilities = softmax(g, std::move(best), DType::fp32, "router.top_probabilities");
    chosen = dtype == DType::fp32 ? std::move(probabilities) : to(g, std::move(probabilities), dtype, "router.top_cast");
  }
  ScatteredRouting out;
  out.probabilities = step(g, chosen, all, "router.probabilities", dtype);
  {  // scores of the auxiliary loss
    Tensor scores = softmax(g, logits, DType::fp32, "router.aux_scores");
    const TopK best = topk(g, scores, top, "router.aux_top");
    Tensor loss = g.scalar(DType::fp32);
    g.record(loss, "SumBackward", {&scores},
             [&g, all](Gradients) { return Gradients{gradient(g, "aux_loss_backward", all, DType::fp32)}; });
    const Tensor before = out.probabilities;
    Tensor carried = before.alias(before.shape);
    g.record(carried, "MoEAuxLossAutoScaler", {&before, &loss},
             [&g](Gradients in) { return Gradients{in[0], g.scalar(DType::fp32)}; });
    out.probabilities = std::move(carried);
  }
  return out;
}

/// Rows and their probabilities move together.
struct Rows {
  Tensor tokens, weights;
};

/// One function with two outputs, whose gradients are tensors of the inputs' shapes. `map`: saved.
Rows moved(Eager& g, const Rows& in, Dim rows, std::int64_t hidden, const Tensor& map, const std::string& name) {
  Rows out{g.make(name, {rows, Dim(hidden)}, DType::bf16), g.make(name + ".probabilities", {rows}, in.weights.dtype)};
  if (!g.will_record({&in.tokens, &in.weights})) return out;
  Saved saved = map ? g.save(map) : Saved();
  const Shape tokens = in.tokens.shape, weights = in.weights.shape;
  const DType format = in.weights.dtype;
  Tensor joint = out.tokens.alias(out.tokens.shape);
  g.record(
      joint, name.c_str(), {&in.tokens, &in.weights},
      [&g, saved, tokens, weights, format, name](Gradients) {
        (void)saved.get();
        Gradients grads;
        grads.push_back(gradient(g, (name + "_backward").c_str(), tokens, DType::bf16));
        grads.push_back(gradient(g, (name + "_backward.probabilities").c_str(), weights, format));
        return grads;
      },
      2);
  out.tokens.grad_fn = out.weights.grad_fn = joint.grad_fn;
  out.weights.output = 1;
  return out;
}

/// A row map that a fused sort makes and keeps.
Tensor sorted_map(Eager& g, Dim rows, const std::string& name) { return g.make(name, {rows}, DType::fp32); }

/// GroupedLinear: one product after another over views of the rows.
Tensor grouped_linear(Eager& g, const Tensor& x, std::int64_t out, std::int64_t local, const TeOptions& te,
                      const std::string& name) {
  Tensor y = g.make(name, {x.shape[0], Dim(out)}, DType::bf16);
  if (!g.will_record({&x})) return y;
  Saved saved = g.save(x);
  g.record(y, "GroupedLinear", {&x}, [&g, saved, out, local, te, name](Gradients) {
    const Tensor& input = saved.get();
    Tensor product = gradient(g, (name + "_backward").c_str(), input.shape, DType::bf16);
    const Tensor weights = te.fused_gradients ? Tensor()
                                              : gradient(g, (name + ".weight_gradients").c_str(),
                                                         {Dim(local), Dim(out), input.shape[1]}, DType::bf16);
    return Gradients{std::move(product)};
  });
  return y;
}

/// TEGroupedMLP: the probabilities are a factor of the activation.
Tensor experts(Eager& g, const Rows& in, const RoutedSizes& s, const ChunkOptions& o) {
  Tensor inner = grouped_linear(g, in.tokens, 2 * s.width, s.local, o.te, "experts.linear_fc1");
  Tensor active = g.make("experts.activation", {s.rows, Dim(s.width)}, DType::bf16);
  if (g.will_record({&inner, &in.weights})) {
    Saved product = g.save(inner), weights = g.save(in.weights);
    g.record(active, "WeightedSwiGLU", {&inner, &in.weights}, [&g, product, weights](Gradients) {
      Gradients grads;
      grads.push_back(gradient(g, "experts.activation_backward", product.get().shape, DType::bf16));
      grads.push_back(gradient(g, "experts.probabilities_backward", weights.get().shape, weights.get().dtype));
      return grads;
    });
  }
  return grouped_linear(g, active, s.hidden, s.local, o.te, "experts.linear_fc2");
}

/// MoELayer.forward's own frame: what was permuted and what was exchanged stay names of it until the tokens are put together
/// again.
Tensor routed(Eager& g, const RoutedSizes& s, const ChunkOptions& o, const Tensor& x, Tensor probabilities) {
  Tensor map = g.make("permutation_map", {s.tokens, Dim(2 * s.experts + 1)}, DType::fp32);
  const Rows permuted = moved(g, {x, std::move(probabilities)}, s.routed, s.hidden, map, "permuted");
  const Rows arrived = s.exchanges ? moved(g, permuted, s.routed, s.hidden, {}, "exchanged") : permuted;
  Tensor output;
  {
    Rows local = s.gathers ? moved(g, arrived, s.rows, s.hidden, {}, "gathered") : arrived;
    if (s.local > 1) {
      const Tensor order = sorted_map(g, s.rows, "sort_map");
      local = moved(g, local, s.rows, s.hidden, order, "sorted");
    }
    Tensor computed = experts(g, local, s, o);
    output = computed;
    if (s.local > 1) {
      Tensor order = sorted_map(g, s.rows, "restore_map");
      Tensor restored = g.make("restored", computed.shape, DType::bf16);
      if (g.will_record({&computed})) {
        Saved saved = g.save(order);
        g.record(restored, "SortChunks", {&computed}, [&g, saved](Gradients in) {
          (void)saved.get();
          return Gradients{gradient(g, "restored_backward", in[0].shape, DType::bf16)};
        });
      }
      output = std::move(restored);
    }
    if (s.gathers) {  // in the router's format
      const DType format = o.settings.router;
      Tensor wide = to(g, output, format, "scatter_input");
      Tensor scattered = step(g, wide, {s.routed, Dim(s.hidden)}, "scattered", format);
      wide.reset();
      output = to(g, std::move(scattered), DType::bf16, "scattered_cast");
    }
  }
  if (s.exchanges) output = step(g, output, {s.routed, Dim(s.hidden)}, "combined", DType::bf16);
  Tensor whole = g.make("unpermuted", x.shape, DType::bf16);
  if (g.will_record({&output})) {
    Saved saved = g.save(map);
    const Shape before = output.shape;
    g.record(whole, "ModuleUnpermute", {&output}, [&g, saved, before](Gradients) {
      (void)saved.get();
      return Gradients{gradient(g, "unpermuted_backward", before, DType::bf16)};
    });
  }
  return whole;
}

/// SharedExpertMLP without overlap: an MLP whose norm stands outside.
Tensor shared_experts(Eager& g, const Architecture& a, const FeedForward& f, const ChunkOptions& o, const Tensor& x) {
  const std::int64_t width = f.shared_width / o.te.tensor;
  Tensor inner = te_column_linear(g, x, 2 * width, o.te, "shared_experts.linear_fc1");
  Tensor active = g.make("shared_experts.activation", with_last(inner.shape, Dim(width)), DType::bf16);
  if (g.will_record({&inner})) {
    Saved saved = g.save(inner);
    g.record(active, "BiasSwiGLU", {&inner}, [&g, saved](Gradients) {
      return Gradients{gradient(g, "shared_experts.activation_backward", saved.get().shape, DType::bf16)};
    });
  }
  inner.reset();
  return te_row_linear(g, active, a.hidden, o.te, "shared_experts.linear_fc2");
}

}  // namespace

Tensor run_megatron_moe(Eager& g, const Architecture& a, const Layer& layer, const ChunkOptions& o, const Tensor& x) {
  const FeedForward& f = layer.feed_forward;
  const RoutedSizes s = sizes_of(a, f, o);
  const Tensor normed = te_norm(g, x, layer.norm, "pre_mlp_layernorm");
  const auto body = [&g, &a, &f, &o, s](const Tensor& in) {  // runs again in backward
    Tensor shared;
    const auto always = [&g, &a, &f, &o](const Tensor& given) { return shared_experts(g, a, f, o, given); };
    if (f.shared_width > 0) shared = recomputes(o, "shared_experts") ? g.checkpoint_reentrant(in, always) : always(in);
    ScatteredRouting routing = route_scattered(g, f, o, s, in);
    Tensor output = routed(g, s, o, in, std::move(routing.probabilities));
    return shared ? add(g, output, shared, "with_shared_experts") : output;
  };
  return recomputes(o, "moe") ? g.checkpoint_reentrant(normed, body) : body(normed);
}

}  // namespace oomplan
