#include <fmt/format.h>
#include <oomplan/units/bytes.hpp>

#include "frontends/areal/meaning_roles.hpp"

namespace oomplan::areal {
namespace {

constexpr std::string_view kSglang = "SGLang mem_fraction_static: weights + KV share of the memory free at server start";
constexpr std::string_view kVllm = "vLLM gpu_memory_utilization: share of total device memory";

/// A teacher's server has the settings of the rollout's, and a model of its own (areal/trainer/rl_trainer.py
/// _init_teacher_rollout, 2.0.0).
void model_of(Teller& t, const std::string& key, std::string_view path) {
  const bool teacher = key == "roles.teacher" && !t.text("teacher.path").empty();
  t.take(key + ".model", teacher ? "teacher.path" : path);
}

void tell_sglang(Teller& t, const std::string& key) {
  t.take(key + ".layout.dp_size", "sglang.dp_size");
  t.take(key + ".layout.ep_size", "sglang.ep_size");
  t.take(key + ".layout.enable_dp_attention", "sglang.enable_dp_attention");
  model_of(t, key, "sglang.model_path");
  t.take(key + ".memory_fraction", "sglang.mem_fraction_static");
  t.code(key + ".memory_fraction_meaning", kSglang, "SGLang");
  t.take(key + ".max_running_requests", "sglang.max_running_requests");
  t.take(key + ".max_model_len", "sglang.context_length");
  t.take(key + ".chunked_prefill", "sglang.chunked_prefill_size");
  t.take(key + ".max_prefill_tokens", "sglang.max_prefill_tokens");
  t.derived(key + ".cuda_graph", !t.flag("sglang.disable_cuda_graph"), "sglang.disable_cuda_graph", "sglang.disable_cuda_graph");
  t.take(key + ".cuda_graph_max_bs", "sglang.cuda_graph_max_bs");
  t.take(key + ".kv_dtype", "sglang.kv_cache_dtype");
  t.take(key + ".memory_saver", "sglang.enable_memory_saver");
  t.take(key + ".attention", "sglang.attention_backend");
  t.take(key + ".dtype", "sglang.dtype");
}

void tell_vllm(Teller& t, const std::string& key) {
  model_of(t, key, "vllm.model");
  t.take(key + ".memory_fraction", "vllm.gpu_memory_utilization");
  t.code(key + ".memory_fraction_meaning", kVllm, "vLLM");
  t.take(key + ".max_running_requests", "vllm.max_num_seqs");
  t.take(key + ".max_model_len", "vllm.max_model_len");
  t.take(key + ".enforce_eager", "vllm.enforce_eager");
  t.take(key + ".kv_dtype", "vllm.kv_cache_dtype", "auto", "vLLM's own default");
  t.take(key + ".sleep_mode", "vllm.enable_sleep_mode");
  t.take(key + ".dtype", "vllm.dtype");
}

}  // namespace

void tell_rollout(Teller& t, const BuiltRole& role, const BuiltRole* actor) {
  const bool own_string = t.since("1.0.3");
  const std::string from = own_string ? role.path + ".backend" : "allocation_mode";
  const Layout& l = role.part.layout;
  const std::string key = "roles." + role.name;
  t.derived(key + ".engine", spelling(role.part.backend), own_string ? from : "allocation_mode", from);
  t.derived(key + ".gpus", l.world(), "d*t*p", from);
  t.derived(key + ".layout.replicas", l.data, "d", from);
  t.derived(key + ".layout.tp", l.tensor, "t", from);
  t.derived(key + ".layout.pp", l.pipeline, "p", from);
  if (role.part.backend == Backend::sglang)
    tell_sglang(t, key);
  else
    tell_vllm(t, key);
  if (role.name ==
      "teacher")  // areal/infra/remote_inf_engine.py compute_logp: a request after the other, from every server's worker
    return t.derived(key + ".concurrency_sequences", l.data, "d: every server scores one sequence at a time", from);
  t.take(key + ".concurrency_rollouts", "rollout.max_concurrent_rollouts");
  // one episode runs n_samples generations (GroupedRolloutWorkflow); an unset limit is the consumer's batch
  const std::int64_t rollouts = t.whole("rollout.max_concurrent_rollouts", t.whole("rollout.consumer_batch_size", 0));
  const std::int64_t samples = t.whole("gconfig.n_samples", 1);
  if (rollouts > 0 && samples > 0 && rollouts < (std::int64_t{1} << 31) && samples < (std::int64_t{1} << 31))
    t.derived(key + ".concurrency_sequences", rollouts * samples, "rollouts x n_samples, over all servers",
              "rollout.max_concurrent_rollouts");
  if (!role.beside.empty() && actor != nullptr)
    t.code(key + ".placement", "shares:" + role.beside,
           own_string ? "areal/trainer/rl_trainer.py: scheduling_strategy, or weight_update_mode awex with _version v1"
                      : "\"|\" shares GPUs");
  else
    t.code(key + ".placement", "own", own_string ? "separation is the default" : "\"+\" separates");
}

void tell_weight_update(Teller& t, const BuiltRole& actor) {
  const std::string path = actor.path + ".weight_update_mode";
  // Until 0.5.0 the entry script chose the way, whatever the key said (examples/math/gsm8k_grpo.py).
  const bool script = !t.since("0.5.0");
  const std::string mode = script ? "nccl" : t.text(path, "xccl");
  if (script)
    t.code("weight_update.mode", mode, "the entry script calls WeightUpdateMeta.from_fsdp_xccl / from_megatron_xccl");
  else
    t.take("weight_update.mode", path, "xccl");
  const bool buckets = mode == "xccl" || mode == "nccl";
  t.code("weight_update.buffer_bytes", buckets ? FactValue(kGiB) : FactValue(nullptr),
         "WeightUpdateMeta.from_*_xccl weight_chunked_mem_mb=1024; not a YAML key");
  if (t.flag(actor.path + ".use_lora")) t.code("weight_update.content", "LoRA adapter only", "areal");
}

}  // namespace oomplan::areal
