#include "layers/tiled_mlp.hpp"

#include <memory>
#include <utility>

namespace oomplan {
namespace {

/// Between the first tile and the last one nothing happens that does not happen in one of them.
constexpr int kSimulatedTiles = 2;

Tensor tile_of(const Tensor& x) { return x.alias({x.shape[0], axis::M, x.shape[2]}); }

/// The tile's gradient is added into its part of the whole.
std::shared_ptr<Node> part_of_the_whole() {
  auto adds = std::make_shared<Node>();
  adds->name = "AccumulateGrad";
  adds->sequence = kAccumulates;
  adds->apply = [](const Gradients&) { return Gradients{}; };
  return adds;
}

/// One tile after another, forward and backward.
void backward_by_tile(Eager& g, const Tensor& x, const Tensor& given, const Eager::Function& body) {
  TiledGradients gradients;
  TiledGradients* outer = std::exchange(g.tiles, &gradients);
  const bool grad = std::exchange(g.grad_enabled, true);
  Tensor output;  // a name of the loop
  for (int i = 0; i < kSimulatedTiles; ++i) {
    gradients.last = i + 1 == kSimulatedTiles;
    Tensor part = tile_of(x);
    part.grad_fn = part_of_the_whole();
    Tensor next = body(part);
    output = std::move(next);
    g.backward(output, tile_of(given));
  }
  g.grad_enabled = grad;
  g.tiles = outer;
}

}  // namespace

Tensor tiled_over_tokens(Eager& g, const Tensor& x, const Eager::Function& body) {
  Saved saved = g.save(x);
  Tensor out;
  {
    const bool grad = std::exchange(g.grad_enabled, false);
    Tensor parts = g.make("tiled.outputs", x.shape, x.dtype);
    body(tile_of(x)).reset();
    out = g.make("tiled.output", x.shape, x.dtype);
    g.grad_enabled = grad;
  }
  g.record(out, "TiledMLPBackward", {&x}, [&g, saved, body](const Gradients& in) {
    const Tensor& self = saved.get();
    Tensor gradient = g.make("tiled.backward", self.shape, self.dtype, Category::temporaries);
    backward_by_tile(g, self, in[0], body);
    return Gradients{gradient};
  });
  return out;
}

}  // namespace oomplan
