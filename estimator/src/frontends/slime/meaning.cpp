#include "frontends/slime/meaning.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "frontends/megatron/flag_table.hpp"
#include "frontends/slime/fsdp.hpp"
#include "frontends/slime/predicted.hpp"

namespace oomplan::slime {
namespace {

using Json = nlohmann::json;

constexpr const char* kMegatronArguments = "megatron/training/arguments.py";
constexpr std::int64_t kMostGpus = std::int64_t{1} << 17, kMostSequences = std::int64_t{1} << 30;

FactValue fact_of(const Json& v) {
  if (v.is_boolean()) return v.get<bool>();
  if (v.is_number_integer()) return v.get<std::int64_t>();
  if (v.is_number()) return v.get<double>();
  if (v.is_string()) return v.get<std::string>();
  if (!v.is_array()) return nullptr;
  FactValue out = FactValue::list();
  for (const Json& item : v) out.push_back(fact_of(item));
  return out;
}

/// A word of SGLang's flags: a number where it is one.
FactValue fact_of_word(const std::string& text) {
  std::int64_t n = 0;
  if (const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), n);
      error == std::errc{} && end == text.data() + text.size())
    return n;
  double x = 0;
  if (const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), x);
      error == std::errc{} && end == text.data() + text.size())
    return x;
  return text;
}

/// What the framework sets whatever was said (slime/backends/megatron_utils/arguments.py: _set_default_megatron_args,
/// validate_args).
void set_as_the_framework_does(SlimeText& text) {
  megatron::Arguments& a = text.megatron;
  const auto unless_given = [&](const char* name, const Json& value) {
    if (!a.has(name) || !a.given(name)) a.set(name, value, a.place(name));
  };
  a.set("use_distributed_optimizer", true, a.place("use_distributed_optimizer"));
  a.set("bf16", !a.on("fp16"), a.place("bf16"));
  unless_given("micro_batch_size", 1);
  if (!a.has("seq_length")) a.set("seq_length", 4096, a.place("seq_length"));
  if (!a.has("max_position_embeddings")) a.set("max_position_embeddings", a.value("seq_length"), "--seq-length");
  if (!a.has("tokenizer_type")) a.set("tokenizer_type", "HuggingFaceTokenizer", a.place("tokenizer_type"));
  if (!a.has("tokenizer_model")) a.set("tokenizer_model", text.own.text("hf_checkpoint"), "--hf-checkpoint");
  if (a.text("moe_token_dispatcher_type") == "allgather")
    a.set("moe_token_dispatcher_type", "alltoall", a.place("moe_token_dispatcher_type"));
}

class Teller {
 public:
  explicit Teller(SlimeText& text) : t_(text) {}

  SlimeMeaning run() {
    set_as_the_framework_does(t_);
    who_is_there();
    cluster();
    job();
    if (m_.trains && by_fsdp(t_)) sharded();
    if (m_.trains && !by_fsdp(t_)) learner(std::string(m_.learner()));
    others();
    if (m_.serves) rollout();
    if (m_.serves && m_.trains) update();
    if (t_.family->tell != nullptr) t_.family->tell(t_, m_);
    return std::move(m_);
  }

 private:
  // ---- telling

