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

constexpr Range kRanges[] = {
    {"cluster.n_nodes", kGpuLimit, "nodes"},
    {"cluster.n_gpus_per_node", kGpusPerNodeLimit, "GPUs"},
    {"gconfig.max_new_tokens", kTokenLimit, "tokens"},
    {"gconfig.n_samples", kSequenceLimit, "samples"},
    {"train_dataset.batch_size", kSequenceLimit, "prompts"},
    {"train_dataset.max_length", kTokenLimit, "tokens"},
    {"actor.ppo_n_minibatches", kSequenceLimit, "parts"},
    {"sglang.context_length", kTokenLimit, "tokens"},
    {"vllm.max_model_len", kTokenLimit, "tokens"},
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
    const bool missing = n->kind == compose::Node::Kind::missing && n->origin.place.line > 0;
    if (!missing && (n->kind != compose::Node::Kind::integer || range.limit.holds(n->integer))) continue;
    out.push_back(problem_of(*n, range.path, compose::describe(*n),
                             fmt::format("{} to {} {}", range.limit.least, range.limit.most, range.what),
                             missing ? "??? asks for a value" : ""));
  }
  for (const auto path : kFractions) {
    const compose::Node* n = root.at(path);
    if (n != nullptr && n->kind == compose::Node::Kind::real && !(n->real >= 0.01 && n->real <= 0.99))
      out.push_back(problem_of(*n, path, fmt::format("'{}'", n->real), "a number from 0.01 to 0.99"));
  }
  return out;
}

}  // namespace oomplan::areal
