// What is refused of AReaL's files is told in the words of the file: at keys that its author can look up.
#include <doctest/doctest.h>

#include "areal_files.hpp"
#include "frontends/areal/areal.hpp"

using namespace oomplan;
using namespace oomplan::areal_files;

namespace {

struct Asked {
  const char* release;
  std::vector<std::string> overrides;
  const char* key;  ///< of a refusal
};

/// One for each kind of refusal: of AReaL's own checks, of what its reader cannot follow, of the job that comes out, of the
/// model, and of what stands beside a server's adapters.
const std::vector<Asked>& asked() {
  static const std::vector<std::string> bridge{"actor.backend=megatron:d2t2", "+actor.megatron.bridge_type=megatron-bridge"};
  const auto bridged = [](std::vector<std::string> more) {
    more.insert(more.end(), bridge.begin(), bridge.end());
    return more;
  };
  static const std::vector<Asked> out{
      {"2.0.0", bridged({"actor.path=Qwen/Qwen3.5-35B-A3B"}), "actor.megatron.bridge_type"},
      {"2.0.0", bridged({"actor.path=allenai/OLMo-2-1124-7B"}), "actor.megatron.bridge_type"},
      {"2.0.0",
       {"actor.backend=archon:d4", "+actor.enable_tree_training=true", "actor.mb_spec.max_tokens_per_mb=100"},
       "actor.mb_spec.max_tokens_per_mb"},
      {"2.0.0", {"actor.backend=archon:d2c2", "+actor.enable_tree_training=true"}, "actor.enable_tree_training"},
      {"2.0.0",
       {"actor.backend=archon:d4", "+actor.archon.fp8_config.mode=blockwise", "+actor.archon.fp8_config.include_experts=true"},
       "actor.archon.fp8_config.include_experts"},
      {"2.0.0", {"actor.path=google/gemma-3-4b-it"}, "actor.path"},
      {"2.0.0", {"actor.optimizer.type=adam_bf16"}, "actor.optimizer.type"},
      {"2.0.0", {"actor.backend=fsdp:d64"}, "cluster"},
      {"2.0.0", {"rollout.backend=sglang:d1t3"}, "rollout.backend"},
      {"2.0.0", {"actor.path=nobody/knows-it"}, "actor.path"},
      {"main", {"+actor.weight_update_mode=awex"}, "actor.weight_update_mode"},
      {"1.0.4", {"sglang.mem_fraction_static=7"}, "sglang.mem_fraction_static"},
      {"1.0.4", {"cluster.n_gpus_per_node=0"}, "cluster.n_gpus_per_node"},
      {"1.0.4", {"actor.dtype=float64"}, "actor.dtype"},
  };
  return out;
}

std::vector<Problem> problems_of(const Source& s) {
  try {
    (void)estimate_quick(read(s).job);
  } catch (const InputError& e) {
    return e.problems;
  }
  return {};
}

}  // namespace

TEST_CASE("areal: every refusal names a key of the file's grammar") {
  for (const Asked& a : asked()) {
    const Source s = source("grpo_7b.yaml", a.release, a.overrides);
    const std::vector<Problem> problems = problems_of(s);
    CAPTURE(a.key);
    REQUIRE_FALSE(problems.empty());
    const compose::Node root = areal::read_areal(s).root;
    bool there = false;
    for (const Problem& p : problems) {
      CAPTURE(to_text(p));
      CHECK_FALSE(p.place.path.empty());
      CHECK(root.at(p.place.path) != nullptr);
      there = there || p.place.path == a.key;
    }
    CHECK(there);
  }
}