  Place place(std::string path) const { return {t_.told.file, 0, 0, std::move(path)}; }
  /// Of the framework's Python.
  std::string file(std::string_view path) const { return fmt::format("{}/{}", t_.family->code, path); }
  std::string code_of() const { return fmt::format("{}'s code", t_.family->name); }
  void put(std::string key, FactValue value, ToldBy by, std::string where, Origin origin) {
    m_.facts.push_back({std::move(key), std::move(value), by, std::move(where), std::move(origin)});
  }
  void by_flag(std::string key, FactValue value, bool given, const std::string& flag, const std::string& file) {
    if (given)
      put(std::move(key), std::move(value), ToldBy::stated, flag, {Origin::Kind::file, place(flag), {}, {}});
    else
      put(std::move(key), std::move(value), ToldBy::defaults, file,
          {Origin::Kind::default_, place(flag), fmt::format("{} {} default", t_.family->name, name_of(t_.release)), file});
  }
  /// A flag of slime, or of Megatron, as it stands.
  void own(std::string key, const char* name) {
    by_flag(std::move(key), fact_of(t_.own.value(name)), t_.own.given(name), t_.own.place(name), file("utils/arguments.py"));
  }
  void own(std::string key, const char* name, FactValue value) {
    by_flag(std::move(key), std::move(value), t_.own.given(name), t_.own.place(name), file("utils/arguments.py"));
  }
  void of_megatron(std::string key, const char* name) { of_megatron(std::move(key), name, fact_of(t_.megatron.value(name))); }
  void of_megatron(std::string key, const char* name, FactValue value) {
    by_flag(std::move(key), std::move(value), t_.megatron.given(name), t_.megatron.place(name), kMegatronArguments);
  }
  void code(std::string key, FactValue value, const std::string& where) {
    put(std::move(key), std::move(value), ToldBy::code, where, {Origin::Kind::derived, {}, code_of(), where});
  }
  void derived(std::string key, FactValue value, std::string where, std::string flag = {}) {
    put(std::move(key), std::move(value), ToldBy::derived, std::move(where),
        {Origin::Kind::derived, place(std::move(flag)), code_of(), file("utils/arguments.py")});
  }

  // ---- parts

  std::int64_t count(const char* name, std::int64_t otherwise) const {
    return std::clamp<std::int64_t>(t_.own.whole_or(name, otherwise), 1, kMostGpus);
  }
  std::int64_t server_degree(std::initializer_list<std::string_view> names) const {
    const ServerFlag* flag = t_.server_flag(names);
    if (flag == nullptr || flag->values.empty()) return 1;
    const FactValue value = fact_of_word(flag->values.front());
    return value.is_integer() ? std::clamp<std::int64_t>(value.integer(), 1, kMostGpus) : 1;
  }

  void who_is_there() {
    if (t_.family->prepare != nullptr) t_.family->prepare(t_);
    const Own& o = t_.own;
    m_.supervised = o.text("loss_type").starts_with("sft") || o.text("loss_type") == "dpo" || o.text("loss_type") == "rm";
    m_.serves = !o.on("debug_train_only") && !o.has("load_debug_rollout_data");
    m_.trains = !o.on("debug_rollout_only");
    m_.colocated = o.on("colocate") && m_.serves && m_.trains;
    m_.reference = o.on("use_kl_loss") || o.number("kl_coef", 0) != 0;
    m_.teacher = o.on("use_opd") && o.text("opd_type") == "megatron";
    m_.critic = o.text("advantage_estimator") == "ppo" && m_.trains && !m_.supervised;
    m_.actor_gpus = std::min(count("actor_num_nodes", 1) * count("actor_num_gpus_per_node", 8), kMostGpus);
    std::int64_t said = std::clamp<std::int64_t>(o.whole_or("rollout_num_gpus", m_.actor_gpus), 0, kMostGpus);
    if (t_.family->share == nullptr && m_.colocated && said != m_.actor_gpus && !t_.release.since("0.3.1")) {
      t_.told.note(Note::Level::warning, o.place("rollout_num_gpus"),
                   fmt::format("{} GPUs of the servers: with --colocate slime takes the {} of the actor before 0.3.1", said,
                               m_.actor_gpus));
      said = m_.actor_gpus;
    }
    m_.rollout_gpus = m_.serves ? said : 0;
    m_.used_gpus = !m_.trains     ? m_.rollout_gpus
                   : m_.colocated ? std::max(m_.actor_gpus, m_.rollout_gpus)
                                  : m_.actor_gpus + m_.rollout_gpus;
    const auto asked = [&](const char* name) { return o.given(name) ? o.on(name) : o.on("offload") || o.on("colocate"); };
    m_.offload_train = m_.trains && (asked("offload_train") || m_.critic);  // servers alone: neither of them
    m_.offload_rollout = m_.trains && m_.serves && asked("offload_rollout");
    m_.backs_up = t_.server_flag({"enable-weights-cpu-backup"}) != nullptr;
    m_.engine_gpus = count("rollout_num_gpus_per_engine", 1);
    m_.server_stages = server_degree({"pipeline-parallel-size", "pp-size"});
    m_.server_groups = server_degree({"data-parallel-size", "dp-size"});
    m_.server_experts = server_degree({"expert-parallel-size", "ep-size", "ep"});
    const ServerFlag* exchange = t_.server_flag({"moe-a2a-backend"});
    if (exchange != nullptr && !exchange->values.empty() && exchange->values[0] == "deepep")  // SGLang sets it
      m_.server_experts = std::max<std::int64_t>(1, m_.engine_gpus / m_.server_stages);
    m_.global_batch = global_batch();
    megatron::Complaints unheard;  // told by rules
    m_.run = megatron::derive(t_.megatron, m_.actor_gpus, megatron::Built::by_arguments, unheard);
    if (t_.family->share != nullptr) t_.family->share(t_, m_);
  }
  /// slime_validate_args: of --num-steps-per-rollout a part of the rollout's sequences.
  std::int64_t global_batch() const {
    const Own& o = t_.own;
    const std::int64_t all = o.whole_or("rollout_batch_size", 0) * o.whole_or("n_samples_per_prompt", 1);
    const std::int64_t steps = o.whole_or("num_steps_per_rollout", 0);
    return std::clamp<std::int64_t>(steps > 0 ? all / steps : t_.megatron.whole_or("global_batch_size", 0), 0, kMostSequences);
  }

