#include <doctest/doctest.h>

#include <fstream>
#include <iterator>
#include <set>

#include <oomplan/oomplan.hpp>

#include "job/knobs.hpp"
#include "job/names.hpp"
#include "job/placement.hpp"

using namespace oomplan;

namespace {

Job two_roles() {
  Job job;
  job.cluster = {"H100-80GB", 8, 8, 0, 0};
  Role rollout, actor;
  rollout.name = "rollout";
  rollout.kind = RoleKind::rollout;
  rollout.engine = EngineKind::vllm;
  rollout.server.layout.data = 4;
  actor.name = "actor";
  actor.trainer.layout.data = 4;
  job.roles = {rollout, actor};
  return job;
}

/// A value of the knob that is not `now`, or "" when there is none.
std::string another(const Knob& knob, std::size_t at, bool of_role, const std::string& now) {
  std::vector<std::string> tries = knob.choices;
  for (const char* text : {"true", "false", "7", "3MiB", "0.25", "d2", "1", "2"}) tries.emplace_back(text);
  if (knob.key == "gpus") tries = {"16 x A100-80GB"};
  if (knob.key == "engine") tries = {"single", "sglang 0.5.10"};
  if (knob.key == "framework") tries = {"verl 0.9.0"};
  if (knob.key == "beside") tries = {"rollout", "actor"};
  for (const auto& text : tries) {
    Job job = two_roles();
    Role* role = of_role ? &job.roles[at] : nullptr;
    if (!knob.set(knob, job, role, text).refused() && knob.get(job, role) != now) return text;
  }
  return {};
}

}  // namespace

TEST_CASE("every knob writes what it reads, and reads what it writes") {
  for (const auto& knob : knobs()) {
    CAPTURE(knob.key);
    CHECK(!knob.help.empty());
    Job job = two_roles();
    for (Role* role : {static_cast<Role*>(nullptr), &job.roles[0], &job.roles[1]}) {
      if (role == nullptr ? knob.of != KnobOf::job : !applies(knob, *role)) continue;
      const std::string now = knob.get(job, role);
      if (!now.empty() && now != "0") CHECK_FALSE(knob.set(knob, job, role, now).refused());
      CHECK(knob.get(job, role) == now);
      const std::string other = another(knob, role == &job.roles[1] ? 1 : 0, role != nullptr, now);
      CHECK(!other.empty());
      CHECK_FALSE(knob.set(knob, job, role, other).refused());
      const std::string then = knob.get(job, role);
      CHECK(then != now);
      CHECK_FALSE(knob.set(knob, job, role, then).refused());
      CHECK(knob.get(job, role) == then);
      const bool expression = knob.key == "lora.targets" || knob.key == "lora.exclude";  // which ".nan" is
      for (const char* wrong : {"", "\x01", "[x", ".nan"})
        if (knob.type != KnobType::text && !(knob.type == KnobType::items && *wrong == 0) && !(expression && *wrong == '.'))
          CHECK(knob.set(knob, job, role, wrong).refused());
    }
  }
}

TEST_CASE("keys are unique for every role") {
  Job job = two_roles();
  job.roles[0].engine = EngineKind::sglang;
  for (const Role* role :
       {static_cast<const Role*>(nullptr), static_cast<const Role*>(&job.roles[0]), static_cast<const Role*>(&job.roles[1])}) {
    const auto keys = keys_of(role);
    CHECK(std::set<std::string>(keys.begin(), keys.end()).size() == keys.size());
  }
}

TEST_CASE("get and set by dotted key, with the origin") {
  Job job = two_roles();
  CHECK(get(job, "actor.tokens_per_micro_batch") == "16k");
  set(job, "actor.tokens_per_micro_batch", "10k");
  CHECK(job.roles[1].trainer.tokens_per_micro_batch == 10240);
  CHECK(job.origins.at("actor.tokens_per_micro_batch").kind == Origin::Kind::override_);
  set(job, "rollout.gpu_memory_utilization", "0.7");
  CHECK(job.roles[0].server.memory_fraction == 0.7);
  set(job, "rollout.gpu_memory_utilization", "auto");
  CHECK(job.roles[0].server.memory_fraction == 0);
  set(job, "actor.offload", "[optimizer]");
  CHECK(job.roles[1].trainer.offload_optimizer);
  CHECK_FALSE(job.roles[1].trainer.offload_parameters);
  set(job, "actor.offload", "none");
  CHECK_FALSE(job.roles[1].trainer.offload_optimizer);
  set(job, "gpus", "16 x A100-80GB");
  CHECK(job.cluster.gpus == 16);
  CHECK(job.cluster.gpu == "A100-80GB");
}

