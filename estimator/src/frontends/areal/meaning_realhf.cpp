// The realhf trainer of 0.1.1 to 0.3.0: other keys, one string, Megatron for every trained role.
#include <algorithm>

#include <fmt/format.h>

#include "frontends/areal/meaning_roles.hpp"

namespace oomplan::areal {
namespace {

constexpr std::string_view kArgs = "realhf/api/cli_args.py";

class RealhfTeller {
 public:
  explicit RealhfTeller(Teller& t) : t_(t), out_(t.out()) {}

  void run() {
    const bool sft = t_.has("model") && !t_.has("ppo");
    out_.kind = sft ? "sft" : "rl";
    t_.take("cluster.nodes", "n_nodes");
    t_.take("cluster.gpus_per_node", "n_gpus_per_node");
    t_.code("job.kind", out_.kind, sft ? "sft experiment" : "ppo experiment");
    t_.take("job.max_prompt_length", sft ? "dataset.max_seqlen" : "dataset.max_prompt_len");
    if (!sft) {
      t_.take("job.max_response_length", "ppo.gen.max_new_tokens");
      t_.take("job.samples_per_prompt", "group_size");
    }
    if (!read_parts()) return;
    find_absent(sft);
    tell_roles(sft);
  }

 private:
  bool read_parts() {
    const compose::Node* n = t_.at("allocation_mode");
    if (n == nullptr || n->kind != compose::Node::Kind::text || n->text.empty()) {
      Place place = n != nullptr ? n->origin.place : Place{};
      place.path = "allocation_mode";
      out_.refusals.push_back({std::move(place),
                               "nothing",
                               "a layout such as sglang.d4p1m1+d2p2m1",
                               {},
                               "the experiment lays its models out by it: of a file that a script completes, give its argument "
                               "allocation_mode=..., too"});
      return false;
    }
    AllocationRead read = read_allocation(n->text, out_.release, Parser::legacy);
    if (!read) read = read_allocation(n->text, out_.release);
    if (!read) {
      read.problem.place = n->origin.place;
      read.problem.place.path = "allocation_mode";
      out_.refusals.push_back(std::move(read.problem));
      return false;
    }
    allocation_ = *read.allocation;
    return true;
  }

  void find_absent(bool sft) {
    if (sft) return;
    if (t_.has("critic") && t_.flag("ppo.disable_value")) out_.absent.push_back({"critic", "ppo.disable_value: true", "ppo"});
    if (t_.has("ref") && t_.real("ppo.kl_ctl", 0) <= 0)
      out_.absent.push_back(
          {"ref", fmt::format("ppo.kl_ctl = {}", compose::python_text(t_.real("ppo.kl_ctl", 0))), "realhf/experiments"});
  }

  void tell_roles(bool sft) {
    const auto part = [&](PartKind kind) {
      return std::find_if(allocation_.parts.begin(), allocation_.parts.end(), [&](const Part& p) { return p.kind == kind; });
    };
    const auto training = part(PartKind::training), serving = part(PartKind::inference);
    const Origin origin = t_.at("allocation_mode")->origin;
    if (!sft) t_.derived("job.placement", serving != allocation_.parts.end() ? "separated" : "colocated", "+ in allocation_mode");
    t_.derived("job.gpus_used", allocation_.gpus(), "sum", "allocation_mode");
    if (training != allocation_.parts.end()) {
      out_.roles.push_back({sft ? "trainer" : "actor", sft ? "model" : "actor", *training, "", false, origin});
      tell_trained(out_.roles.back());
    }
    if (serving != allocation_.parts.end()) {
      out_.roles.push_back({"rollout", "actor.sglang", *serving, "", false, origin});
      tell_served(out_.roles.back());
      t_.code("weight_update.mode", "disk", "realhf: files");
    }
  }

  void tell_trained(const BuiltRole& r) {
    const std::string key = "roles." + r.name;
    t_.take(key + ".model", r.path + ".path");
    t_.code(key + ".engine", "megatron", "realhf training backend");
    t_.derived(key + ".gpus", r.part.layout.world(), "d*m*p", "allocation_mode");
    t_.derived(key + ".layout.dp", r.part.layout.data, "d", "allocation_mode");
    t_.derived(key + ".layout.tp", r.part.layout.tensor, "m", "allocation_mode");
    t_.derived(key + ".layout.pp", r.part.layout.pipeline, "p", "allocation_mode");
    t_.made(key + ".param_dtype", t_.flag(r.path + ".bf16") ? "bfloat16" : "float16", r.path + ".bf16");
    t_.code(key + ".micro_batch.mode", "tokens", "");
    t_.take(key + ".micro_batch.tokens_per_micro_batch", "actor_train.mb_spec.max_tokens_per_mb");
    t_.take(key + ".micro_batch.logprob_tokens", "actor_inf.mb_spec.max_tokens_per_mb");
    const std::string recompute = r.path + ".gradient_checkpointing";
    FactValue granularity = FactValue::map();
    granularity["granularity"] = t_.flag(recompute, true) ? "full" : "none";
    t_.made(key + ".recompute", std::move(granularity), recompute);
    t_.code(key + ".placement", "own", kArgs);
  }

  void tell_served(const BuiltRole& r) {
    t_.derived("roles.rollout.engine", spelling(r.part.backend), "allocation_mode", "allocation_mode");
    t_.take("roles.rollout.model", "actor.path");
    t_.derived("roles.rollout.gpus", r.part.layout.world(), "d*m*p", "allocation_mode");
    t_.derived("roles.rollout.layout.replicas", r.part.layout.data, "d", "allocation_mode");
    t_.derived("roles.rollout.layout.tp", r.part.layout.tensor, "m", "allocation_mode");
    t_.derived("roles.rollout.layout.pp", r.part.layout.pipeline, "p", "allocation_mode");
    const bool sglang = r.part.backend == Backend::sglang;
    t_.take("roles.rollout.memory_fraction", sglang ? "actor.sglang.mem_fraction_static" : "actor.vllm.gpu_memory_utilization");
    t_.take("roles.rollout.max_model_len", sglang ? "actor.sglang.context_length" : "actor.vllm.max_seq_len_to_capture");
    t_.take("roles.rollout.dtype", sglang ? "actor.sglang.dtype" : "actor.vllm.dtype");
    t_.code("roles.rollout.placement", "own", "");
  }

  Teller& t_;
  Meaning& out_;
  Allocation allocation_;
};

}  // namespace

void tell_realhf(Teller& t) { RealhfTeller(t).run(); }

}  // namespace oomplan::areal
