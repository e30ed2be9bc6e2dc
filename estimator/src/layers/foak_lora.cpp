#include "layers/foak_lora.hpp"

#include <string>
#include <utility>

#include "layers/ops.hpp"

namespace oomplan::foak {
namespace {

constexpr Category kScratch = Category::temporaries;

/// A matrix with its pair, and the widths of its sides.
struct Pair {
  int weight = -1, in = -1, out = -1;
  Dim rank, from, to;
  std::string name;
};

Pair pair_of(const Eager& g, int weight, std::string name) {
  const Leaf& base = g.leaves[static_cast<std::size_t>(weight)];
  const Leaf& first = g.leaves[static_cast<std::size_t>(base.low_rank_in)];
  return {weight, base.low_rank_in, base.low_rank_out, first.shape[0], base.unpacked[1], base.unpacked[0], std::move(name)};
}

bool gptq(const Eager& g) { return g.packed.format == BaseFormat::gptq; }

/// fast_dequantize; dequant248. Scales of bitsandbytes are rebuilt beside the matrix and gone behind it.
Tensor unpacked(Eager& g, const Pair& p) {
  const Shape& whole = g.leaves[static_cast<std::size_t>(p.weight)].unpacked;
  Tensor out = g.make(p.name + ".unpacked", whole, g.packed.dequantised, kScratch);
  if (!gptq(g))
    Tensor scales = g.make(p.name + ".absmax", {ceil_div(elements(whole).coefficient, kPackedBlock)}, DType::fp32, kScratch);
  return out;
}

/// A matrix of the pair in the format of x; nothing where it has it already.
Tensor cast(Eager& g, int leaf, DType dtype, const std::string& name) {
  const Leaf& l = g.leaves[static_cast<std::size_t>(leaf)];
  return l.dtype == dtype ? Tensor() : g.make(name, l.shape, dtype, kScratch);
}

/// `(s * m.to(dtype))`.
Tensor scaled(Eager& g, int leaf, DType dtype, const std::string& name) {
  const Tensor narrow = cast(g, leaf, dtype, name + ".cast");
  return g.make(name + ".scaled", g.leaves[static_cast<std::size_t>(leaf)].shape, dtype, kScratch);
}

/// The pair's product, added in place.
void add_low_rank(Eager& g, const Pair& p, DType dtype, Dim rows) {
  Tensor low;
  {
    const Tensor narrow = cast(g, p.in, dtype, p.name + ".lora_A.cast");
    low = g.make(p.name + ".lora_A", {rows, p.rank}, dtype, kScratch);
  }
  const Tensor times = scaled(g, p.out, dtype, p.name + ".lora_B");
  const Tensor product = g.make(p.name + ".lora_B", {rows, p.to}, dtype, kScratch);
}

/// matmul_lora. `matrix`: given already, and held by the caller; `dropped`: what the pair multiplies.
Tensor product(Eager& g, const Tensor& x, const Pair& p, Dim rows, Tensor matrix, Tensor& dropped) {
  const bool held = static_cast<bool>(matrix);
  if (!held) matrix = unpacked(g, p);
  Tensor out = g.make(p.name, {rows, p.to}, x.dtype);
  if (!held) matrix.reset();
  dropped = g.low_rank_dropout ? ops::dropout(g, x, p.name + ".lora_dropout") : x;
  add_low_rank(g, p, x.dtype, rows);
  return out;
}

/// Gradients of a pair, as [r, in] and [out, r], in the format of x.
void pair_gradients(Eager& g, const Pair& p, DType dtype, Dim rows, Tensor& in, Tensor& out) {
  {
    Tensor low;
    {
      const Tensor narrow = cast(g, p.out, dtype, p.name + ".lora_B.cast");
      low = g.make(p.name + ".lora_B_backward", {rows, p.rank}, dtype, kScratch);
    }
    in = g.make(p.name + ".lora_A.gradient", {p.rank, p.from}, dtype, Category::gradients);
  }
  Tensor low;
  {
    const Tensor narrow = cast(g, p.in, dtype, p.name + ".lora_A.cast");
    low = g.make(p.name + ".lora_A_again", {p.rank, rows}, dtype, kScratch);
  }
  out = g.make(p.name + ".lora_B.gradient", {p.to, p.rank}, dtype, Category::gradients);
}

/// `dX += (dropped != 0) * (dY @ B @ (s * A))`.
void add_pair_gradient(Eager& g, const Pair& p, DType dtype, Dim rows) {
  const Shape whole{rows, p.from};
  const Tensor mask = g.make(p.name + ".kept", whole, DType::boolean, kScratch);
  Tensor product;
  {
    Tensor low;
    {
      const Tensor narrow = cast(g, p.out, dtype, p.name + ".lora_B.cast");
      low = g.make(p.name + ".lora_B_backward", {rows, p.rank}, dtype, kScratch);
    }
    const Tensor times = scaled(g, p.in, dtype, p.name + ".lora_A");
    product = g.make(p.name + ".lora_backward", whole, dtype, kScratch);
  }
  const Tensor masked = g.make(p.name + ".lora_masked", whole, dtype, kScratch);
}

/// The gradient of x: bitsandbytes' LoRA_QKV writes it over x; the first matrix's product begins it, the others are added.
Tensor input_gradient(Eager& g, const std::vector<Pair>& pairs, const Tensor& x, Dim rows, bool over_x) {
  Tensor sum;
  for (const Pair& p : pairs) {
    {
      const Tensor matrix = unpacked(g, p);
      if (sum)
        const Tensor more = g.make(p.name + ".mm_backward", {rows, p.from}, x.dtype, kScratch);
      else
        sum = over_x ? x.alias(x.shape) : g.make(p.name + ".mm_backward", {rows, p.from}, x.dtype, kScratch);
    }
    add_pair_gradient(g, p, x.dtype, rows);
  }
  sum.shape = x.shape;
  return sum;
}

/// Both functions. Outputs are in the order of the pairs.
std::vector<Tensor> run(Eager& g, const Tensor& x, const std::vector<Pair>& pairs, const char* node, bool over_x) {
  const Dim rows = elements({x.shape[0], x.shape[1]});
  const bool grad = std::exchange(g.grad_enabled, false);  // inside of a function's forward
  std::vector<Tensor> outs, dropped(pairs.size());
  {
    std::vector<Tensor> matrices(pairs.size());
    if (gptq(g))  // all of them are unpacked first, and are names until the function returns
      for (std::size_t i = 0; i < pairs.size(); ++i) matrices[i] = unpacked(g, pairs[i]);
    for (std::size_t i = 0; i < pairs.size(); ++i) {
      outs.push_back(product(g, x, pairs[i], rows, matrices[i], dropped[i]));
      outs[i].shape = with_last(x.shape, pairs[i].to);
    }
  }
  g.grad_enabled = grad;
  std::vector<Tensor> leaves;
  for (const Pair& p : pairs) {
    leaves.push_back(g.leaf(p.in));
    leaves.push_back(g.leaf(p.out));
  }
  std::vector<const Tensor*> inputs{&x};
  for (const Tensor& leaf : leaves) inputs.push_back(&leaf);
  if (!g.will_record(inputs)) return outs;
  std::vector<Saved> saved{g.save(x)};
  for (const Tensor& one : dropped) saved.push_back(g.save(one));
  g.record(
      outs[0], node, inputs,
      [&g, saved, pairs, rows, over_x](const Gradients&) {
        for (const Saved& one : saved) (void)one.get();
        const Tensor& self = saved[0].get();
        Gradients grads(1 + 2 * pairs.size());
        for (std::size_t i = 0; i < pairs.size(); ++i)
          pair_gradients(g, pairs[i], self.dtype, rows, grads[1 + 2 * i], grads[2 + 2 * i]);
        grads[0] = input_gradient(g, pairs, self, rows, over_x);
        return grads;
      },
      pairs.size());
  for (std::size_t i = 1; i < outs.size(); ++i) {
    outs[i].grad_fn = outs[0].grad_fn;
    outs[i].output = i;
  }
  return outs;
}

}  // namespace

bool adapted(const Eager& g, int weight) { return weight >= 0 && g.leaves[static_cast<std::size_t>(weight)].low_rank_in >= 0; }

Projections low_rank_qkv(Eager& g, const Tensor& x, int query, int key, int value) {
  const std::vector<Pair> pairs{pair_of(g, query, "q"), pair_of(g, key, "k"), pair_of(g, value, "v")};
  std::vector<Tensor> outs = run(g, x, pairs, "LoRA_QKVBackward", !gptq(g));
  return {std::move(outs[0]), std::move(outs[1]), std::move(outs[2])};
}

Tensor low_rank_output(Eager& g, const Tensor& x, int weight) {
  return std::move(run(g, x, {pair_of(g, weight, "o")}, "LoRA_WBackward", false)[0]);
}

}  // namespace oomplan::foak
