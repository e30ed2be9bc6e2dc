#include "frontends/megatron/run.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "frontends/megatron/flag_table.hpp"

namespace oomplan::megatron {
namespace {

constexpr std::int64_t kMost = std::int64_t{1} << 31;

/// A count of at least one; what is not, is told and counts as 1.
std::int64_t positive(const Arguments& a, std::string_view name, Complaints& out) {
  const auto n = a.whole(name);
  if (!n) return 1;
  if (*n >= 1 && *n <= kMost) return *n;
  out.add(a.place(name), fmt::format("{}", *n), "a positive whole number", "");
  return 1;
}

/// The layers of a stage that the flags count: with the embedding and the loss where they count as layers.
std::int64_t counted_layers(const Arguments& a, std::int64_t layers) {
  return layers + (a.on("account_for_embedding_in_pipeline_split") ? 1 : 0) +
         (a.on("account_for_loss_in_pipeline_split") ? 1 : 0);
}

std::int64_t chunks_of(const Arguments& a, const Run& r, Complaints& out) {
  if (a.has("num_virtual_stages_per_pipeline_rank")) return positive(a, "num_virtual_stages_per_pipeline_rank", out);
  const char* const name = "num_layers_per_virtual_pipeline_stage";
  if (!a.has(name)) return 1;
  const std::int64_t each = positive(a, name, out);
  const std::int64_t of_stage = counted_layers(a, r.layers) / r.pipeline;
  return std::max<std::int64_t>(1, of_stage / each);
}

}  // namespace

Run derive(const Arguments& a, std::int64_t world, Built built, Complaints& out) {
  Run r;
  r.tensor = positive(a, "tensor_model_parallel_size", out);
  r.pipeline = positive(a, "pipeline_model_parallel_size", out);
  r.context = positive(a, "context_parallel_size", out);
  r.expert = positive(a, "expert_model_parallel_size", out);
  r.expert_tensor = a.has("expert_tensor_parallel_size") ? positive(a, "expert_tensor_parallel_size", out) : r.tensor;
  r.layers = a.has("num_layers") ? positive(a, "num_layers", out) : positive(a, "encoder_num_layers", out);
  r.chunks = chunks_of(a, r, out);
  r.uneven = a.has("decoder_first_pipeline_num_layers") || a.has("decoder_last_pipeline_num_layers");
  r.world = std::max<std::int64_t>(1, world);
  r.data = std::max<std::int64_t>(1, r.world / (r.tensor * r.pipeline * r.context));
  r.sequence = a.has("seq_length") ? positive(a, "seq_length", out) : positive(a, "encoder_seq_length", out);
  r.micro_batch = positive(a, "micro_batch_size", out);
  const std::int64_t step = r.micro_batch * r.data;
  r.micro_batches = a.has("global_batch_size") ? std::max<std::int64_t>(1, positive(a, "global_batch_size", out) / step) : 1;
  r.sequence_parallel = a.on("sequence_parallel");
  if (r.sequence_parallel && r.tensor == 1 && built == Built::by_arguments) {
    out.note(Note::Level::warning, a.place("sequence_parallel"), "Megatron turns it off where there is no tensor parallelism");
    r.sequence_parallel = false;
  }
  return r;
}

void check(const Arguments& a, const Run& r, Built built, Complaints& out) {
  check_layout(a, r, built, out);
  check_stages(a, r, out);
  check_batch(a, r, out);
  check_model(a, r, out);
  check_experts(a, r, out);
  check_recompute(a, r, out);
  check_deferral(a, r, out);
  check_optimizer(a, out);
  check_formats(a, out);
  check_fp8(a, r, out);
}

}  // namespace oomplan::megatron
