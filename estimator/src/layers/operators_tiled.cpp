#include "layers/operators_tiled.hpp"

#include <utility>
#include <vector>

#include <oomplan/units/bytes.hpp>

namespace oomplan {
namespace {

std::vector<Tensor> shards_of(const Tensor& x, std::int64_t shards) {
  const std::int64_t rows = x.shape[0].coefficient, most = ceil_div(rows, shards);
  std::vector<Tensor> out;
  for (std::int64_t at = 0; at < rows; at += most) out.push_back(x.alias({Dim(std::min(most, rows - at)), x.shape[1]}));
  return out;
}

}  // namespace

Tensor tiled(Eager& g, const Tensor& x, std::int64_t shards, const Eager::Function& body) {
  Saved saved = g.save(x);
  Tensor out;
  {
    const bool grad = std::exchange(g.grad_enabled, false);
    std::vector<Tensor> parts;
    for (const Tensor& shard : shards_of(x, shards)) parts.push_back(body(shard));
    out = g.make("tiled.output", x.shape, x.dtype);
    g.grad_enabled = grad;
  }
  g.record(out, "TiledMLPBackward", {&x}, [&g, saved, shards, body](const Gradients& in) {
    const Tensor& self = saved.get();
    Tensor gradient = g.make("tiled.backward", self.shape, self.dtype, Category::temporaries);
    const std::vector<Tensor> given = shards_of(in[0], shards);
    std::vector<Tensor> parts = shards_of(self, shards);
    Tensor output;  // a name of the loop
    for (std::size_t i = 0; i < parts.size(); ++i) {
      auto adds = std::make_shared<Node>();  // the shard's gradient is added into its part of the whole
      adds->name = "AccumulateGrad";
      adds->sequence = kAccumulates;
      adds->apply = [](const Gradients&) { return Gradients{}; };
      parts[i].grad_fn = std::move(adds);
      const bool grad = std::exchange(g.grad_enabled, true);
      const bool retain = std::exchange(g.retain_graph, false);
      Tensor next = body(parts[i]);
      output = std::move(next);
      g.backward(output, given[i]);
      g.retain_graph = retain;
      g.grad_enabled = grad;
    }
    return Gradients{gradient};
  });
  return out;
}

}  // namespace oomplan