  void cluster() {
    own("cluster.nodes", "actor_num_nodes");
    own("cluster.gpus_per_node", "actor_num_gpus_per_node");
  }

  void job() {
    derived("job.kind", m_.supervised ? "sft" : "rl", "--loss-type", "--loss-type");
    own("job.algorithm", "advantage_estimator");
    own("job.max_response_length", "rollout_max_response_len");
    own("job.max_prompt_length", "rollout_max_prompt_len");
    own("job.max_total_length", "rollout_max_context_len");
    own("job.samples_per_prompt", "n_samples_per_prompt");
    own("job.rollout_batch_prompts", "rollout_batch_size");
    if (t_.own.has("num_steps_per_rollout") && !t_.megatron.given("global_batch_size"))
      own("job.steps_per_rollout", "num_steps_per_rollout");
    of_megatron("job.global_batch_sequences", "global_batch_size");
    if (m_.serves && m_.trains) derived("job.placement", m_.colocated ? "colocated" : "separated", "--colocate", "--colocate");
    derived("job.mode", m_.colocated ? "colocated" : "separated", "--colocate", "--colocate");
    derived("job.reference_needed", m_.reference, "--use-kl-loss or --kl-coef other than 0", "--use-kl-loss");
    derived("job.gpus_used", m_.used_gpus, "of all roles that have GPUs of their own", "--actor-num-nodes");
  }

