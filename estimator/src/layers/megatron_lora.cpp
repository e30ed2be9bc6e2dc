#include "layers/megatron_lora.hpp"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "layers/megatron_moe.hpp"
#include "layers/ops.hpp"

namespace oomplan {
namespace {

using namespace ops;
using axis::B;

bool gathers(const TeOptions& o) { return o.sequence_parallel && o.tensor > 1; }

/// A trained matrix: its gradient is added up inside of the product, or goes at once.
Tensor trained(Eager& g) {
  auto node = std::make_shared<Node>();
  node->name = "AccumulateGrad";
  node->sequence = kAccumulates;
  node->scope = g.scope;
  node->apply = [](Gradients) { return Gradients{}; };
  Tensor out = g.scalar(DType::bf16);
  out.grad_fn = std::move(node);
  return out;
}

/// LinearWithGradAccumulationAndAsyncCommunication of an adapter's matrix: keeps what it is given. `regathers`: that is
/// a part of the sequence, gathered for the products in the buffer that all such layers share.
Tensor product(Eager& g, const Tensor& x, const Shape& shape, const TeOptions& o, bool regathers, const std::string& name) {
  Tensor y = g.make(name, shape, x.dtype);
  const Tensor weight = trained(g);
  g.record(y, "LinearWithGradAccumulation", {&x, &weight}, [&g, saved = g.save(x), shape, o, regathers, name](Gradients) {
    const Tensor& input = saved.get();
    Gradients grads;
    Tensor whole = gradient(g, (name + "_backward").c_str(), with_last(shape, input.shape.back()), input.dtype);
    Tensor own;
    if (regathers) own = gradient(g, (name + "_backward.scattered").c_str(), input.shape, input.dtype);
    const Tensor matrix = o.fused_gradients
                              ? Tensor()
                              : gradient(g, (name + ".weight_gradient").c_str(), {shape.back(), input.shape.back()}, input.dtype);
    grads.push_back(regathers ? std::move(own) : std::move(whole));
    grads.push_back(g.scalar(DType::bf16));
    return grads;
  });
  return y;
}

/// gather_from_tensor_model_parallel_region: rows of all ranks, put side by side.
Tensor gathered_columns(Eager& g, Tensor x, std::int64_t ranks, const std::string& name) {
  if (ranks == 1) return x;
  const Shape whole = with_last(x.shape, Dim(ranks) * x.shape.back());
  const Tensor rows = g.make(name + ".rows", whole, x.dtype, Category::temporaries);
  return moved_rows(g, x, whole, {}, x.dtype, name);
}

Tensor scaled(Eager& g, const Tensor& x, const std::string& name) {
  Tensor y = g.make(name, x.shape, x.dtype);
  g.record(y, "MulBackward0", {&x},
           [&g, name](Gradients in) { return Gradients{gradient(g, (name + "_backward").c_str(), in[0].shape, in[0].dtype)}; });
  return y;
}

/// What the module gives: its result and, for the adapter, what the norm gave.
struct Projected {
  Tensor result, normed;
};

/// LayerNormLinear with frozen weights. With an adapter it returns what its norm gave: gathered, which was gathered for its own
/// product, or this rank's part. That part is kept for backward in either case, although no gradient of a weight needs it; only
/// without an adapter it is cleared.
Projected norm_column(Eager& g, const Tensor& x, NormKind kind, std::int64_t columns, const TeOptions& o, bool adapted,
                      bool regathers, const std::string& name) {
  const Shape whole = with_last({o.whole(), B, Dim(1)}, x.shape.back());
  const Shape rows = with_last(x.shape, Dim(1));
  Tensor part = g.make(name + ".norm.output", x.shape, x.dtype);
  const Tensor mean = kind == NormKind::layer ? g.make(name + ".norm.mu", rows, DType::fp32) : Tensor();
  const Tensor statistics = g.make(name + ".norm.rsigma", rows, DType::fp32);
  Tensor total = gathers(o) ? g.make(name + ".input_gathered", whole, x.dtype) : part.alias(part.shape);
  Projected out;
  out.result = g.make(name, with_last(whole, Dim(columns)), x.dtype);
  if (adapted) out.normed = regathers ? part.alias(part.shape) : total.alias(total.shape);
  total.reset();
  if (!g.will_record({&x})) return out;
  const Saved input = g.save(x), kept = adapted ? g.save(part) : Saved(), inverse = g.save(statistics),
              average = mean ? g.save(mean) : Saved();
  Tensor both = out.result.alias(out.result.shape);
  const bool scatters = gathers(o);
  g.record(
      both, "LayerNormLinear", {&x},
      [&g, input, kept, inverse, average, adapted, scatters, whole, name](Gradients) {
        const Tensor& before = input.get();
        if (adapted) (void)kept.get();
        (void)inverse.get();
        Tensor product = gradient(g, (name + "_backward").c_str(), whole, before.dtype);
        Tensor own =
            scatters ? gradient(g, (name + "_backward.scattered").c_str(), before.shape, before.dtype) : std::move(product);
        return Gradients{gradient(g, (name + ".norm_backward").c_str(), before.shape, before.dtype)};
      },
      2);
  out.result.grad_fn = both.grad_fn;
  if (adapted) {
    out.normed.grad_fn = both.grad_fn;
    out.normed.output = 1;
  }
  return out;
}

/// TELinear, column-parallel, with frozen weights: keeps nothing.
Tensor frozen_column(Eager& g, const Tensor& x, std::int64_t columns, const TeOptions& o, const std::string& name) {
  const Shape whole = with_last({o.whole(), x.shape[1], Dim(1)}, x.shape.back()), before = x.shape;
  Tensor y;
  {
    const Tensor total = gathers(o) ? g.make(name + ".input_gathered", whole, x.dtype) : x;
    y = g.make(name, with_last(total.shape, Dim(columns)), x.dtype);
  }
  g.record(y, "TELinear", {&x}, [&g, scatters = gathers(o), whole, before, name](Gradients in) {
    Tensor product = gradient(g, (name + "_backward").c_str(), scatters ? whole : before, in[0].dtype);
    return Gradients{scatters ? gradient(g, (name + "_backward.scattered").c_str(), before, in[0].dtype) : std::move(product)};
  });
  return y;
}

/// gather_from_sequence_parallel_region
Tensor gathered_rows(Eager& g, const Tensor& x, const TeOptions& o, const std::string& name) {
  if (!gathers(o)) return x;
  return moved_rows(g, x, with_last({o.whole(), x.shape[1], Dim(1)}, x.shape.back()), {}, x.dtype, name);
}

/// output[..., -gates:] = 0: the gradient is copied, and zero there.
Tensor masked(Eager& g, const Tensor& x, const std::string& name) {
  Tensor y = x.alias(x.shape);
  g.record(y, "CopySlices", {&x},
           [&g, name](Gradients in) { return Gradients{gradient(g, (name + "_backward").c_str(), in[0].shape, in[0].dtype)}; });
  return y;
}

/// Has the layer an adapter?
bool adapts(const MegatronAdapters& a, std::string_view name) {
  constexpr std::array<std::pair<std::string_view, bool MegatronAdapters::*>, 6> kLayers{
      {{"qkv", &MegatronAdapters::qkv},
       {"linear_proj", &MegatronAdapters::proj},
       {"fc1", &MegatronAdapters::fc1},
       {"fc2", &MegatronAdapters::fc2},
       {"in_proj", &MegatronAdapters::in_proj},
       {"out_proj", &MegatronAdapters::out_proj}}};
  const auto* const found = std::ranges::find_if(kLayers, [name](const auto& row) { return name.ends_with(row.first); });
  return found != kLayers.end() && a.*found->second;
}

/// TELinear, row-parallel, with frozen weights: keeps nothing.
Tensor frozen_row(Eager& g, const Tensor& x, std::int64_t columns, const TeOptions& o, const std::string& name) {
  const bool scatters = gathers(o);
  Tensor y;
  {
    Tensor product = g.make(scatters ? name + ".partial" : name, with_last(x.shape, Dim(columns)), x.dtype);
    y = scatters ? g.make(name, {axis::S, B, Dim(columns)}, x.dtype) : std::move(product);
  }
  const Shape whole = with_last(x.shape, Dim(columns)), before = x.shape;
  g.record(y, "TELinear", {&x}, [&g, scatters, whole, before, name](Gradients in) {
    const Tensor gathered = scatters ? g.make(name + ".gradient_gathered", whole, in[0].dtype, Category::temporaries) : Tensor();
    return Gradients{gradient(g, (name + "_backward").c_str(), before, in[0].dtype)};
  });
  return y;
}

bool targets(const Trainer& t, const char* name) {
  const auto& given = t.lora.targets;
  return given.empty() || std::find(given.begin(), given.end(), name) != given.end();
}

}  // namespace

// Every result takes the name of the one before.
Tensor column_adapter(Eager& g, Tensor x, std::int64_t columns, const TeOptions& o, const MegatronAdapters& a,
                      const std::string& name) {
  const bool regathers = a.regathers && gathers(o);
  const std::int64_t own = a.rank / o.tensor;
  x = product(g, x, {o.whole(), B, Dim(own)}, o, regathers, name + ".linear_in");
  x = gathered_columns(g, x, o.tensor, name + ".linear_in.gathered");
  x = product(g, x, {o.whole(), B, Dim(columns)}, o, false, name + ".linear_out");
  return scaled(g, x, name + ".scaled");
}

Tensor row_adapter(Eager& g, Tensor x, std::int64_t columns, const TeOptions& o, const MegatronAdapters& a,
                   const std::string& name) {
  const Dim tokens = x.shape[0];
  x = product(g, x, {tokens, B, Dim(a.rank)}, o, false, name + ".linear_in");  // summed over the ranks in place
  // the layer gathers while it has its input
  x = gathered_columns(g, product(g, x, {tokens, B, Dim(columns / o.tensor)}, o, false, name + ".linear_out"), o.tensor,
                       name + ".linear_out.gathered");
  if (gathers(o)) {  // a view of this rank's rows
    const Shape whole = x.shape;
    Tensor part = x.alias({axis::S, B, Dim(columns)});
    g.record(part, "ScatterToSequenceParallelRegion", {&x}, [&g, whole, name](Gradients in) {
      return Gradients{gradient(g, (name + "_backward.gathered").c_str(), whole, in[0].dtype)};
    });
    x = std::move(part);
  }
  return scaled(g, x, name + ".scaled");
}

Tensor adapted_experts(Eager& g, const Tensor& base, const Tensor& x, const TeOptions& o, const MegatronAdapters& a,
                       const std::string& name) {
  Tensor y = product(g, x, with_last(x.shape, Dim(a.rank)), o, false, name + ".adapter.linear_in");
  y = product(g, y, base.shape, o, false, name + ".adapter.linear_out");
  y = scaled(g, y, name + ".adapter.scaled");
  return add(g, base, y, name + ".with_adapter");
}

MegatronAdapters megatron_adapters(const Trainer& t) {
  if (t.lora.rank == 0) return {};
  const bool named = !t.lora.targets.empty();  // Megatron-Bridge's own four otherwise
  return {.rank = t.lora.rank,
          .qkv = targets(t, "linear_qkv"),
          .proj = targets(t, "linear_proj"),
          .fc1 = targets(t, "linear_fc1"),
          .fc2 = targets(t, "linear_fc2"),
          .in_proj = named && targets(t, "in_proj"),
          .out_proj = named && targets(t, "out_proj"),
          .tower = t.lora.scope == AdapterScope::all,
          .masked_gates = t.lora.masked_gates,
          .regathers = t.megatron.input_regather};
}

Tensor adapted_norm_column(Eager& g, const Tensor& x, NormKind kind, std::int64_t columns, const TeOptions& o,
                           const MegatronAdapters& a, const std::string& name) {
  const bool adapted = adapts(a, name);
  const Projected base = norm_column(g, x, kind, columns, o, adapted, a.regathers, name);
  if (!adapted) return base.result;
  Tensor beside = column_adapter(g, base.normed, columns, o, a, name + ".adapter");
  if (a.masked_gates && name == "in_proj") beside = masked(g, beside, name + ".adapter.masked");
  return add(g, base.result, beside, name + ".with_adapter");
}

Tensor adapted_column(Eager& g, const Tensor& x, std::int64_t columns, const TeOptions& o, const MegatronAdapters& a,
                      const std::string& name) {
  Tensor base = frozen_column(g, x, columns, o, name);
  if (!adapts(a, name)) return base;
  const Tensor beside = column_adapter(g, gathered_rows(g, x, o, name + ".adapter.gathered"), columns, o, a, name + ".adapter");
  return add(g, base, beside, name + ".with_adapter");
}

Tensor adapted_row(Eager& g, const Tensor& x, std::int64_t columns, const TeOptions& o, const MegatronAdapters& a,
                   const std::string& name) {
  Tensor base = frozen_row(g, x, columns, o, name);
  if (!adapts(a, name)) return base;
  const Tensor beside = row_adapter(g, x, columns, o, a, name + ".adapter");
  return add(g, base, beside, name + ".with_adapter");
}

}  // namespace oomplan