TEST_CASE("wrong keys and values name the nearest right one") {
  Job job = two_roles();
  const auto told = [&](const char* key, const char* value) {
    try {
      set(job, key, value);
    } catch (const InputError& e) {
      return to_text(e.problems.at(0));
    }
    return std::string();
  };
  CHECK(told("actor.recompute", "ful") ==
        "actor.recompute: found 'ful', expected none, full or selective (did you mean 'full'?)");
  CHECK(told("actor.recomput", "full") ==
        "actor.recomput: found an unknown key, expected a key of actor (did you mean 'recompute'?)");
  CHECK(told("actor.gradient_checkpointing", "true") ==
        "actor.gradient_checkpointing: found an unknown key, expected a key of actor (did you mean 'recompute'?)");
  CHECK(told("acto.recompute", "full") ==
        "acto.recompute: found an unknown key, expected a key of a job or of one of its roles (did you mean 'actor.recompute'?)");
  CHECK(told("rollout.mem_fraction_static", "0.8") ==
        "rollout.mem_fraction_static: found an unknown key, expected a key of rollout (did you mean 'gpu_memory_utilization'?): "
        "'mem_fraction_static' is a setting of sglang; rollout runs vllm");
  CHECK(told("critic.layout", "d4") ==
        "critic.layout: found an unknown key, expected a key of a role of the job: the job has no role 'critic'");
  CHECK(told("actor", "x") != "");
  CHECK(told("", "x") != "");
}

TEST_CASE("words of other tools lead to keys that exist") {
  std::set<std::string> keys;
  for (const auto& knob : knobs()) keys.emplace(knob.key);
  for (const char* word : {"max_tokens_per_mb", "gradient_checkpointing", "max_num_seqs", "optimizer_dtype", "tp",
                           "kv_cache_dtype", "activation_offloading", "enable_activation_offloading"}) {
    CAPTURE(word);
    CHECK(keys.contains(std::string(our_word(word))));
  }
}

TEST_CASE("every enum of a job prints and parses from one table") {
  const auto check = []<class E>(E) {
    for (const auto& [value, text] : kNames<E>) {
      CHECK(parse<E>(text) == value);
      CHECK(parse<E>(spelling(value)) == value);
    }
    CHECK_FALSE(parse<E>("no such word"));
  };
  check(JobKind{});
  check(RoleKind{});
  check(EngineKind{});
  check(Framework{});
  check(Kernels{});
  check(Recompute{});
  check(OptimizerKind{});
  check(OptimizerForm{});
  check(LossHead{});
  check(SyncBy{});
  check(Effect{});
  check(Origin::Kind{});
  check(DType{});
}

TEST_CASE("roles take disjoint GPUs in order, beside shares them") {
  Job job = two_roles();
  Role ref, critic;
  ref.name = "ref";
  ref.beside = "actor";
  ref.trainer.layout.data = 4;
  critic.name = "critic";
  critic.beside = "ref";
  critic.trainer.layout.data = 4;
  job.roles.push_back(ref);
  job.roles.push_back(critic);
  CHECK(placement(job) == std::vector<GpuRange>{{"rollout", 0, 4}, {"actor", 4, 4}, {"ref", 4, 4}, {"critic", 4, 4}});
  CHECK(anchor(job, job.roles[3])->name == "actor");
  job.roles[1].beside = "critic";
  CHECK(anchor(job, job.roles[2]) == nullptr);
  CHECK(placement(job).size() == 4);  // never fails
}

TEST_CASE("docs/job_file.md has the row of every knob") {
  std::ifstream in(std::string(OOMPLAN_SOURCE_DIR) + "/docs/job_file.md");
  const std::string page{std::istreambuf_iterator<char>(in), {}};
  for (const auto& knob : knobs()) {
    const std::string row =
        "| `" + std::string(knob.key) + "` | " + std::string(spelling(knob.effect)) + " | " + std::string(knob.help) + " |\n";
    CAPTURE(row);
    REQUIRE(page.find(row) != std::string::npos);
    const std::string key = row.substr(0, row.find(" | "));
    for (std::size_t at = page.find("\n" + key + " |"); at != std::string::npos; at = page.find("\n" + key + " |", at + 1)) {
      const std::string line =
          page.substr(at + 1, page.find('\n', at + 1) - at);  // a key may be a knob of several kinds of roles
      CHECK(
          std::any_of(knobs().begin(), knobs().end(), [&](const Knob& one) { return line.find(one.help) != std::string::npos; }));
    }
  }
}
