// What a rank of DeepSpeed's ZeRO holds, resolved: partitions, masters, buffers, and when parameters are gathered.
//
// deepspeedai/DeepSpeed 0.19.6, runtime/zero (stage_1_and_2.py, stage3.py, partition_parameters.py). Legend: P trained
// parameters, N ranks, c bytes of the format that the model is stored in.
#pragma once
#include <cstdint>
#include <string_view>
#include <vector>

#include <oomplan/job.hpp>

#include "layers/tape.hpp"
#include "training/zero_trace.hpp"

namespace oomplan {

/// What the coordinator does in front of an event of a unit's segment, or behind the last one.
struct ZeroStop {
  std::size_t at = 0;  ///< events of the segment in front of it
  std::vector<ZeroAction> actions;
};
/// By station and unit.
using ZeroPass = std::vector<std::vector<std::vector<ZeroStop>>>;

/// A parameter that stage 3 gathers.
struct ZeroGathered {
  std::size_t leaf = 0;   ///< of the tape
  std::int64_t unit = 0;  ///< of its station
  Bytes whole = 0;        ///< gathered; 0: it is there already (one rank without offload)
  Bytes shard = 0;        ///< its copy from the host while it is gathered; 0: it lies on the device
};
struct ZeroGroup {
  Bytes whole = 0, shard = 0;
};

struct ZeroPlan {
  std::int64_t stage = 3, ranks = 1;
  bool trains = true;
  // on the device between steps
  Bytes parameters = 0;  ///< stages 1 and 2: all; stage 3: this rank's shards, unless they are offloaded
  Bytes persistent = 0;  ///< stage 3: small parameters, gathered for good
  Bytes outside = 0;  ///< stage 3: what a head reads past its module, gathered from a step's first forward pass to its optimizer
  Bytes master = 0;   ///< fp32, of what this rank updates: 4 P / N
  Bytes states = 0;
  Bytes gradients = 0;    ///< stage 3: c P / N, there from the beginning
  Bytes bucket = 0;       ///< what gradients are collected in; stage 3 keeps it, stages 1 and 2 make it for every backward pass
  Bytes gpu_staging = 0;  ///< stages 1 and 2 with offload: as large as the largest parameter
  // on the host
  Bytes host_parameters = 0, host_master = 0, host_states = 0, host_gradients = 0;
  // of a backward pass
  std::int64_t bucket_elements = 0;
  bool contiguous = true;
  bool reduces_last =
      false;  ///< stage 1 with overlap_comm: gradients stay whole, and the last micro-batch reduces them as they come
  bool buckets_at_end = false;  ///< stage 1 without overlap_comm: gradients stay whole until the last micro-batch is over
  std::int64_t element = 2;     ///< c
  std::int64_t reduced = 2;     ///< bytes of an element of a reduced gradient: c, or 4 without a 16-bit mode
  std::int64_t rank = 0;        ///< stages 1 and 2: the one that keeps most in backward
  Bytes in_partition = 0;       ///< stages 1 and 2: gradients of parameters of which the rank has a piece
  std::vector<std::int64_t> offset, stride;  ///< stages 1 and 2: where a leaf lies in the flat tensor, and its next unit's
  Bytes checkpoint = 0;                      ///< a layer's input, on the host until backward
  // of the step
  Bytes more_in_step = 0;                  ///< that a rank keeps whose step is higher
  Bytes norm = 0;                          ///< the largest gradient as double, for the norm
  std::vector<std::int64_t> sub_groups;    ///< elements of each; stages 1 and 2: one
  Bytes at_load = 0;                       ///< beside everything: the second copy of fp32 masters, or of the flattened model
  std::int64_t optimizer_form_copies = 0;  ///< fp32 copies of a sub-group that the optimizer's step makes
  // stage 3
  std::vector<ZeroGathered> gathered;
  std::vector<ZeroGroup> groups;
  ZeroPass forward, backward;
  std::vector<ZeroAction> at_end;
  std::vector<bool> waits;  ///< of every leaf: its gradient is reduced when its block's backward pass is over
  Bytes saved_experts =
      0;  ///< gathered stacks that stay from their forward to their backward pass, because views of them are saved
  bool gathers_again = false;  ///< some parameter has two buffers for a while

  bool offloads_optimizer = false, offloads_parameters = false;
};

/// `storage`: of every leaf. `family`: of the architecture.
ZeroPlan zero_plan(const Tape&, const Trainer&, const std::vector<DType>& storage, bool trains, std::int64_t micro_batches,
                   std::string_view family);

}  // namespace oomplan
