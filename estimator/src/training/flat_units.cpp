#include "training/flat_units.hpp"

#include <algorithm>
#include <map>

#include "training/unit_formats.hpp"

namespace oomplan {
namespace {

/// What state_dict() keeps of a unit's tensors. With a mesh it copies a tensor whole, then cuts rank 0's rows from it
/// (torch/distributed/fsdp/_fsdp_extensions.py, _chunk_dtensor of _shard_utils.py, 2.13); tensors that were cut stay.
class StatePieces {
 public:
  StatePieces(bool by_mesh, std::int64_t ranks) : by_mesh_(by_mesh && ranks > 1), ranks_(ranks) {}
  void put(const TapeLeaf& leaf, DType storage) {
    const std::int64_t rows = leaf.shape.empty() ? 1 : leaf.shape[0];
    const Bytes whole = bytes_of(leaf.elements(), storage),
                piece = whole / std::max<std::int64_t>(1, rows) * ceil_div(rows, ranks_);
    kept_ += piece;
    if (by_mesh_) most_ = std::max(most_, kept_ + whole);
  }
  Bytes kept() const { return kept_; }
  Bytes copies() const { return std::max<Bytes>(0, most_ - kept_); }

 private:
  bool by_mesh_;
  std::int64_t ranks_;
  Bytes kept_ = 0, most_ = 0;
};

/// The parameters of one flat parameter, in order.
class Flat {
 public:
  Flat(const Trainer& t, std::int64_t ranks) : t_(t), ranks_(ranks) {}
  void put(std::size_t leaf, std::int64_t elements, DType storage, bool trained, bool unreached = false) {
    if (t_.use_orig_params) n_ = round_up(n_, kAlignment / bytes_of(1, unit_formats(t_, storage).compute));
    parts_.push_back({leaf, n_, elements, trained});
    n_ += elements;
    if (unreached) zeros_ += elements;
    storage_ = storage;
    originals_ += bytes_of(elements, storage);
  }
  void end() {
    if (t_.use_orig_params) n_ = round_up(n_, ranks_);
  }
  bool empty() const { return parts_.empty(); }
  /// With a trained part all of it gets gradients.
  bool trained() const {
    return std::any_of(parts_.begin(), parts_.end(), [](const Part& p) { return p.trained; });
  }
  std::int64_t elements() const { return n_; }
  std::int64_t zeros() const { return zeros_; }
  Bytes originals() const { return originals_; }
  std::int64_t shard() const { return ceil_div(n_, ranks_); }
  DType storage() const { return storage_; }
  /// visit(leaf, elements) for every trained parameter of which rank 0 has a piece.
  template <class Visit>
  void each_piece(Visit&& visit) const {
    for (const Part& p : parts_)
      if (p.trained && p.at < shard()) visit(p.leaf, std::min(p.elements, shard() - p.at));
  }

