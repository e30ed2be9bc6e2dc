#include "frontends/areal/ranges.hpp"

#include <fmt/format.h>

#include "job/limits.hpp"

namespace oomplan::areal {
namespace {

struct Range {
  std::string_view path;
  Limit64 limit;
  std::string_view what;
};

/// AReaL's own word for no limit is 10^12 (areal/utils/data.py: DEFAULT_MAX_TOKENS_PER_MB).
constexpr Limit64 kBudget{1, INT64_MAX};

constexpr Range kRanges[] = {
    {"cluster.n_nodes", kGpuLimit, "nodes"},
    {"cluster.n_gpus_per_node", kGpusPerNodeLimit, "GPUs"},
    {"gconfig.max_new_tokens", kTokenLimit, "tokens"},
    {"gconfig.n_samples", kSequenceLimit, "samples"},
    {"train_dataset.batch_size", kSequenceLimit, "prompts"},
    {"train_dataset.max_length", kTokenLimit, "tokens"},
    {"actor.ppo_n_minibatches", kSequenceLimit, "parts"},
    {"sglang.context_length", kTokenLimit, "tokens"},
    {"sglang.max_prefill_tokens", kTokenLimit, "tokens"},
    {"sglang.max_running_requests", kRequestLimit, "requests"},
    {"vllm.max_model_len", kTokenLimit, "tokens"},
    {"vllm.max_num_seqs", kRequestLimit, "requests"},
    {"rollout.max_concurrent_rollouts", kRequestLimit, "rollouts"},
    {"actor.mb_spec.max_tokens_per_mb", kBudget, "tokens"},
    {"critic.mb_spec.max_tokens_per_mb", kBudget, "tokens"},
    {"ref.mb_spec.max_tokens_per_mb", kBudget, "tokens"},
    {"actor.mb_spec.n_mbs", kMicroBatchLimit, "micro-batches"},
    {"critic.mb_spec.n_mbs", kMicroBatchLimit, "micro-batches"},
    {"ref.mb_spec.n_mbs", kMicroBatchLimit, "micro-batches"},
};

/// The part of a GPU that a server takes.
constexpr std::string_view kFractions[] = {"sglang.mem_fraction_static", "vllm.gpu_memory_utilization"};

Problem problem_of(const compose::Node& n, std::string_view path, std::string found, std::string expected, std::string why = {}) {
  Place place = n.origin.place;
  place.path = path;
  return {std::move(place), std::move(found), std::move(expected), {}, std::move(why)};
}

}  // namespace

std::vector<Problem> range_problems(const compose::Node& root) {
  std::vector<Problem> out;
  for (const auto& range : kRanges) {
    const compose::Node* n = root.at(range.path);
    if (n == nullptr) continue;
    if (n->kind != compose::Node::Kind::integer || range.limit.holds(n->integer)) continue;
    out.push_back(problem_of(
        *n, range.path, compose::describe(*n),
        range.limit.most == INT64_MAX ? fmt::format("at least {} {}", range.limit.least, range.what)
                                      : fmt::format("{} to {} {}", range.limit.least, range.limit.most, range.what),
        range.path == "cluster.n_gpus_per_node" && n->integer == 0 ? "not supported yet: a job that runs on CPUs alone" : ""));
  }
  for (const auto path : kFractions) {
    const compose::Node* n = root.at(path);
    if (n != nullptr && n->kind == compose::Node::Kind::real && !(n->real >= 0.01 && n->real <= 0.99))
      out.push_back(problem_of(*n, path, fmt::format("'{}'", n->real), "a share from 0.01 to 0.99, such as 0.8",
                               n->real > 1 && n->real <= 100 ? "it is a fraction, not percent" : ""));
  }
  return out;
}

}  // namespace oomplan::areal