  void learner(const std::string& role) {
    const std::string r = fmt::format("roles.{}.", role);
    own(r + "model", "hf_checkpoint");
    code(r + "engine", "megatron", "--train-backend");
    derived(r + "gpus", m_.actor_gpus, "--actor-num-nodes x --actor-num-gpus-per-node", "--actor-num-gpus-per-node");
    layout(r + "layout.");
    code(r + "sharding", "zero1_distributed_optimizer",
         fmt::format("{}/arguments.py: use_distributed_optimizer", t_.family->trainer));
    derived(r + "param_dtype", t_.megatron.on("fp16") ? "float16" : "bfloat16", "bf16 = not fp16", "--fp16");
    code(r + "grad_dtype", t_.megatron.on("grad_reduce_in_bf16") ? "bfloat16" : "float32", kMegatronArguments);
    optimizer(r);
    recompute(r + "recompute");
    of_megatron(r + "activation_offload", "fine_grained_activation_offloading");
    micro_batch(r + "micro_batch.");
    own(r + "logprob_chunk", "log_probs_chunk_size");
    own(r + "recompute_loss_function", "recompute_loss_function");
    of_megatron(r + "attention", "attention_backend");
    of_megatron(r + "moe_dispatcher", "moe_token_dispatcher_type");
    const bool flex = t_.megatron.given("moe_flex_dispatcher_backend");
    of_megatron(r + "moe_flex_backend", "moe_flex_dispatcher_backend",
                flex ? fact_of(t_.megatron.value("moe_flex_dispatcher_backend")) : FactValue());
    own(r + "mtp_training", "enable_mtp_training", trains_predicted(t_));
    of_megatron(r + "mtp_layers", "mtp_num_layers");
    code(r + "lora", nullptr, "it has no adapters");
    architecture(r + "architecture_flags");
    code(r + "placement", "own", std::string(t_.family->placement));
    derived(r + "offload_train", m_.offload_train, "--colocate implies it, --advantage-estimator ppo forces it", "--colocate");
    derived(r + "offload_kind", m_.offload_train ? FactValue("torch_memory_saver") : FactValue(), "--offload-train",
            "--colocate");
    own(r + "stateless_adam", "use_stateless_adam", t_.own.on("use_stateless_adam"));
  }
  /// The FSDP backend's actor and its reference, a model of its own.
  void sharded() {
    const std::string actor = "slime/backends/fsdp_utils/actor.py", r = fmt::format("roles.{}.", m_.learner());
    own(r + "model", "hf_checkpoint");
    own(r + "engine", "train_backend", "fsdp2");
    derived(r + "gpus", m_.actor_gpus, "--actor-num-nodes x --actor-num-gpus-per-node", "--actor-num-gpus-per-node");
    code(r + "layout.dp", m_.actor_gpus, actor + ": _setup_device_mesh");
    code(r + "sharding", "full_shard", actor + ": apply_fsdp2");
    code(r + "param_dtype", "float32", actor + ": from_pretrained without a format");
    derived(r + "compute_dtype", t_.megatron.on("fp16") ? "float16" : "bfloat16", "bf16 = not fp16", "--fp16");
    code(r + "reduce_dtype", "float32", actor + ": apply_fsdp2");
    of_megatron(r + "optimizer", "optimizer");
    FactValue again = FactValue::map();
    again["granularity"] = t_.own.on("gradient_checkpointing") ? "full" : "none";
    of_parser(r + "recompute", "gradient_checkpointing", "--gradient-checkpointing", std::move(again));
    const std::string attention = t_.own.text("attn_implementation");
    of_parser(r + "attention", "attn_implementation", "--attn-implementation",
              attention.empty() ? "flash_attention_2" : attention);
    of_parser(r + "cpu_offload_policy", "fsdp_cpu_offload", "--fsdp-cpu-offload", stays_on_host(t_));
    micro_batch(r + "micro_batch.");
    code(r + "lora", nullptr, "it has no adapters");
    code(r + "placement", "own", std::string(t_.family->placement));
    derived(r + "offload_train", m_.offload_train && !stays_on_host(t_), "--colocate, and no --fsdp-cpu-offload", "--colocate");
    if (!m_.reference) return;
    own("roles.ref.model", "ref_load");
    own("roles.ref.engine", "train_backend", "fsdp2");
    derived("roles.ref.gpus", m_.actor_gpus, "the actor's", "--actor-num-gpus-per-node");
    code("roles.ref.placement", fmt::format("shares:{}", m_.learner()), actor + ": _create_ref_model");
    code("roles.ref.cpu_offload_policy", t_.release.since("0.2.1"), actor + ": _create_ref_model");
  }
  void of_parser(std::string key, const char* name, const char* flag, FactValue value) {
    by_flag(std::move(key), std::move(value), t_.own.given(name), flag, "slime/backends/fsdp_utils/arguments.py");
  }
  void layout(const std::string& l) {
    derived(l + "dp", m_.run.data, "GPUs / (tensor x pipeline x context)", "--actor-num-gpus-per-node");
    of_megatron(l + "tp", "tensor_model_parallel_size");
    of_megatron(l + "pp", "pipeline_model_parallel_size");
    of_megatron(l + "cp", "context_parallel_size");
    own(l + "cp_kind", "allgather_cp", t_.own.on("allgather_cp") ? "allgather" : "ring_p2p");
    of_megatron(l + "ep", "expert_model_parallel_size");
    of_megatron(l + "etp", "expert_tensor_parallel_size");
    of_megatron(l + "sequence_parallel", "sequence_parallel", m_.run.sequence_parallel);
    of_megatron(l + "vpp_layers_per_stage", "num_layers_per_virtual_pipeline_stage");
    of_megatron(l + "first_stage_layers", "decoder_first_pipeline_num_layers");
    of_megatron(l + "last_stage_layers", "decoder_last_pipeline_num_layers");
  }
  void optimizer(const std::string& r) {
    const megatron::Arguments& a = t_.megatron;
    of_megatron(r + "optimizer", "optimizer");
    of_megatron(r + "precision_aware_optimizer", "use_precision_aware_optimizer");
    of_megatron(r + "main_grads_dtype", "main_grads_dtype");
    of_megatron(r + "exp_avg_dtype", "exp_avg_dtype");
    of_megatron(r + "exp_avg_sq_dtype", "exp_avg_sq_dtype");
    FactValue host = FactValue::map();
    host["enabled"] = a.on("optimizer_cpu_offload");
    if (a.on("optimizer_cpu_offload")) host["fraction"] = a.number("optimizer_offload_fraction");
    host["overlap"] = a.on("overlap_cpu_optimizer_d2h_h2d");
    host["pin_grads"] = a.on("pin_cpu_grads");
    host["pin_params"] = a.on("pin_cpu_params");
    of_megatron(r + "optimizer_cpu_offload", "optimizer_cpu_offload", std::move(host));
  }
  void recompute(const std::string& key) {
    const megatron::Arguments& a = t_.megatron;
    FactValue out = FactValue::map();
    const std::string granularity = a.on("recompute_activations") ? "selective" : a.text("recompute_granularity");
    out["granularity"] = granularity.empty() ? "none" : granularity;
    if (granularity == "full") {
      out["method"] = fact_of(a.value("recompute_method"));
      out["layers"] = fact_of(a.value("recompute_num_layers"));
    }
    if (granularity == "selective") {
      FactValue modules = FactValue::list();
      for (const std::string& module : a.items("recompute_modules")) modules.push_back(module);
      out["modules"] = std::move(modules);
    }
    of_megatron(key, "recompute_granularity", std::move(out));
  }
  void micro_batch(const std::string& b) {
    const Own& o = t_.own;
    const bool dynamic = o.on("use_dynamic_batch_size");
    own(b + "dynamic", "use_dynamic_batch_size");
    const auto tokens = o.whole("max_tokens_per_gpu");
    if (!dynamic) {
      of_megatron(b + "sequences", "micro_batch_size");
    } else if (tokens) {
      own(b + "tokens_per_gpu", "max_tokens_per_gpu");
      derived(b + "tokens_per_micro_batch_of_cp_group", *tokens * m_.run.context, "--max-tokens-per-gpu x context",
              "--max-tokens-per-gpu");
      own(b + "logprob_tokens_per_gpu", "log_probs_max_tokens_per_gpu",
          o.has("log_probs_max_tokens_per_gpu") ? fact_of(o.value("log_probs_max_tokens_per_gpu")) : FactValue(*tokens));
    }
    if (dynamic && !by_fsdp(t_))
      derived(b + "pad_multiple", m_.run.tensor * std::max<std::int64_t>(1, o.whole_or("data_pad_size_multiplier", 128)),
              "tensor x --data-pad-size-multiplier", "--data-pad-size-multiplier");
  }
  /// What shapes the model, as far as it is said.
  void architecture(const std::string& key) {
    constexpr std::array<const char*, 15> kShape{"num_layers",
                                                 "hidden_size",
                                                 "ffn_hidden_size",
                                                 "num_attention_heads",
                                                 "num_query_groups",
                                                 "kv_channels",
                                                 "untie_embeddings_and_output_weights",
                                                 "vocab_size",
                                                 "multi_latent_attention",
                                                 "q_lora_rank",
                                                 "kv_lora_rank",
                                                 "num_experts",
                                                 "moe_ffn_hidden_size",
                                                 "moe_router_topk",
                                                 "moe_shared_expert_intermediate_size"};
    FactValue out = FactValue::map();
    const char* first = nullptr;
    for (const char* name : kShape)
      if (t_.megatron.given(name)) {
        if (first == nullptr) first = name;
        out[megatron::spelling_of(name).substr(2)] = fact_of(t_.megatron.value(name));
      }
    if (first != nullptr) of_megatron(key, first, std::move(out));
  }

