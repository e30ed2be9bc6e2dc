// Which tensors travel, in which order: all of a model, or what a role trains of it.
#include <algorithm>

#include "catalog/parameters.hpp"
#include "sync/sync.hpp"

namespace oomplan {

SyncModel sync_model(const Architecture& a, DType storage, DType wire, bool fused) {
  SyncModel out;
  out.storage = storage;
  out.wire = wire;
  const std::vector<Parameter> all = parameters(a);
  const auto add = [&](const Parameter& p) {
    const std::int64_t copies = fused ? 1 : p.copies;
    std::vector<std::int64_t> shape = p.shape;
    if (fused && p.copies > 1) shape.insert(shape.begin(), p.copies);
    const std::int64_t elements = p.elements() * (fused ? p.copies : 1);
    out.tensors.push_back({p.name, std::move(shape), bytes_of(elements, storage), bytes_of(elements, wire)});
    out.largest_stored = std::max(out.largest_stored, out.tensors.back().stored);
    out.largest_sent = std::max(out.largest_sent, out.tensors.back().sent);
    return copies;
  };
  std::int32_t layer = 0;
  for (std::size_t i = 0; i < all.size();) {
    std::size_t end = i + 1;
    while (end < all.size() && all[i].run >= 0 && all[end].run == all[i].run) ++end;
    const auto first = static_cast<std::uint32_t>(out.tensors.size());
    std::vector<std::int64_t> copies;
    for (std::size_t k = i; k < end; ++k)
      if (all[k].part != ParameterPart::mtp && all[k].kind != ParameterKind::table) copies.push_back(add(all[k]));
    const std::int64_t layers = all[i].run >= 0 ? all[i].layers : 1;
    for (std::int64_t l = 0; l < layers; ++l, layer += all[i].run >= 0 ? 1 : 0)
      for (std::size_t k = 0; k < copies.size(); ++k)
        for (std::int64_t c = 0; c < copies[k]; ++c)
          out.order.push_back({first + static_cast<std::uint32_t>(k), layer, static_cast<std::int32_t>(c)});
    i = end;
  }
  for (const SyncStep& s : out.order) out.total_sent += out.tensors[s.tensor].sent;
  return out;
}

void gather_twice(SyncModel& model, std::int64_t ranks) {
  if (ranks == 1) return;
  for (SyncTensor& t : model.tensors)
    if (t.shape.size() > 1) t.beside = ceil_div(t.stored, ranks) + t.stored;  // norms are whole on every one of these ranks
}

SyncModel trained_model(const Tape& tape, DType storage, DType wire) {
  SyncModel out;
  out.storage = storage;
  out.wire = wire;
  std::int32_t layer = 0;
  for (std::size_t s = 0; s < tape.stations.size(); ++s) {
    const auto first = static_cast<std::uint32_t>(out.tensors.size());
    for (const TapeLeaf& leaf : tape.leaves) {
      if (leaf.station != s || !leaf.trainable || leaf.shared) continue;
      out.tensors.push_back({leaf.name, leaf.shape, bytes_of(leaf.elements(), storage), bytes_of(leaf.elements(), wire)});
      out.largest_stored = std::max(out.largest_stored, out.tensors.back().stored);
      out.largest_sent = std::max(out.largest_sent, out.tensors.back().sent);
    }
    const bool layers = tape.stations[s].place == StationPlace::layers;
    for (std::int64_t unit = 0; unit < tape.stations[s].count; ++unit, layer += layers ? 1 : 0)
      for (auto tensor = first; tensor < out.tensors.size(); ++tensor) {
        out.order.push_back({tensor, layer, 0});
        out.total_sent += out.tensors[tensor].sent;
      }
  }
  return out;
}

SyncModel joined(SyncModel first, const SyncModel& second) {
  const auto offset = static_cast<std::uint32_t>(first.tensors.size());
  first.tensors.insert(first.tensors.end(), second.tensors.begin(), second.tensors.end());
  for (SyncStep step : second.order) {
    step.tensor += offset;
    first.order.push_back(step);
  }
  first.largest_stored = std::max(first.largest_stored, second.largest_stored);
  first.largest_sent = std::max(first.largest_sent, second.largest_sent);
  first.total_sent += second.total_sent;
  return first;
}

}  // namespace oomplan
