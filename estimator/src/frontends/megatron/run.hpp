// What Megatron derives from its arguments before it starts (megatron/training/arguments.py validate_args, 0.16.1), and what it
// refuses, with its reasons.
//
// Legend: W GPUs, t tensor, p pipeline, c context, e expert, u expert tensor, d data ranks; v chunks of a stage.
#pragma once
#include <cstdint>
#include <string_view>
#include <vector>

#include "frontends/megatron/arguments.hpp"

namespace oomplan::megatron {

/// Degrees and counts as Megatron has them behind its checks. Never 0: what is missing or wrong counts as 1, and is told.
struct Run {
  std::int64_t world = 1, tensor = 1, pipeline = 1, context = 1, expert = 1, expert_tensor = 1, data = 1;
  std::int64_t chunks = 1;  ///< v; 1: no interleaved schedule
  std::int64_t micro_batch = 1, micro_batches = 1, sequence = 1;
  std::int64_t layers = 1;
  bool sequence_parallel = false;
  bool uneven = false;  ///< layers of the first or last stage are stated
};

/// Who built Megatron's configuration: its own scripts run validate_args; verl and AReaL build the configuration themselves.
enum class Built : std::uint8_t { by_arguments, by_library };

Run derive(const Arguments&, std::int64_t world, Built, Complaints&);

/// Each adds what Megatron would refuse. `world` 0: unknown.
void check_layout(const Arguments&, const Run&, Built, Complaints&);
void check_stages(const Arguments&, const Run&, Complaints&);
void check_batch(const Arguments&, const Run&, Complaints&);
void check_model(const Arguments&, const Run&, Complaints&);
void check_experts(const Arguments&, const Run&, Complaints&);
void check_recompute(const Arguments&, const Run&, Complaints&);
void check_deferral(const Arguments&, const Run&, Complaints&);
void check_optimizer(const Arguments&, Complaints&);
void check_formats(const Arguments&, Complaints&);
void check_fp8(const Arguments&, const Run&, Complaints&);
/// All of them.
void check(const Arguments&, const Run&, Built, Complaints&);

/// What Megatron runs and is not described: "not supported yet: ...". `described`: arguments that a framework describes itself.
void refuse_unsupported(const Arguments&, const Run&, Complaints&, const std::vector<std::string_view>& described = {});

}  // namespace oomplan::megatron