  /// Roles whose weights take the place of the actor's for a pass (slime/backends/megatron_utils/actor.py: _switch_model).
  void others() {
    if (m_.reference && m_.trains && m_.swaps && !by_fsdp(t_))
      swapped("ref", "ref_load", "--use-kl-loss, even with coefficient 0, or --kl-coef");
    if (m_.teacher && m_.trains && m_.swaps) swapped("teacher", "opd_teacher_load", "--use-opd --opd-type megatron");
    if (m_.critic && m_.trains) {
      own("roles.critic.model", "critic_load");
      code("roles.critic.engine", "megatron", std::string(t_.family->placement));
      derived("roles.critic.gpus", m_.actor_gpus, "as many as the actor", "--actor-num-gpus-per-node");
      code("roles.critic.placement", "shares:actor", std::string(t_.family->placement));
    }
  }
  void swapped(const std::string& role, const char* load, const char* trigger) {
    const std::string r = fmt::format("roles.{}.", role);
    own(r + "model", load);
    code(r + "engine", "megatron", fmt::format("{}/actor.py", t_.family->trainer));
    derived(r + "gpus", m_.actor_gpus, "the actor's", "--actor-num-gpus-per-node");
    code(r + "placement", "swapped_into:actor", fmt::format("{}/actor.py: _switch_model", t_.family->trainer));
    if (role == "ref")
      derived(r + "trigger", t_.own.on("use_kl_loss") ? "--use-kl-loss (even with coefficient 0)" : "--kl-coef", trigger,
              "--use-kl-loss");
  }