 private:
  /// _get_aligned_numel: with use_orig_params every parameter begins at an address that 16 divides
  static constexpr std::int64_t kAlignment = 16;
  const Trainer& t_;
  std::int64_t ranks_;
  struct Part {
    std::size_t leaf;
    std::int64_t at, elements;
    bool trained;
  };
  std::int64_t n_ = 0, zeros_ = 0;
  Bytes originals_ = 0;
  std::vector<Part> parts_;
  DType storage_ = DType::fp32;
};

FlatBytes bytes_of_flat(const Flat& f, const Trainer& t, std::int64_t ranks) {
  FlatBytes b;
  const std::int64_t n = f.elements(), s = f.shard();
  const auto [compute, reduce] = unit_formats(t, f.storage());
  const bool casts = f.storage() != compute;
  b.resident = bytes_of(s, f.storage());
  b.originals = f.originals();
  b.flat = bytes_of(n, f.storage());
  if (ranks > 1) {
    b.upload = t.cpu_offload_policy ? b.resident : 0;
    b.low_precision = casts ? bytes_of(s, compute) : 0;
    b.unsharded = bytes_of(s * ranks, compute);
    b.whole = bytes_of(s * ranks, f.storage());
  } else {
    b.upload = t.cpu_offload_policy && casts ? b.resident : 0;
    b.unsharded = t.cpu_offload_policy || casts ? bytes_of(n, compute) : 0;
  }
  if (!f.trained()) return b;
  b.casts = f.storage() != reduce;
  b.zeros = bytes_of(f.zeros(), compute);
  b.fresh = bytes_of(n, compute);
  b.reduced = compute != reduce ? bytes_of(n, reduce) : 0;
  if (ranks > 1) {
    b.padded = s * ranks != n ? bytes_of(s * ranks, reduce) : 0;
    b.output = bytes_of(s, reduce);
  } else {
    b.output = f.storage() != reduce ? bytes_of(n, reduce) : 0;
  }
  b.gradient = bytes_of(s, f.storage());
  return b;
}

}  // namespace

std::vector<Bytes> broadcast_buckets(const std::vector<Bytes>& tensors) {
  constexpr Bytes kFull = 250 * kMiB;
  std::vector<Bytes> out;
  Bytes sum = 0;
  std::size_t together = 0;
  const auto close = [&] {
    out.push_back(together > 1 ? sum : 0);
    sum = 0;
    together = 0;
  };
  for (const Bytes tensor : tensors) {
    sum += tensor;
    ++together;
    if (sum >= kFull) close();
  }
  if (together > 0) close();
  return out;
}

FlatUnits flat_units(const Tape& tape, const Trainer& t, const std::vector<bool>& wrapped, const std::vector<DType>& storage,
                     std::int64_t ranks) {
  const std::size_t stations = tape.stations.size();
  const bool lora = t.lora.rank > 0, apart = lora && t.lora.own_units;
  std::vector<Flat> flats(stations + 1, Flat(t, ranks));  // the root comes last
  std::vector<StatePieces> states(stations + 1, StatePieces(t.loop.states_by_mesh, ranks));
  FlatUnits out;
  out.originals.resize(tape.leaves.size());
  std::vector<std::vector<Bytes>> tensors(stations + 1);
  const bool no_head = std::none_of(tape.leaves.begin(), tape.leaves.end(), [&](const TapeLeaf& leaf) {
    return tape.stations[leaf.station].place == StationPlace::head && !leaf.shared;
  });
  const auto unit_of = [&](const TapeLeaf& leaf) { return wrapped[leaf.station] ? leaf.station : stations; };
  // the root has all blocks of a tower that is no unit
  const auto times_in_unit = [&](const TapeLeaf& leaf) { return wrapped[leaf.station] ? 1 : tape.stations[leaf.station].count; };
  // a tower that no batch reaches gets zeros, as views of the root's flat gradient: the optimizer has states for it
  const auto gets_gradient = [&](const TapeLeaf& leaf) {
    const bool idle = !tape.stations[leaf.station].called && !lora && t.vision.train == TowerTraining::all;
    return (leaf.trainable && !leaf.passive) || idle;
  };
  const auto is_adapter = [&](const TapeLeaf& leaf) { return apart && (leaf.trainable || leaf.unreached); };
  for (std::size_t i = 0; i < tape.leaves.size(); ++i) {
    const auto& leaf = tape.leaves[i];
    if (is_adapter(leaf) || leaf.packed == PackedLeaf::statistics) continue;
    // a packed matrix is stored in the format of the others (bnb_4bit_quant_storage): one flat parameter has one
    const bool packed = leaf.packed == PackedLeaf::weight;
    const std::int64_t elements = packed ? ceil_div(8 * leaf.elements(), row(t.storage).bits) : leaf.elements();
    const DType format = packed ? t.storage : storage[i];
    const std::int64_t times = times_in_unit(leaf);
    for (std::int64_t copy = 0; copy < times; ++copy) {
      flats[unit_of(leaf)].put(i, elements, format, gets_gradient(leaf), !tape.stations[leaf.station].called);
      tensors[unit_of(leaf)].push_back(bytes_of(elements, format));
      states[unit_of(leaf)].put(leaf, format);
    }
    out.originals[i] = bytes_of(elements, format) * times;
    // a matrix of two names is cut for each (executed_summons.jsonl)
    if (t.loop.states_by_mesh && no_head && tape.stations[leaf.station].place == StationPlace::embedding)
      states[unit_of(leaf)].put(leaf, format);
  }
  for (const auto& unit : tensors) out.buckets.push_back(broadcast_buckets(unit));

  out.units.resize(stations);
  std::map<std::size_t, std::vector<std::int64_t>> pieces;  // of leaves, with use_orig_params
  const auto finish = [&](std::size_t u) {
    Flat& flat = flats[u];
    if (flat.empty()) return;
    flat.end();
    FlatBytes& unit = u == stations ? out.root : out.units[u];
    unit = bytes_of_flat(flat, t, ranks);
    unit.pieces = t.loop.states_by_mesh ? states[u].kept() : unit.resident;
    unit.copies = states[u].copies();
    if (!flat.trained()) return;
    const std::int64_t times = u == stations ? 1 : tape.stations[u].count;
    if (t.use_orig_params)
      flat.each_piece([&](std::size_t leaf, std::int64_t elements) { pieces[leaf].push_back(elements); });
    else
      out.tensors.push_back({{flat.shard()}, flat.shard(), flat.storage(), times});
  };
  finish(stations);  // the root's is the first that parameters() gives
  for (std::size_t u = 0; u < stations; ++u) finish(u);
  for (const auto& [leaf, all] : pieces) {
    const std::size_t station = tape.leaves[leaf].station;
    const std::int64_t copies = wrapped[station] ? tape.stations[station].count : 1;
    const bool embedding = tape.stations[station].place == StationPlace::embedding;
    for (const std::int64_t elements : all)
      out.tensors.push_back({{elements}, elements, storage[leaf], copies, false, embedding});
  }
  // Every adapter is a unit of its own inside of its layer's: FSDP1 wants a flat parameter trained or frozen as a whole
  // (peft/utils/other.py fsdp_auto_wrap_policy, verl/utils/fsdp_utils.py get_fsdp_wrap_policy).
  for (std::size_t i = 0; i < tape.leaves.size(); ++i) {
    const auto& leaf = tape.leaves[i];
    if (!is_adapter(leaf)) continue;
    // fms-acceleration has FSDP ignore its fused adapters: they are whole on every rank (fms_acceleration_foak/utils.py, 0.6.1)
    const std::int64_t across = t.foak.lora ? 1 : ranks;
    Flat flat(t, across);
    flat.put(i, leaf.elements(), storage[i], true);
    flat.end();
    FlatBytes& unit = unit_of(leaf) == stations ? out.root : out.units[leaf.station];
    const Bytes shard = bytes_of(flat.shard(), storage[i]);
    if (leaf.unreached) {  // its module never runs: there it is
      unit.resident += shard * times_in_unit(leaf);
      unit.pieces += shard * times_in_unit(leaf);
      continue;
    }
    const Bytes whole = t.foak.lora ? 0 : bytes_of(flat.elements(), storage[i]);
    const FlatBytes gathered = t.foak.lora ? FlatBytes() : bytes_of_flat(flat, t, across);
    out.adapters.push_back({unit_of(leaf), flat.originals(), whole, shard, static_cast<int>(i), gathered});
    StatePieces state(t.loop.states_by_mesh, across);
    state.put(leaf, storage[i]);
    unit.pieces += t.loop.states_by_mesh ? state.kept() : shard;
    unit.adapter_whole += gathered.whole;
    unit.resident += shard;
    unit.adapter_gradients += shard;
    const DType compute = t.foak.lora && t.compute == t.storage ? storage[i] : unit_formats(t, storage[i]).compute;
    unit.adapter_fresh += bytes_of(flat.elements(), compute);
    unit.adapter_unsharded += across > 1 ? bytes_of(flat.shard() * across, compute) : 0;
    out.tensors.push_back({{flat.shard()}, flat.shard(), storage[i], tape.stations[leaf.station].count});
  }
  for (const TrainedTensor& one : out.tensors) out.trained += bytes_of(one.elements, one.storage) * one.copies;
  return out;
}

}  // namespace oomplan
