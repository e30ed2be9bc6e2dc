#include "training/spread.hpp"

#include <algorithm>
#include <numeric>

namespace oomplan {
namespace {

/// In the order in which they are placed: the embedding, the layers, the norm, the output layer.
std::vector<Bytes> in_order(const ModuleBytes& m) {
  std::vector<Bytes> out{m.embedding};
  out.insert(out.end(), m.layers.begin(), m.layers.end());
  out.push_back(m.norm);
  if (m.head > 0) out.push_back(m.head);
  return out;
}

/// Of every module the GPU. The first one keeps room for the largest module that is still to come, the last one takes the rest.
std::vector<std::int64_t> gpus_of(const std::vector<Bytes>& modules, Bytes each, std::int64_t gpus) {
  std::vector<std::int64_t> out;
  std::int64_t gpu = 0;
  Bytes used = 0;
  for (std::size_t i = 0; i < modules.size(); ++i) {
    const auto fits = [&] {
      const auto later = modules.begin() + static_cast<std::ptrdiff_t>(i) + 1;
      const Bytes room = gpu == 0 && later != modules.end() ? *std::max_element(later, modules.end()) : 0;
      return gpu + 1 == gpus || used + modules[i] <= each - room;
    };
    while (!fits()) {
      ++gpu;
      used = 0;
    }
    used += modules[i];
    out.push_back(gpu);
  }
  return out;
}

}  // namespace

std::vector<LayerShare> spread_layers(const ModuleBytes& m, std::int64_t gpus, bool by_parameter) {
  const std::vector<Bytes> modules = in_order(m);
  const Bytes all = std::accumulate(modules.begin(), modules.end(), Bytes{0});
  const Bytes layer = *std::max_element(m.layers.begin(), m.layers.end());
  const Bytes largest = by_parameter ? std::max(layer, m.largest_parameter) : layer;
  const std::vector<std::int64_t> of_module = gpus_of(modules, all / gpus + largest * 5 / 4, gpus);
  std::vector<LayerShare> out(static_cast<std::size_t>(gpus), LayerShare{0, 0, false, false});
  const auto layers = static_cast<std::int64_t>(m.layers.size());
  for (std::int64_t layer_number = 0; layer_number < layers; ++layer_number) {
    LayerShare& share = out[static_cast<std::size_t>(of_module[static_cast<std::size_t>(layer_number) + 1])];
    if (share.empty()) share.from = layer_number;
    share.to = layer_number + 1;
  }
  // an embedding or an output layer alone on its GPU is taken beside the layers next to it
  const auto first = std::find_if(out.begin(), out.end(), [](const LayerShare& s) { return !s.empty(); });
  const auto last = std::find_if(out.rbegin(), out.rend(), [](const LayerShare& s) { return !s.empty(); });
  first->front = true;
  (m.head > 0 ? *last : *first).back = true;  // a tied output layer lies where the embedding is
  return out;
}

}  // namespace oomplan