  void rollout() {
    const std::string r = "roles.rollout.";
    code(r + "engine", "sglang", fmt::format("{}/sglang_engine.py", t_.family->server));
    own(r + "model", "hf_checkpoint");
    derived(r + "gpus", m_.rollout_gpus, "--rollout-num-gpus, or the actor's", "--rollout-num-gpus");
    derived(r + "layout.replicas", m_.rollout_gpus / m_.engine_gpus, "GPUs / GPUs of an engine", "--rollout-num-gpus-per-engine");
    derived(r + "layout.tp", std::max<std::int64_t>(1, m_.engine_gpus / m_.server_stages), "GPUs of an engine / its stages",
            "--rollout-num-gpus-per-engine");
    derived(r + "layout.pp", m_.server_stages, "--sglang-pipeline-parallel-size", "--sglang-pipeline-parallel-size");
    of_server(r + "layout.dp_attention", {"data-parallel-size", "dp-size"}, 1);
    of_server(r + "layout.ep", {"expert-parallel-size", "ep-size", "ep"}, 1);
    by_flag(r + "layout.enable_dp_attention", t_.server_flag({"enable-dp-attention"}) != nullptr,
            t_.server_flag({"enable-dp-attention"}) != nullptr, "--sglang-enable-dp-attention", "sglang/srt/server_args.py");
    of_server(r + "memory_fraction", {"mem-fraction-static"});
    code(r + "memory_fraction_meaning",
         "SGLang mem_fraction_static: weights + KV share of the memory free at server start (the GPU is empty then)",
         "train.py: servers start first");
    of_server(r + "max_running_requests", {"max-running-requests"});
    of_server(r + "max_model_len", {"context-length"});
    of_server(r + "chunked_prefill", {"chunked-prefill-size"});
    of_server(r + "cuda_graph_sizes", {"cuda-graph-bs"}, nullptr, true);
    of_server(r + "cuda_graph_max_bs", {"cuda-graph-max-bs"});
    of_server(r + "kv_dtype", {"kv-cache-dtype"});
    of_server(r + "quantization", {"quantization"});
    of_server(r + "speculative", {"speculative-algorithm"});
    if (!t_.groups.empty()) groups(r + "groups");
    own(r + "client_concurrency", "sglang_server_concurrency");
    code(r + "placement", m_.colocated ? "shares:actor" : "own", std::string(t_.family->placement));
    derived(r + "sleeps", m_.offload_rollout, "--offload-rollout", "--colocate");
  }
  /// --sglang-config: groups of servers, with what is said of each.
  void groups(std::string key) {
    constexpr std::array<std::pair<std::string_view, std::string_view>, 6> kTold{
        {{"dp_size", "dp"},
         {"ep_size", "ep"},
         {"max_running_requests", "max_running_requests"},
         {"chunked_prefill_size", "chunked_prefill"},
         {"cuda_graph_max_bs", "cuda_graph_max_bs"},
         {"mem_fraction_static", "memory_fraction"}}};
    FactValue out = FactValue::list();
    for (const ServerGroup& g : t_.groups) {
      FactValue one = FactValue::map();
      one["worker_type"] = g.worker;
      one["gpus"] = g.gpus;
      one["gpus_per_engine"] = g.engine_gpus > 0 ? g.engine_gpus : m_.engine_gpus;
      for (const auto& [argument, fact] : kTold)
        for (const FileArgument& a : g.overrides)
          if (a.name == argument) one[fact] = fact_of_word(a.value);
      out.push_back(std::move(one));
    }
    own(std::move(key), "sglang_config", std::move(out));
  }
  void of_server(std::string key, std::initializer_list<std::string_view> names, FactValue otherwise = nullptr,
                 bool several = false) {
    const ServerFlag* flag = t_.server_flag(names);
    if (flag == nullptr || flag->values.empty())
      return by_flag(std::move(key), std::move(otherwise), false, fmt::format("--sglang-{}", *names.begin()),
                     "sglang/srt/server_args.py");
    FactValue value = several ? FactValue::list() : fact_of_word(flag->values.front());
    if (several)
      for (const std::string& one : flag->values) value.push_back(fact_of_word(one));
    by_flag(std::move(key), std::move(value), true, flag->written, "");
  }

  void update() {
    const std::string transport = t_.own.text("update_weight_transport");
    derived("weight_update.mode",
            m_.colocated        ? "cuda_ipc"
            : transport.empty() ? "nccl"
                                : transport,
            "--colocate, or --update-weight-transport", "--colocate");
    const std::string mode = t_.own.text("update_weight_mode");
    own("weight_update.content", "update_weight_mode", mode.empty() ? "full" : mode);
    own("weight_update.buffer_bytes", "update_weight_buffer_size");
  }

  SlimeText& t_;
  SlimeMeaning m_;
};

}  // namespace

SlimeMeaning meaning_of(SlimeText& text) { return Teller(text).run(); }

}  // namespace oomplan::slime
