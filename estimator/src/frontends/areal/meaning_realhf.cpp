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
    t_.take("job.train_batch_prompts", "dataset.train_bs_n_seqs");
    if (!read_parts(sft)) return;
    find_absent(sft);
    tell_roles(sft);
  }

 private:
  void refuse(const compose::Node* n, std::string found, std::string expected, std::string why) {
    Place place = n != nullptr ? n->origin.place : Place{};
    place.path = "allocation_mode";
    out_.refusals.push_back({std::move(place), std::move(found), std::move(expected), {}, std::move(why)});
  }
  bool read_parts(bool sft) {
    const compose::Node* n = t_.at("allocation_mode");
    constexpr std::string_view kSuchAs = "a layout such as sglang.d4p1m1+d2p2m1";
    if (n == nullptr || n->kind != compose::Node::Kind::text || n->text.empty()) {
      refuse(n, "nothing", std::string(kSuchAs), "the experiment lays its models out by it: of a file that a script completes, "
                                                 "give its argument allocation_mode=..., too");
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
    const std::string found = fmt::format("'{}'", n->text);
    if (allocation_.placing != Placing::listed)
      refuse(n, found, std::string(kSuchAs), "not supported yet: layouts that realhf finds itself or that are placed by hand");
    else if (std::any_of(allocation_.parts.begin(), allocation_.parts.end(), [](const Part& p) { return !p.name.empty(); }))
      refuse(n, found, std::string(kSuchAs), "not supported yet: model functions with layouts of their own");
    else if (!sft && std::none_of(allocation_.parts.begin(), allocation_.parts.end(),
                                  [](const Part& p) { return p.kind == PartKind::inference; }))
      refuse(n, found, std::string(kSuchAs), "not supported yet: generation inside of the trainer");
    compare_with_cluster(n, found);
    return out_.refusals.empty();
  }
  /// CommonExperimentConfig._get_rpc_allocations (realhf/experiments/common/common.py) asks for all GPUs.
  void compare_with_cluster(const compose::Node* n, const std::string& found) {
    const std::int64_t nodes = t_.whole("n_nodes", 1), each = t_.whole("n_gpus_per_node", 8);
    constexpr std::int64_t kMost = std::int64_t{1} << 30;
    if (nodes < 1 || nodes > kMost || each < 1 || each > kMost || allocation_.placing != Placing::listed) return;
    if (allocation_.gpus() != nodes * each)
      refuse(n, found, fmt::format("a layout of all {} GPUs (n_nodes times n_gpus_per_node), not of {}", nodes * each, allocation_.gpus()),
             "realhf itself refuses another number");
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
      tell_trained(out_.roles.back(), sft ? "allocation" : "actor_train", sft ? "" : "actor_inf");
      if (!sft && t_.has("critic") && !t_.flag("ppo.disable_value")) beside("critic", *training, "critic_train", "critic_inf");
      if (!sft && t_.has("ref") && t_.real("ppo.kl_ctl", 0) > 0) beside("ref", *training, "ref_inf", "");
    }
    if (serving != allocation_.parts.end()) {
      out_.roles.push_back({"rollout", serving->backend == Backend::vllm ? "actor.vllm" : "actor.sglang", *serving, "", false, origin});
      tell_served(out_.roles.back());
      t_.code("weight_update.mode", "disk", "realhf: files");
    }
  }
  /// A model worker holds the models of all roles of its GPU.
  void beside(const char* name, const Part& part, const char* trained, const char* inference) {
    out_.roles.push_back({name, name, part, "actor", true, t_.at("allocation_mode")->origin,
                          "realhf's model workers hold all models of a GPU (realhf/system/model_worker.py)"});
    tell_trained(out_.roles.back(), trained, inference);
  }

  /// `function`: whose micro-batches the role's are; `inference`: those of its passes without gradients.
  void tell_trained(const BuiltRole& r, std::string_view function, std::string_view inference) {
    const std::string key = "roles." + r.name;
    t_.take(key + ".model", r.path + ".path");
    t_.code(key + ".engine", "megatron", "realhf training backend");
    t_.derived(key + ".gpus", r.part.layout.world(), "d*m*p", "allocation_mode");
    t_.derived(key + ".layout.dp", r.part.layout.data, "d", "allocation_mode");
    t_.derived(key + ".layout.tp", r.part.layout.tensor, "m", "allocation_mode");
    t_.derived(key + ".layout.pp", r.part.layout.pipeline, "p", "allocation_mode");
    t_.made(key + ".param_dtype", t_.flag(r.path + ".bf16") ? "bfloat16" : "float16", r.path + ".bf16");
    t_.code(key + ".micro_batch.mode", "tokens", "");
    t_.take(key + ".micro_batch.tokens_per_micro_batch", fmt::format("{}.mb_spec.max_tokens_per_mb", function));
    const bool again = t_.flag("ppo.recompute_logprob") || t_.flag("ppo.use_decoupled_loss");
    if (!inference.empty())
      t_.take(key + ".micro_batch.logprob_tokens", fmt::format("{}.mb_spec.max_tokens_per_mb", inference));
    if (r.name == "actor") t_.derived("job.recompute_logprob_pass", again, "ppo.recompute_logprob or ppo.use_decoupled_loss");
    if (r.name != "ref") t_.take(key + ".optimizer", r.path + ".optimizer.type");
    const std::string recompute = r.path + ".gradient_checkpointing";
    FactValue granularity = FactValue::map();
    granularity["granularity"] = t_.flag(recompute, true) ? "full" : "none";
    t_.made(key + ".recompute", std::move(granularity), recompute);
    if (r.in_process)
      t_.code(key + ".placement", "in_process:" + r.beside, r.why_in_process);
    else
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
    t_.take("roles.rollout.kv_dtype", sglang ? "actor.sglang.kv_cache_dtype" : "actor.vllm.kv_cache_dtype");
    t_.take("roles.rollout.max_running_requests", sglang ? "actor.sglang.max_running_requests" : "actor.vllm.max_num_seqs");
    if (sglang) {
      t_.take("roles.rollout.chunked_prefill", "actor.sglang.chunked_prefill_size");
      t_.take("roles.rollout.max_prefill_tokens", "actor.sglang.max_prefill_tokens");
      t_.derived("roles.rollout.cuda_graph", !t_.flag("actor.sglang.disable_cuda_graph"), "actor.sglang.disable_cuda_graph",
                 "actor.sglang.disable_cuda_graph");
    } else {
      t_.take("roles.rollout.enforce_eager", "actor.vllm.enforce_eager");
    }
    // an asynchronous rollout limits its prompts; otherwise a step's are there at once (realhf/system/rollout_worker.py)
    const std::string limit = t_.has("max_concurrent_rollouts") ? "max_concurrent_rollouts" : "dataset.train_bs_n_seqs";
    const std::int64_t prompts = t_.whole(limit, 0), samples = t_.whole("group_size", 1);
    if (prompts > 0 && samples > 0 && prompts < (std::int64_t{1} << 31) && samples < (std::int64_t{1} << 31))
      t_.derived("roles.rollout.concurrency_sequences", prompts * samples, "prompts x group_size, over all servers", limit);
    t_.code("roles.rollout.placement", "own", "");
  }

  Teller& t_;
  Meaning& out_;
  Allocation allocation_;
};

}  // namespace

void tell_realhf(Teller& t) { RealhfTeller(t).run(); }

}  // namespace oomplan::areal
