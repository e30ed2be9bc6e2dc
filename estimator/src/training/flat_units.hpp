// FSDP1's units: one flat parameter each, of which every rank holds an equal piece.
//
// torch 2.13, torch/distributed/fsdp/_flat_param.py. Legend: n elements of a flat parameter, N ranks that share it, s = ceil(n/N)
// elements of a shard; c bytes of the compute format, r of the reduction's, w of the storage's.
#pragma once
#include <cstdint>
#include <vector>

#include <oomplan/job.hpp>

#include "layers/tape.hpp"
#include "training/optimizers.hpp"

namespace oomplan {

/// Sizes of a unit in bytes. 0: there is no such tensor. On one rank (NO_SHARD) s = n and nothing is gathered.
struct FlatBytes {
  Bytes resident = 0;       ///< w s: the shard, and those of adapters inside of the unit
  Bytes upload = 0;         ///< w s: its copy from the host while it is gathered, under CPUOffload
  Bytes low_precision = 0;  ///< c s: the shard in the compute format while it is gathered
  Bytes unsharded = 0;      ///< c s N: what the unit computes with; on one rank c n, 0 when that is the parameter itself
  Bytes whole = 0;          ///< w s N: its parameters as stored, while state_dict() reads them
  Bytes pieces = 0;         ///< what state_dict() keeps of them and of adapters inside of the unit
  Bytes copies = 0;         ///< most that is there beside `pieces` while they are cut: the copy of one whole tensor
  Bytes adapter_whole = 0;  ///< w s N of adapters inside of the unit
  Bytes zeros = 0;          ///< c z: of its z elements that no backward pass reaches, while the flat gradient is made
  Bytes fresh = 0;          ///< c n: the flat gradient of one backward pass; 0: the unit is frozen
  Bytes reduced = 0;        ///< r n: it in the format of the reduction
  Bytes padded = 0;         ///< r s N: it with a length that N divides
  Bytes output = 0;    ///< r s: of the reduce-scatter; on one rank: a sum over micro-batches in that format, if it has another
  Bytes gradient = 0;  ///< w s: the gradient that the optimizer gets
  bool casts = false;  ///< the output is cast to the format of the storage
  Bytes adapter_gradients = 0;  ///< w s: of adapters inside of the unit
  Bytes adapter_unsharded = 0;  ///< c s N: what adapters inside of the unit compute with
  Bytes adapter_fresh = 0;      ///< c n: theirs without synchronisation
  Bytes originals = 0;          ///< of its parameters as the model was loaded, while the unit is built
  Bytes flat = 0;               ///< w n: all of the flat parameter, before it is cut
  /// Of the broadcast, which are not free before it is cut: records_streams alone. PyTorch's "allocated" no longer counts them
  /// then; here they are allocated until they can be used again.
  Bytes kept_buckets = 0;
  Bytes tables = 0;  ///< cos and sin of an attention layer that has its own; they stay
};

/// An adapter inside of a unit: a flat parameter of its own.
struct AdapterFlat {
  std::size_t home = 0;  ///< station of the unit; as many as there are stations: the root
  Bytes original = 0;    ///< as the model was loaded, while the unit is built
  Bytes flat = 0;        ///< before it is cut; 0: FSDP ignores it
  Bytes shard = 0;       ///< and its gradient
  int leaf = -1;         ///< of the tape
  FlatBytes gathered;    ///< its unit: what a gather of it takes
};

/// How adapters that travel are read out of FSDP1's units (verl's collect_lora_params).
enum class Summon : std::uint8_t {
  whole,         ///< all units are gathered together
  unit_by_unit,  ///< one layer after another
  through_host,  ///< each unit is gathered by itself and moved to the host, the root too
};

struct FlatUnits {
  std::vector<FlatBytes> units;  ///< one entry per station; wrapped stations only
  std::vector<Bytes> originals;  ///< of every leaf of the tape, whole and as stored; 0: an adapter, or not a parameter
  FlatBytes root;
  std::vector<std::vector<Bytes>> buckets;  ///< of every station, then of the root: what the broadcast copies together
  std::vector<AdapterFlat> adapters;        ///< of one unit per station, as their modules stand
  std::vector<TrainedTensor> tensors;       ///< as rank 0's optimizer sees them: one axis each
  Bytes trained = 0;                        ///< of them
};

/// The broadcast goes in buckets that close at 250 MiB (torch/csrc/distributed/c10d/comm.cpp, 2.2 to 2.13). Several tensors are
/// copied into one, a single one is sent as it lies: 0.
std::vector<Bytes> broadcast_buckets(const std::vector<Bytes>& tensors);
inline constexpr std::size_t kBucketsInFlight = 2;

/// `wrapped`: of every station, whether it is a unit of its own. `storage`: of every leaf.
FlatUnits flat_units(const Tape&, const Trainer&, const std::vector<bool>& wrapped, const std::vector<DType>& storage,
                     std::int64_t ranks);

}  // namespace oomplan
