// Degrees, stages and batches that Megatron refuses: megatron/training/arguments.py (validate_args),
// megatron/core/parallel_state.py, megatron/core/transformer/transformer_config.py, megatron/core/num_microbatches_calculator.py
// and megatron/core/pipeline_parallel/schedules.py, 0.16.1.
#include <algorithm>

#include <fmt/format.h>

#include "frontends/megatron/flag_table.hpp"
#include "frontends/megatron/run.hpp"

namespace oomplan::megatron {
namespace {

constexpr const char* kTensor = "tensor_model_parallel_size";
constexpr const char* kContext = "context_parallel_size";
constexpr const char* kExpert = "expert_model_parallel_size";

/// "64 of --num-attention-heads".
std::string of(const Arguments& a, std::string_view name, std::int64_t n) { return fmt::format("{} ({})", n, a.place(name)); }

void check_context(const Arguments& a, const Run& r, Complaints& out) {
  if (r.context > 1 && r.sequence % (2 * r.context) != 0)
    out.add(a.place(a.has("seq_length") ? "seq_length" : "encoder_seq_length"), fmt::format("{}", r.sequence),
            fmt::format("a multiple of {}", 2 * r.context),
            "the sequence must be a multiple of twice the context-parallel size, as each rank takes two pieces of it");
  const auto kinds = a.items("cp_comm_type");
  const bool mixed = std::find(kinds.begin(), kinds.end(), "a2a+p2p") != kinds.end();
  std::int64_t product = 1;
  for (const auto& n : a.items("hierarchical_context_parallel_sizes")) product *= std::stoll(n);
  if (mixed && !a.has("hierarchical_context_parallel_sizes"))
    out.add(a.place("cp_comm_type"), "'a2a+p2p'", "--hierarchical-context-parallel-sizes beside it",
            "a2a+p2p needs the sizes of both levels");
  else if (a.has("hierarchical_context_parallel_sizes") && product != r.context)
    out.add(a.place("hierarchical_context_parallel_sizes"), fmt::format("a product of {}", product), of(a, kContext, r.context),
            "the levels must multiply to the context-parallel size");
  if (kinds.size() > 1 && static_cast<std::int64_t>(kinds.size()) != r.layers)
    out.add(a.place("cp_comm_type"), fmt::format("{} kinds", kinds.size()), fmt::format("1 or {}, one for each layer", r.layers),
            "the list must have as many items as there are layers");
}

void check_heads(const Arguments& a, const Run& r, Complaints& out) {
  const auto heads = a.whole("num_attention_heads");
  if (heads && *heads % r.tensor != 0)
    out.add(a.place("num_attention_heads"), fmt::format("{}", *heads), fmt::format("a multiple of {}", of(a, kTensor, r.tensor)),
            "every tensor-parallel rank takes the same number of heads");
  const auto groups = a.on("group_query_attention") ? a.whole("num_query_groups") : heads;
  if (groups && *groups > 0 && *groups % r.tensor != 0 && r.tensor % *groups != 0 && a.on("group_query_attention"))
    out.add(a.place("num_query_groups"), fmt::format("{}", *groups),
            fmt::format("a multiple or a divisor of {}", of(a, kTensor, r.tensor)),
            "query groups are split over the tensor-parallel ranks or repeated on them");
}

}  // namespace

void check_layout(const Arguments& a, const Run& r, Built built, Complaints& out) {
  const std::int64_t model = r.tensor * r.pipeline * r.context;
  if (r.world % model != 0)
    out.add(a.place(kTensor), fmt::format("{} GPUs", r.world), fmt::format("a multiple of {}", model),
            fmt::format("the world size is not divisible by tensor x pipeline x context = {} x {} x {}", r.tensor, r.pipeline,
                        r.context));
  const std::int64_t experts = r.expert_tensor * r.expert * r.pipeline;
  if (r.world % experts != 0 && a.on("num_experts"))
    out.add(a.place(kExpert), fmt::format("{} GPUs", r.world), fmt::format("a multiple of {}", experts),
            fmt::format("the world size is not divisible by expert tensor x expert x pipeline = {} x {} x {}", r.expert_tensor,
                        r.expert, r.pipeline));
  if (r.sequence_parallel && r.tensor == 1 && built == Built::by_library)
    out.add(a.place("sequence_parallel"), "true", "false, or a tensor-parallel size above 1",
            "sequence parallelism cannot be used without tensor parallelism");
  if (a.on("tp_comm_overlap") && !r.sequence_parallel)
    out.add(a.place("tp_comm_overlap"), "the flag", "--sequence-parallel beside it, with a tensor-parallel size above 1",
            "communication overlaps products only under sequence parallelism");
  check_heads(a, r, out);
  check_context(a, r, out);
}

void check_batch(const Arguments& a, const Run& r, Complaints& out) {
  const std::int64_t step = r.micro_batch * r.data;
  const std::int64_t global = a.whole_or("global_batch_size", step);
  if (global > 0 && global % step != 0 && r.world % (r.tensor * r.pipeline * r.context) == 0)
    out.add(a.place("global_batch_size"), fmt::format("{}", global), fmt::format("a multiple of {}", step),
            fmt::format("the global batch is not divisible by the micro-batch times the data-parallel size, {} x {}",
                        r.micro_batch, r.data));
  if (r.chunks <= 1 || r.pipeline == 1 || global % step != 0) return;
  const std::int64_t group = a.whole_or("microbatch_group_size_per_vp_stage", r.pipeline);
  const std::string place =
      a.place(a.has("microbatch_group_size_per_vp_stage") ? "microbatch_group_size_per_vp_stage" : "global_batch_size");
  if (group < r.pipeline || group > r.micro_batches)
    out.add(place, fmt::format("groups of {}, {} micro-batches", group, r.micro_batches),
            fmt::format("groups of at least {} and micro-batches no fewer than a group", r.pipeline),
            "the interleaved schedule takes micro-batches in groups, from the pipeline's size to the number of micro-batches");
  else if (const std::int64_t rest = r.micro_batches % group; rest > 0 && rest < r.pipeline)
    out.add(place, fmt::format("{} micro-batches", r.micro_batches),
            fmt::format("a multiple of {}, or a rest of at least {}", group, r.pipeline),
            "a last group smaller than the pipeline would leave it waiting in the interleaved schedule");
}

}  // namespace oomplan::megatron
