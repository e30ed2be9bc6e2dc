// Megatron's flex dispatcher with DeepEP: what Megatron-core and DeepEP refuse themselves, and what is not described.
#include <fmt/format.h>

#include "catalog/architecture.hpp"
#include "job/deepep.hpp"
#include "job/names.hpp"
#include "job/validate_megatron.hpp"
#include "layout/letters.hpp"

namespace oomplan {
namespace {

std::int64_t chosen_experts(const Role& role) {
  std::int64_t most = 0;
  if (role.architecture != nullptr)
    for (const LayerRun& run : role.architecture->runs) most = std::max(most, run.layer.feed_forward.experts_per_token);
  return most;
}

}  // namespace

std::vector<MegatronProblem> megatron_flex_problems(const Job& job, const Role& role) {
  const Trainer& t = role.trainer;
  const Megatron& m = t.megatron;
  std::vector<MegatronProblem> out;
  if (m.dispatcher != TokenDispatcher::flex) return out;
  const auto add = [&](std::string knob, std::string found, std::string expected, std::string why) {
    out.push_back({std::move(knob), std::move(found), std::move(expected), std::move(why)});
  };
  const std::int64_t top = chosen_experts(role), splits = t.layout.expert_tensor, ranks = t.layout.expert * splits;
  if (m.deepep_sms % 2 != 0)
    add("deepep_num_sms", fmt::format("{}", m.deepep_sms), "an even number", "two multiprocessors are one of DeepEP's channels");
  if (m.expert_capacity > 0)
    add("dispatcher", "flex", "alltoall",
        m.pads_experts ? "Megatron itself pads no experts to their capacity with this dispatcher"
                       : "not supported yet: a capacity of the experts with this dispatcher");
  if (m.router_padding)
    add("router_padding", "true", "false", "not supported yet: rows that the router pads with this dispatcher");
  if (top == 0) return out;
  if (ranks == 1)
    add("dispatcher", "flex", "alltoall, or several ranks that share or split the experts", "Megatron itself asks for them");
  else if (!deepep_serves(ranks))
    add("layout", letters(t.layout), "2, 4, 8, 16, 32, 64, 128, 144 or 160 ranks that share or split the experts",
        fmt::format("DeepEP itself serves no group of {}", ranks));
  else if (std::min(ranks, kDeepEpPeers) > job.cluster.gpus_per_node)
    add("dispatcher", "flex", "alltoall",
        fmt::format("DeepEP's groups have {} ranks of one machine, whose GPUs are {}", std::min(ranks, kDeepEpPeers),
                    job.cluster.gpus_per_node));
  if (top * splits > kDeepEpMostChosen)
    add("dispatcher", "flex", "alltoall",
        fmt::format("DeepEP itself takes {} experts of a token at most, and here are {} on {} ranks each", kDeepEpMostChosen, top,
                    splits));
  return out;
}

}  // namespace oomplan
