// The rows. Their order is the order in which a job file is written.
#include <algorithm>
#include <array>

#include <fmt/ranges.h>

#include "job/knob_access.hpp"
#include "job/megatron_rows.hpp"
#include "job/unsupported.hpp"

namespace oomplan {
namespace {

using namespace knob;

Knob row(std::string_view key, KnobOf of, KnobType type, Access access, Effect effect, std::string_view help) {
  Knob k;
  k.key = key;
  k.of = of;
  k.type = type;
  k.get = access.get;
  k.set = access.set;
  k.effect = effect;
  k.help = help;
  return k;
}
Knob&& within(Knob&& k, Limit64 limits, std::string_view unit = {}) {
  k.limits = limits;
  k.unit = unit;
  return std::move(k);
}
Knob&& between(Knob&& k, double least, double most) {
  k.least = least;
  k.most = most;
  return std::move(k);
}
Knob&& zero_is(Knob&& k, std::string_view word) {
  k.zero = word;
  return std::move(k);
}
Knob&& one_of(Knob&& k, std::vector<std::string> choices) {
  k.choices = std::move(choices);
  return std::move(k);
}
Knob&& only_for(Knob&& k, EngineKind engine) {
  k.engine = engine;
  return std::move(k);
}
Knob&& saves(Knob&& k, std::string_view remedy) {
  k.remedy = remedy;
  return std::move(k);
}

/// "sglang 0.5.10": a name and perhaps a version.
struct NameAndVersion {
  std::string_view name, version;
};
NameAndVersion split(std::string_view text) {
  const auto space = text.find(' ');
  if (space == std::string_view::npos) return {text, {}};
  const auto rest = text.find_first_not_of(' ', space);
  return {text.substr(0, space), rest == std::string_view::npos ? std::string_view{} : text.substr(rest)};
}
bool is_version(std::string_view v) {
  if (v.empty() || v.size() > 40 || v.front() < '0' || v.front() > '9') return false;
  for (const char c : v)
    if (!((c >= '0' && c <= '9') || c == '.' || (c >= 'a' && c <= 'z') || c == '+' || c == '-')) return false;
  return true;
}

std::string get_gpus(const Job& j, const Role*) { return fmt::format("{} x {}", j.cluster.gpus, j.cluster.gpu); }
Refusal set_gpus(const Knob& k, Job& j, Role*, std::string_view text) {
  constexpr std::string_view kExpected = "a number and a kind of GPU, such as 8 x H100-80GB";
  const auto x = text.find(" x ");
  if (x == std::string_view::npos) return {std::string(kExpected), {}, {}};
  const auto said = read_count(text.substr(0, x));
  if (!said) return {std::string(kExpected), {}, said.why};
  if (!k.limits.holds(*said.value)) return {fmt::format("{} to {} GPUs", k.limits.least, k.limits.most), {}, {}};
  auto kind = text.substr(x + 3);
  while (!kind.empty() && kind.front() == ' ') kind.remove_prefix(1);
  if (kind.empty()) return {std::string(kExpected), {}, {}};
  j.cluster.gpus = *said.value;
  j.cluster.gpu = kind;
  return {};
}

std::string get_job_model(const Job& j, const Role*) {
  for (const auto& role : j.roles)
    if (role.model != j.roles[0].model) return {};
  return j.roles.empty() ? std::string{} : j.roles[0].model;
}
Refusal check_model(std::string_view text) {
  constexpr std::size_t kLongest = 4096;
  if (!text.empty() && text.size() <= kLongest) return {};
  return {"a model's name, hub id, directory or config.json", {}, {}};
}
Refusal set_job_model(const Knob&, Job& j, Role*, std::string_view text) {
  if (auto refusal = check_model(text); refusal.refused()) return refusal;
  for (auto& role : j.roles) {
    if (role.model != text) role.architecture = nullptr;
    role.model = text;
  }
  return {};
}
std::string get_model(const Job&, const Role* r) { return r->model; }
Refusal set_model(const Knob&, Job&, Role* r, std::string_view text) {
  if (auto refusal = check_model(text); refusal.refused()) return refusal;
  if (r->model != text) r->architecture = nullptr;
  r->model = text;
  return {};
}

std::string get_framework(const Job& j, const Role*) {
  for (const auto& role : j.roles)
    if (!role.serves())
      return role.trainer.framework_version.empty()
                 ? std::string(spelling(role.trainer.framework))
                 : fmt::format("{} {}", spelling(role.trainer.framework), role.trainer.framework_version);
  return {};
}
Refusal set_framework(const Knob& k, Job& j, Role*, std::string_view text) {
  const auto [name, version] = split(text);
  const auto framework = parse<Framework>(name);
  if (!framework) return refuse_choice(k, name);
  if (!version.empty() && !is_version(version)) return {"a version behind the name, such as areal 1.0.4", {}, {}};
  for (auto& role : j.roles) {
    role.trainer.framework = *framework;
    role.trainer.framework_version = version;
  }
  return {};
}

bool serving(EngineKind e) { return e == EngineKind::sglang || e == EngineKind::vllm; }
std::string get_engine(const Job&, const Role* r) {
  if (!r->serves() || r->server.version.empty()) return std::string(spelling(r->engine));
  return fmt::format("{} {}", spelling(r->engine), r->server.version);
}
Refusal set_engine(const Knob& k, Job&, Role* r, std::string_view text) {
  const auto [name, version] = split(text);
  const bool should_serve = r->kind == RoleKind::rollout || r->kind == RoleKind::server;
  const std::string expected = should_serve ? "sglang or vllm" : "fsdp2, fsdp1, ddp, deepspeed or single";
  const bool megatron = name == "megatron" && r->kind == RoleKind::trainer;  // of the RL frameworks not yet
  if (auto why = unsupported_value("engine", name); !megatron && !why.empty()) return {expected, {}, std::move(why)};
  if (name == "fsdp" && !should_serve) return {expected, "fsdp2", "AReaL calls FSDP2 fsdp, verl calls FSDP1 so"};
  const auto engine = parse<EngineKind>(name);
  if (!engine) return {expected, nearest(name, k.choices), {}};
  if (serving(*engine) != should_serve) return {expected, {}, fmt::format("{} {}", r->name, should_serve ? "serves" : "trains")};
  if (!version.empty() && !serving(*engine))
    return {fmt::format("{} without a version", name), {}, "a training engine has the version of 'framework'"};
  if (!version.empty() && !is_version(version)) return {"a version behind the name, such as vllm 0.11.0", {}, {}};
  r->engine = *engine;
  r->server.version = version;
  return {};
}

std::string get_beside(const Job&, const Role* r) { return r->beside.empty() ? "none" : r->beside; }
Refusal set_beside(const Knob&, Job& j, Role* r, std::string_view text) {
  if (text == "none") return r->beside.clear(), Refusal{};
  std::vector<std::string> others;
  for (const auto& role : j.roles)
    if (role.name != r->name) others.push_back(role.name);
  if (text == r->name) return {others.empty() ? "none" : list_of(others) + ", or none", {}, "a role cannot stand beside itself"};
  if (j.role(text) == nullptr)
    return {others.empty() ? "none" : list_of(others) + ", or none", nearest(text, others), "the job has no such role"};
  r->beside = text;
  return {};
}

std::string get_layout(const Job&, const Role* r) { return letters(r->layout()); }
Refusal set_layout(const Knob&, Job&, Role* r, std::string_view text) { return check_layout(text, r->layout()); }

std::string get_offload(const Job&, const Role* r) {
  const Trainer& t = r->trainer;
  if (t.offload_parameters && t.offload_optimizer) return "[parameters, optimizer]";
  return t.offload_parameters ? "[parameters]" : t.offload_optimizer ? "[optimizer]" : "[]";
}
/// "[parameters, optimizer]", "parameters", "[]", "none".
Refusal set_offload(const Knob& k, Job&, Role* r, std::string_view text) {
  if (text.starts_with('[') && text.ends_with(']')) text = text.substr(1, text.size() - 2);
  bool parameters = false, optimizer = false;
  while (!text.empty() && text != "none") {
    const auto comma = text.find(',');
    std::string_view item = text.substr(0, comma);
    text = comma == std::string_view::npos ? std::string_view{} : text.substr(comma + 1);
    while (item.starts_with(' ')) item.remove_prefix(1);
    while (item.ends_with(' ')) item.remove_suffix(1);
    if (item.empty() && !parameters && !optimizer && text.empty()) break;
    if (item != "parameters" && item != "optimizer") {
      auto refusal = refuse_choice(k, item == "weights" ? "parameters" : item);
      refusal.nearest = item == "weights" ? "parameters" : refusal.nearest;
      return refusal;
    }
    (item == "parameters" ? parameters : optimizer) = true;
  }
  r->trainer.offload_parameters = parameters;
  r->trainer.offload_optimizer = optimizer;
  return {};
}

std::string get_liger(const Job&, const Role* r) {
  const Liger& fused = r->trainer.liger;
  std::vector<std::string_view> names;
  if (fused.rope) names.emplace_back("rope");
  if (fused.rms_norm) names.emplace_back("rms_norm");
  if (fused.swiglu) names.emplace_back("swiglu");
  return fmt::format("[{}]", fmt::join(names, ", "));
}
/// "[rope, rms_norm]", "swiglu", "[]", "none".
Refusal set_liger(const Knob& k, Job&, Role* r, std::string_view text) {
  if (text.starts_with('[') && text.ends_with(']')) text = text.substr(1, text.size() - 2);
  Liger fused;
  fused.version = r->trainer.liger.version;
  while (!text.empty() && text != "none") {
    const auto comma = text.find(',');
    std::string_view item = text.substr(0, comma);
    text = comma == std::string_view::npos ? std::string_view{} : text.substr(comma + 1);
    while (item.starts_with(' ')) item.remove_prefix(1);
    while (item.ends_with(' ')) item.remove_suffix(1);
    if (item == "rope")
      fused.rope = true;
    else if (item == "rms_norm")
      fused.rms_norm = true;
    else if (item == "swiglu")
      fused.swiglu = true;
    else
      return refuse_choice(k, item);
  }
  r->trainer.liger = fused;
  return {};
}
std::string get_liger_version(const Job&, const Role* r) {
  return r->trainer.liger.version.empty() ? "newest" : r->trainer.liger.version;
}
Refusal set_liger_version(const Knob&, Job&, Role* r, std::string_view text) {
  if (text == "newest") return r->trainer.liger.version.clear(), Refusal{};
  if (!is_version(text)) return {"a release of Liger-Kernel such as 0.8.2, or newest", {}, {}};
  r->trainer.liger.version = text;
  return {};
}

std::string get_transformers(const Job&, const Role* r) {
  return r->trainer.transformers_version.empty() ? "newest" : r->trainer.transformers_version;
}
Refusal set_transformers(const Knob&, Job&, Role* r, std::string_view text) {
  if (text == "newest") return r->trainer.transformers_version.clear(), Refusal{};
  if (!is_version(text)) return {"a release of transformers such as 4.46.3, or newest", {}, {}};
  r->trainer.transformers_version = text;
  return {};
}
std::string get_bitsandbytes(const Job&, const Role* r) {
  const std::string& version = r->trainer.lora.base.version;
  return version.empty() ? "newest" : version;
}
Refusal set_bitsandbytes(const Knob&, Job&, Role* r, std::string_view text) {
  if (text == "newest") return r->trainer.lora.base.version.clear(), Refusal{};
  if (!is_version(text)) return {"a release of bitsandbytes such as 0.49.2, or newest", {}, {}};
  r->trainer.lora.base.version = text;
  return {};
}

/// Modules that LoRA can stand beside; families whose own names differ (GPT-2's c_attn) are described with these.
std::vector<std::string> adapter_targets() {
  return {"all-linear", "q_proj", "k_proj",       "v_proj",   "o_proj",   "qkv_proj",           "gate_proj", "up_proj",
          "down_proj",  "fc1",    "gate_up_proj", "q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "lm_head"};
}
std::string get_weights(const Job&, const Role* r) {
  const bool stored = r->server.as_stored && r->kind == RoleKind::server;
  return stored && r->server.weights == DType::bf16 ? "auto" : std::string(name(r->server.weights));
}
Refusal set_weights(const Knob& k, Job& job, Role* r, std::string_view text) {
  if (text == "auto") {
    r->server.as_stored = true;
    r->server.weights = DType::bf16;
    return {};
  }
  const Refusal result = knob::choice<&Server::weights>().set(k, job, r, text);
  if (!result.refused() && r->kind == RoleKind::server) r->server.as_stored = false;  // a rollout is never as stored
  return result;
}

/// Those that a server can have room beside.
std::vector<std::string> slot_targets() {
  return {"all-linear", "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "embed_tokens", "lm_head"};
}
std::string get_targets(const Job&, const Role* r) {
  const auto& targets = r->serves() ? r->server.lora.targets : r->trainer.lora.targets;
  return fmt::format("[{}]", targets.empty() ? "all-linear" : fmt::format("{}", fmt::join(targets, ", ")));
}
/// "[q_proj, v_proj]", "q_proj", "all-linear".
Refusal set_targets(const Knob& k, Job&, Role* r, std::string_view text) {
  if (text.starts_with('[') && text.ends_with(']')) text = text.substr(1, text.size() - 2);
  std::vector<std::string> targets;
  bool all = false;
  while (!text.empty()) {
    const auto comma = text.find(',');
    std::string_view item = text.substr(0, comma);
    text = comma == std::string_view::npos ? std::string_view{} : text.substr(comma + 1);
    while (item.starts_with(' ')) item.remove_prefix(1);
    while (item.ends_with(' ')) item.remove_suffix(1);
    if (std::find(k.choices.begin(), k.choices.end(), item) == k.choices.end()) return refuse_choice(k, item);
    if (item == "all-linear")
      all = true;
    else if (std::find(targets.begin(), targets.end(), item) == targets.end())
      targets.emplace_back(item);
  }
  if (all == !targets.empty()) return {"all-linear, or a list of modules such as [q_proj, v_proj]", {}, {}};
  (r->serves() ? r->server.lora.targets : r->trainer.lora.targets) = std::move(targets);
  return {};
}
template <auto M>
std::string none_or(const Job& j, const Role* r) {
  return knob::read<M>(j, r) == 0 ? std::string("none") : knob::count<M>().get(j, r);
}
std::string get_dropout(const Job&, const Role* r) { return number_text(r->trainer.lora.dropout); }

std::string get_name(const Job& j, const Role*) { return j.name; }
Refusal set_name(const Knob&, Job& j, Role*, std::string_view text) {
  constexpr std::size_t kLongest = 200;
  if (text.size() > kLongest) return {fmt::format("a name of at most {} letters", kLongest), {}, {}};
  j.name = text;
  return {};
}

std::vector<Knob> job_rows() {
  using enum KnobType;
  using enum Effect;
  const auto of = KnobOf::job;
  return {
      row("name", of, text, {get_name, set_name}, free, "a name for reports"),
      within(row("gpus", of, text, {get_gpus, set_gpus}, semantics, "number and kind of the GPUs: 8 x H100-80GB"), kGpuLimit),
      within(row("gpus_per_node", of, count, knob::count<&Cluster::gpus_per_node>(), semantics, "GPUs of one machine"),
             kGpusPerNodeLimit, "GPUs"),
      zero_is(within(row("host_memory", of, KnobType::bytes, bytes_or_auto<&Cluster::host_memory>(), semantics,
                         "RAM of one machine; auto: not compared"),
                     kMemoryLimit),
              "auto"),
      within(row("others", of, KnobType::bytes, knob::bytes<&Cluster::others>(), semantics,
                 "memory that other processes hold on every GPU"),
             kMemoryLimit),
      row("model", of, text, {get_job_model, set_job_model}, semantics,
          "model of every role that names none: name, hub id or path"),
      one_of(row("framework", of, text, {get_framework, set_framework}, semantics,
                 "what drives the training engines, with its version: areal 1.0.4, verl 0.9.0, agilerl 2.8, torch"),
             {"areal", "verl", "agilerl", "torch"}),
      within(row("prompt_tokens", of, count, knob::count<&Job::prompt_tokens>(), semantics, "longest prompt"),
             {0, kTokenLimit.most}, "tokens"),
      within(row("response_tokens", of, count, knob::count<&Job::response_tokens>(), semantics, "longest response"),
             {0, kTokenLimit.most}, "tokens"),
      zero_is(within(row("sequences_per_step", of, count, count_or_auto<&Job::sequences_per_step>(), semantics,
                         "sequences of one training step over the whole job: prompts times samples"),
                     kSequenceLimit, "sequences"),
              "auto"),
      zero_is(within(row("samples_per_prompt", of, count, count_or_auto<&Job::samples_per_prompt>(), semantics,
                         "responses to one prompt: the server computes the prompt once for all of them"),
                     kSequenceLimit, "responses"),
              "auto"),
      saves(row("expandable_segments", of, flag, knob::flag<&Job::expandable_segments>(), free,
                "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True for the trainers"),
            "lets the caching allocator grow its segments, which lowers fragmentation"),
      one_of(saves(row("sync.by", of, choice, knob::choice<&Sync::by>(), speed, "how new weights reach the servers"),
                   "hands new weights over in files: no buckets on the GPUs; slower, and all nodes need one folder"),
             spellings<SyncBy>()),
      saves(within(row("sync.bucket", of, KnobType::bytes, knob::bytes<&Sync::bucket>(), speed,
                       "weights that are sent in one go: weight_chunked_mem_mb, update_weights_bucket_megabytes"),
                   {kMiB, kMemoryLimit.most}),
            "sends the weights in smaller pieces; the update takes longer"),
  };
}

std::vector<Knob> role_rows() {
  using enum KnobType;
  using enum Effect;
  const auto of = KnobOf::role;
  return {
      row("model", of, text, {get_model, set_model}, semantics, "model of this role"),
      one_of(row("engine", of, text, {get_engine, set_engine}, semantics,
                 "fsdp2, fsdp1, ddp, deepspeed, single, megatron (trainer), sglang or vllm; servers with a version"),
             {"fsdp2", "fsdp1", "ddp", "deepspeed", "single", "sglang", "vllm"}),
      row("beside", of, text, {get_beside, set_beside}, semantics, "role whose GPUs it shares, or none"),
      row("in_process", of, flag, knob::flag<&Role::in_process>(), semantics,
          "with beside: shares the process too, so one CUDA context and one caching allocator"),
      saves(row("layout", of, layout, {get_layout, set_layout}, speed,
                "degrees of parallelism: d data, t tensor, p pipeline, c context (Ulysses), e expert"),
            "splits the work over more GPUs; more communication"),
  };
}

std::vector<std::string> supported_heads() {
  auto out = spellings<LossHead>();
  std::erase_if(out, [](const std::string& head) { return !unsupported_value("head", head).empty(); });
  return out;
}

std::vector<Knob> trainer_rows() {
  using enum KnobType;
  using enum Effect;
  const auto of = KnobOf::trains, learner = KnobOf::learns;
  return {
      saves(within(row("tokens_per_micro_batch", of, count, knob::count<&Trainer::tokens_per_micro_batch>(), speed,
                       "packed tokens of a data-parallel rank in one micro-batch, before Ulysses divides them"),
                   kTokenLimit, "tokens"),
            "smaller micro-batches: fewer activations and logits; more micro-batches, so a longer step"),
      saves(zero_is(
                within(row("logprob_tokens_per_micro_batch", of, count, count_or_auto<&Trainer::logprob_tokens_per_micro_batch>(),
                           speed, "the same in forward-only passes; auto: tokens_per_micro_batch"),
                       kTokenLimit, "tokens"),
                "auto"),
            "smaller forward-only micro-batches: fewer logits at once; a longer log-prob pass"),
      zero_is(within(row("sequence_tokens", of, count, count_or_auto<&Trainer::sequence_tokens>(), semantics,
                         "longest sequence; with sequences_per_micro_batch the length to which all are padded"),
                     kTokenLimit, "tokens"),
              "auto"),
      saves(zero_is(within(row("sequences_per_micro_batch", of, count, count_or_auto<&Trainer::sequences_per_micro_batch>(),
                               speed, "padded sequences of a rank in one micro-batch; auto: sequences are packed"),
                           kSequenceLimit, "sequences"),
                    "auto"),
            "fewer sequences at once: fewer activations and logits; more micro-batches, so a longer step"),
      zero_is(within(row("micro_batches", of, count, count_or_auto<&Trainer::micro_batches>(), semantics,
                         "micro-batches of a rank in one step; auto: from the batch"),
                     kMicroBatchLimit, "micro-batches"),
              "auto"),
      one_of(saves(row("recompute", of, choice, knob::choice<&Trainer::recompute>(), speed,
                       "full: every layer keeps only its input and is computed again in the backward pass; selective: "
                       "torchtitan's choice by operator, which keeps attention's result and every second matrix product"),
                   "keeps only the input of each layer; the backward pass computes the layer again (about a third more compute)"),
             spellings<Recompute>()),
      row("reentrant", of, flag, knob::flag<&Trainer::reentrant>(), speed, "the checkpoint's use_reentrant"),
      one_of(row("kernels", of, choice, knob::choice<&Trainer::kernels>(), speed,
                 "implementation of the operators; litgpt: LitGPT from 0.4.6 on, litgpt_0_4_5: up to then"),
             spellings<Kernels>()),
      one_of(saves(row("liger", of, items, {get_liger, set_liger}, speed,
                       "operators of Liger-Kernel in the layers: [rope, rms_norm, swiglu]; its losses are heads"),
                   "fused operators keep fewer tensors for the backward pass"),
             {"rope", "rms_norm", "swiglu"}),
      row("transformers", of, text, {get_transformers, set_transformers}, semantics,
          "release of transformers whose loss and SDPA call hf_* are: newest, or such as 4.46.3"),
      row("liger_version", of, text, {get_liger_version, set_liger_version}, semantics,
          "release of Liger-Kernel: newest, or such as 0.5.10"),
      one_of(saves(row("precision.storage", of, choice, knob::choice<&Trainer::storage>(), numerics,
                       "format in which parameters, gradients and optimizer states lie between steps"),
                   "halves parameters, gradients and optimizer states; small updates are lost to rounding"),
             {"fp32", "bf16", "fp16", "float32", "bfloat16", "float16"}),
      one_of(row("precision.compute", of, choice, knob::choice<&Trainer::compute>(), numerics,
                 "format of the forward and backward pass"),
             {"fp32", "bf16", "fp16", "float32", "bfloat16", "float16"}),
      one_of(saves(row("precision.reduce", of, choice, knob::choice<&Trainer::reduce>(), numerics,
                       "format of the gradients while they are summed over the ranks"),
                   "halves the buffers of the gradient reduction; sums are rounded"),
             {"fp32", "bf16", "fp16", "float32", "bfloat16", "float16"}),
      row("autocast", of, flag, knob::flag<&Trainer::autocast>(), numerics, "torch.autocast around the forward pass"),
      one_of(row("optimizer", learner, choice, knob::choice<&Trainer::optimizer>(), semantics, "optimizer"),
             spellings<OptimizerKind>()),
      one_of(saves(row("optimizer_form", learner, choice, knob::choice<&Trainer::optimizer_form>(), speed,
                       "torch.optim's implementation: foreach, fused, or a loop over the parameters"),
                   "the fused step makes no temporary copies"),
             spellings<OptimizerForm>()),
      row("amsgrad", learner, flag, knob::flag<&Trainer::amsgrad>(), semantics, "Adam and AdamW: amsgrad, a third state"),
      row("clip", learner, flag, knob::flag<&Trainer::clip>(), semantics, "gradients are clipped by their norm"),
      zero_is(within(row("lora.rank", learner, count, {none_or<&Lora::rank>, knob::count<&Lora::rank>().set}, semantics,
                         "LoRA: rank of the adapters; everything else is frozen. none: all parameters are trained"),
                     kAdapterRankLimit),
              "none"),
      one_of(row("lora.targets", learner, items, {get_targets, set_targets}, semantics,
                 "modules with adapters: all-linear (all but the output layer), or [q_proj, v_proj, ...]"),
             adapter_targets()),
      within(row("lora.alpha", learner, count, knob::count<&Lora::alpha>(), semantics, "the adapters' factor is alpha / rank"),
             {1, pow2(20)}),
      between(row("lora.dropout", learner, number, {get_dropout, number_or_auto<&Lora::dropout>().set}, semantics,
                  "rate of the dropout in front of the adapters"),
              0, 0.99),
      one_of(row("lora.format", learner, choice, knob::choice<&Lora::format>(), numerics,
                 "format of the adapters, their gradients and states: fp32, or precision.storage like the frozen parameters"),
             spellings<AdapterFormat>()),
      within(row("lora.frozen_copies", learner, count, knob::count<&Lora::frozen_copies>(), semantics,
                 "adapters of the same size that are not trained: AgileRL's reference policy"),
             {0, 8}),
      row("lora.dora", learner, flag, knob::flag<&Lora::dora>(), semantics,
          "DoRA: the adapters' product is scaled by a trained magnitude for each row"),
      one_of(saves(row("lora.base", learner, choice, knob::choice<&QuantisedBase::format>(), numerics,
                       "linear layers of the frozen base: full, or as bitsandbytes packs them (QLoRA: nf4)"),
                   "packs the frozen matrices; each is unpacked for its products"),
             spellings<BaseFormat>()),
      row("lora.base_double_quant", learner, flag, knob::flag<&QuantisedBase::double_quant>(), numerics,
          "4 bits: the scales of blocks are quantised too (bnb_4bit_use_double_quant)"),
      one_of(row("lora.base_compute", learner, choice, knob::choice<&QuantisedBase::compute>(), numerics,
                 "4 bits: format of the matrix products (bnb_4bit_compute_dtype)"),
             {"fp32", "bf16", "fp16", "float32", "bfloat16", "float16"}),
      row("lora.prepare_kbit", learner, flag, knob::flag<&QuantisedBase::prepare_kbit>(), numerics,
          "peft's prepare_model_for_kbit_training: embeddings, norms and output layer are cast to fp32"),
      row("lora.bitsandbytes", learner, text, {get_bitsandbytes, set_bitsandbytes}, semantics,
          "release of bitsandbytes that packs the base: 0.49.2, or newest"),
      one_of(saves(row("offload", of, items, {get_offload, set_offload}, speed,
                       "what lies in host memory while other phases run: [parameters, optimizer]"),
                   "moves states to the host between phases; each phase begins and ends with a copy"),
             {"parameters", "optimizer"}),
      saves(row("cpu_offload_policy", of, flag, knob::flag<&Trainer::cpu_offload_policy>(), speed,
                "FSDP2's CPUOffloadPolicy, FSDP1's CPUOffload: parameters, gradients and optimizer states live on the host"),
            "keeps only gathered layers on the GPU; every layer crosses the bus and the optimizer runs on the CPU"),
      saves(row("reshard_after_forward", of, flag, knob::flag<&Trainer::reshard_after_forward>(), speed,
                "the layers' gathered parameters are freed after the forward pass"),
            "frees gathered parameters after the forward pass; the backward pass gathers them again"),
      row("root_reshard", of, flag, knob::flag<&Trainer::root_reshard>(), speed, "the same for the root unit"),
      zero_is(within(row("reshard_ranks", of, count, count_or_auto<&Trainer::reshard_ranks>(), speed,
                         "what is resharded after the forward pass is split over so many ranks until backward; auto: over all"),
                     kGpuLimit, "ranks"),
              "auto"),
      row("forward_prefetch", of, flag, knob::flag<&Trainer::forward_prefetch>(), speed,
          "every layer gathers the next one's parameters: set_modules_to_forward_prefetch, FSDP1's forward_prefetch"),
      one_of(
          saves(row("backward_prefetch", learner, choice, knob::choice<&Trainer::backward_prefetch>(), speed,
                    "FSDP1: when the backward pass gathers the next unit: before this one computes (pre), behind it (post), or "
                    "when it is its turn (none)"),
                "one unit less is gathered in the backward pass, which waits for every gather"),
          spellings<BackwardPrefetch>()),
      row("use_orig_params", learner, flag, knob::flag<&Trainer::use_orig_params>(), free,
          "FSDP1: the optimizer sees parameters, not flat ones; zero_grad then frees no gradients"),
      row("wrap_embedding", of, flag, knob::flag<&Trainer::wrap_embedding>(), speed, "the embedding is an FSDP unit of its own"),
      row("wrap_head", of, flag, knob::flag<&Trainer::wrap_head>(), speed, "the output layer is an FSDP unit of its own"),
      row("wrap_norm", of, flag, knob::flag<&Trainer::wrap_norm>(), speed,
          "with wrap_head: the final norm shares the unit of the output layer"),
      row("reshard_last", of, flag, knob::flag<&Trainer::reshard_last>(), speed,
          "false: what is last (the output layer's unit, or else the last layer) stays gathered from forward to backward"),
      saves(row("gradient_sync_every_micro_batch", learner, flag, knob::flag<&Trainer::gradient_sync_every_micro_batch>(), speed,
                "gradients are reduced in every micro-batch, not only in the last"),
            "keeps only the shard of the gradients between micro-batches; more communication"),
      row("keep_gradients", learner, flag, knob::flag<&Trainer::keep_gradients>(), free,
          "zero_grad(set_to_none=False): gradients stay from step to step, filled with zeros"),
      row("step_every_micro_batch", learner, flag, knob::flag<&Trainer::step_every_micro_batch>(), semantics,
          "an optimizer step behind each micro-batch: no gradients are accumulated"),
      saves(row("gradient_as_bucket_view", learner, flag, knob::flag<&Trainer::gradient_as_bucket_view>(), free,
                "DDP: gradients are views of the buckets of the reduction"),
            "gradients lie in the buckets of the reduction, not beside them"),
      zero_is(within(row("bucket_cap_mb", learner, count, count_or_auto<&Trainer::bucket_cap_mb>(), speed,
                         "DDP: MiB of gradients that are reduced at once; auto: 25, the first time 1"),
                     kBucketLimit, "MiB"),
              "auto"),
      within(
          row("replicas", of, count, knob::count<&Trainer::replicas>(), speed,
              "HSDP: shard groups that each hold all parameters; 1: the parameters are split over all ranks; FSDP1: as many as "
              "ranks are NO_SHARD"),
          kGpuLimit, "groups"),
      within(saves(row("zero.stage", of, count, knob::count<&Zero::stage>(), speed,
                       "DeepSpeed's ZeRO: 1 splits optimizer states, 2 gradients too, 3 parameters too"),
                   "splits more over the ranks; more communication"),
             {1, 3}),
      saves(within(row("zero.reduce_bucket", learner, count, knob::count<&Zero::reduce_bucket>(), speed,
                       "reduce_bucket_size: elements of gradients that are reduced at once"),
                   kZeroBucketLimit, "elements"),
            "a smaller bucket of gradients; more, smaller reductions"),
      within(row("zero.allgather_bucket", of, count, knob::count<&Zero::allgather_bucket>(), speed,
                 "allgather_bucket_size: updated parameters that stages 1 and 2 gather at once, in place"),
             kZeroBucketLimit, "elements"),
      saves(within(row("zero.prefetch_bucket", of, count, knob::count<&Zero::prefetch_bucket>(), speed,
                       "stage3_prefetch_bucket_size: elements of parameters that every module gathers ahead"),
                   {0, kZeroBucketLimit.most}, "elements"),
            "fewer parameters are gathered ahead; modules wait for their own"),
      within(row("zero.persistence_threshold", of, count, knob::count<&Zero::persistence_threshold>(), speed,
                 "stage3_param_persistence_threshold: parameters of at most so many elements stay gathered"),
             {0, kZeroBucketLimit.most}, "elements"),
      saves(within(row("zero.max_live", of, count, knob::count<&Zero::max_live>(), speed,
                       "stage3_max_live_parameters: nothing is gathered ahead above so many gathered elements"),
                   {0, kZeroBucketLimit.most}, "elements"),
            "fewer parameters are gathered at once; modules wait for their own"),
      saves(within(row("zero.max_reuse_distance", of, count, knob::count<&Zero::max_reuse_distance>(), speed,
                       "stage3_max_reuse_distance: what is used again within so many elements of parameters stays gathered"),
                   {0, kZeroBucketLimit.most}, "elements"),
            "parameters go as soon as a module ends, and are gathered again"),
      saves(within(row("zero.sub_group", learner, count, knob::count<&Zero::sub_group>(), speed,
                       "sub_group_size: the optimizer's step goes through a rank's parameters in groups of so many elements"),
                   kZeroBucketLimit, "elements"),
            "a smaller part of the gradients is fp32 at once; a slightly longer step"),
      row("zero.overlap_comm", learner, flag, knob::flag<&Zero::overlap_comm>(), speed,
          "stages 1 and 2: overlap_comm, gradients are reduced from a second bucket while they are computed"),
      row("zero.contiguous_gradients", learner, flag, knob::flag<&Zero::contiguous_gradients>(), speed,
          "contiguous_gradients: gradients are copied into the bucket as they come"),
      saves(row("zero.offload_optimizer", learner, flag, knob::flag<&Zero::offload_optimizer>(), speed,
                "offload_optimizer to the CPU: masters, states and the step (DeepSpeedCPUAdam) are the host's"),
            "masters and states lie on the host, where the optimizer steps: slow"),
      saves(row("zero.offload_parameters", of, flag, knob::flag<&Zero::offload_parameters>(), speed,
                "stage 3: offload_param to the CPU, shards come when they are gathered"),
            "shards of parameters lie on the host; every gather crosses the bus"),
      saves(
          row("offload_checkpoints", learner, flag, knob::flag<&Trainer::offload_checkpoints>(), speed,
              "ArcticTraining's activation_checkpoint_cpu_offload: inputs of checkpointed layers lie on the host until backward"),
          "inputs of layers lie on the host until the backward pass; two copies across the bus"),
      saves(row("tiled_mlp", of, flag, knob::flag<&Trainer::tiled_mlp>(), speed,
                "DeepSpeed's TiledMLP as ArcticTraining calls it: feed-forward blocks run over about `hidden` tokens at a time, "
                "and "
                "once more in backward"),
            "the feed-forward block's wide tensors exist for a few thousand tokens at a time"),
      saves(row("memory_efficient_load", of, flag, knob::flag<&Trainer::memory_efficient_load>(), free,
                "AReaL: rank 0 loads the model on the host and sends it; without it every GPU loads the whole model"),
            "loads the model on the host of rank 0; the start takes longer"),
      one_of(row("head", of, choice, knob::choice<&Trainer::head>(), numerics, "what follows the last hidden state"),
             supported_heads()),
      zero_is(within(row("logits_to_keep", of, count, count_or_auto<&Trainer::logits_to_keep>(), semantics,
                         "only so many tokens reach the output layer; auto: all"),
                     kTokenLimit, "tokens"),
              "auto"),
      row("padding_mask", of, flag, knob::flag<&Trainer::padding_mask>(), semantics, "batches carry a 2-D attention mask"),
      row("keep_outputs", of, flag, knob::flag<&Trainer::keep_outputs>(), semantics,
          "the training loop keeps the model's output through the backward pass"),
      row("sdpa_math", of, flag, knob::flag<&Trainer::sdpa_math>(), numerics, "SDPA is forced to its math kernel"),
      one_of(row("rms_norm", of, choice, knob::choice<&Trainer::rms_norm>(), speed,
                 "torchtitan's RMSNorm: fused (nn.RMSNorm from PyTorch 2.9 on) or by_hand (written out in fp32)"),
             spellings<RmsNorm>()),
      row("repeat_kv", of, flag, knob::flag<&Trainer::repeat_kv>(), speed,
          "torchtitan up to 0.2.1: keys and values are copied to all heads in front of attention"),
      row("kernel_internals", of, flag, knob::flag<&Trainer::kernel_internals>(), semantics,
          "buffers inside fused kernels are counted (false: to compare with tools that cannot see them)"),
  };
}

std::vector<Knob> server_rows() {
  using enum KnobType;
  using enum Effect;
  const auto of = KnobOf::serves;
  const auto fraction = [&](std::string_view key, EngineKind engine, std::string_view help) {
    return only_for(zero_is(between(saves(row(key, of, number, number_or_auto<&Server::memory_fraction>(), speed, help),
                                          "leaves more to others on the GPU; a smaller KV cache, so fewer requests at once"),
                                    0.01, 0.99),
                            "auto"),
                    engine);
  };
  return {
      fraction("mem_fraction_static", EngineKind::sglang, "share of the memory free at the start for weights and KV cache"),
      fraction("gpu_memory_utilization", EngineKind::vllm, "share of the whole GPU that the engine may use"),
      zero_is(within(row("concurrency", of, count, count_or_auto<&Server::concurrency>(), speed,
                         "requests in flight that the job asks of all replicas together; auto: unstated"),
                     kRequestLimit, "requests"),
              "auto"),
      saves(zero_is(within(row("max_running_requests", of, count, count_or_auto<&Server::max_running>(), speed,
                               "most requests in one batch of a replica: max_running_requests, max_num_seqs"),
                           kRequestLimit, "requests"),
                    "auto"),
            "smaller batches: fewer and smaller CUDA graphs, less state"),
      zero_is(within(row("max_model_len", of, count, count_or_auto<&Server::max_model_len>(), semantics,
                         "longest request: context_length, max_model_len; auto: the model's"),
                     kTokenLimit, "tokens"),
              "auto"),
      saves(zero_is(within(row("batched_tokens", of, count, count_or_auto<&Server::batched_tokens>(), speed,
                               "most tokens of one forward pass: chunked_prefill_size, max_num_batched_tokens"),
                           kTokenLimit, "tokens"),
                    "auto"),
            "smaller prefill chunks: fewer activations; a longer prefill"),
      one_of(row("weights", of, choice, {get_weights, set_weights}, numerics,
                 "format of the weights; auto: as the checkpoint stores them (quantization_config), else its 16 bits"),
             {"auto", "bf16", "fp16", "fp32", "fp8", "bfloat16", "float16", "float32"}),
      one_of(saves(row("kv", of, choice, knob::choice<&Server::kv>(), numerics, "format of the KV cache"),
                   "half the bytes per token of the KV cache; attention reads rounded keys and values"),
             {"bf16", "fp16", "fp32", "fp8", "bfloat16", "float16", "float32"}),
      only_for(zero_is(between(row("swa_full_tokens_ratio", of, number, number_or_auto<&Server::swa_ratio>(), speed,
                                   "tokens of the sliding-window pool for one of the full-attention pool"),
                               0.001, 1),
                       "auto"),
               EngineKind::sglang),
      only_for(zero_is(between(row("mamba_full_memory_ratio", of, number, number_or_auto<&Server::state_ratio>(), speed,
                                   "memory of the recurrent states for that of the KV cache"),
                               0.001, 100),
                       "auto"),
               EngineKind::sglang),
      row("uniform_windows", of, flag, knob::flag<&Server::uniform_windows>(), speed,
          "sliding-window layers keep all tokens: disable_hybrid_kv_cache_manager, disable_hybrid_swa_memory"),
      only_for(zero_is(within(row("kv_cache_memory", of, KnobType::bytes, bytes_or_auto<&Server::kv_cache_bytes>(), speed,
                                  "the KV cache, whatever gpu_memory_utilization says: kv_cache_memory_bytes"),
                              kMemoryLimit, "bytes"),
                       "auto"),
               EngineKind::vllm),
      zero_is(within(row("page_tokens", of, count, count_or_auto<&Server::page_tokens>(), speed,
                         "tokens of one page of the KV cache: block_size, page_size"),
                     {1, pow2(20)}, "tokens"),
              "auto"),
      saves(zero_is(within(row("graph_batch", of, count, count_or_auto<&Server::graph_batch>(), speed,
                               "largest batch that CUDA graphs are captured for: cuda_graph_max_bs, max_cudagraph_capture_size"),
                           kRequestLimit, "requests"),
                    "auto"),
            "fewer and smaller CUDA graphs; larger batches run without one"),
      zero_is(within(row("draft_tokens", of, count, {none_or<&Server::draft_tokens>, knob::count<&Server::draft_tokens>().set},
                         semantics, "tokens that the model's own MTP blocks guess ahead: num_speculative_tokens; vLLM only"),
                     {1, 64}, "tokens"),
              "none"),
      saves(row("enforce_eager", of, flag, knob::flag<&Server::eager>(), speed, "no CUDA graphs"),
            "no CUDA graphs and no memory for them; slower decoding"),
      saves(within(row("sleep", of, count, knob::count<&Server::sleep_level>(), speed,
                       "what is given back between phases on shared GPUs: 0 nothing, 1 KV cache, weights go to the host, 2 both "
                       "are dropped"),
                   {0, 2}),
            "gives the memory of the server back while others run; waking up takes time"),
      zero_is(
          within(row("lora.slots", of, count, {none_or<&AdapterSlots::slots>, knob::count<&AdapterSlots::slots>().set}, semantics,
                     "LoRA adapters that one batch can use: max_loras_per_batch, max_loras; none: the server takes none"),
                 {1, pow2(10)}),
          "none"),
      zero_is(within(row("lora.rank", of, count, {none_or<&AdapterSlots::rank>, knob::count<&AdapterSlots::rank>().set},
                         semantics, "largest rank that a slot has room for: max_lora_rank"),
                     kAdapterRankLimit),
              "none"),
      one_of(row("lora.targets", of, items, {get_targets, set_targets}, semantics,
                 "SGLang: modules that have slots; vLLM makes them beside every linear layer"),
             slot_targets()),
  };
}

/// Settings that one training engine alone has, by how their keys begin.
constexpr std::pair<std::string_view, EngineKind> kOfOneEngine[] = {
    {"zero.", EngineKind::deepspeed}, {"bucket_cap_mb", EngineKind::ddp}, {"gradient_as_bucket_view", EngineKind::ddp}};

std::vector<Knob> all_rows() {
  std::vector<Knob> out;
  for (auto* rows : {job_rows, role_rows, trainer_rows, megatron_rows, server_rows})
    for (auto& k : rows()) {
      for (const auto& [beginning, engine] : kOfOneEngine)
        if (k.key.starts_with(beginning)) k.engine = engine;
      out.push_back(std::move(k));
    }
  return out;
}

}  // namespace

const std::vector<Knob>& knobs() {
  static const std::vector<Knob> rows = all_rows();
  return rows;
}

}  // namespace oomplan
