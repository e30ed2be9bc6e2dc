#include "job/validate_float8.hpp"

#include <fmt/format.h>

#include "job/names.hpp"

namespace oomplan {
namespace {

std::string why_not_in_float8(const Trainer& t, EngineKind engine) {
  if (t.kernels == Kernels::archon) return {};  // job/archon_rules
  if (t.float8 == Float8::blockwise) return "not supported yet: blocks of 128 outside of AReaL's Archon";
  if (t.kernels != Kernels::torchtitan) return "not supported yet: training in float8 of models other than torchtitan's";
  if (engine != EngineKind::single && !shards_by_fsdp2(engine))
    return "not supported yet: training in float8 under other engines than fsdp2 and single";
  if (!t.compile) return "not supported yet: training in float8 without torch.compile";
  return {};
}

/// torchao/float8/config.py: "float8 all-gather only supports tensorwise".
std::string why_not_gathered(const Trainer& t, EngineKind engine) {
  if (t.float8 != Float8::tensorwise) return "torchao gathers matrices in 8 bits with a scale for each tensor alone";
  if (!shards_by_fsdp2(engine)) return "nothing is gathered without fsdp2";
  if (t.reshard_ranks > 0 || t.cpu_offload_policy) return "not supported yet: with reshard_ranks or cpu_offload_policy";
  return {};
}

}  // namespace

std::vector<KnobProblem> float8_problems(const Trainer& t, EngineKind engine) {
  std::vector<KnobProblem> out;
  if (t.float8 != Float8::none)
    if (std::string why = why_not_in_float8(t, engine); !why.empty())
      out.push_back({"float8", fmt::format("'{}'", spelling(t.float8)), "none", std::move(why)});
  if (t.float8_all_gather)
    if (std::string why = why_not_gathered(t, engine); !why.empty())
      out.push_back({"float8_all_gather", "true", "false", std::move(why)});
  return out;
}

}  // namespace oomplan
