// The rows. Their order is the order in which a job file is written.
#include "catalog/engine_releases.hpp"
#include "job/knob_table.hpp"
#include "job/megatron_rows.hpp"
#include "job/role_names.hpp"
#include "job/training_loop.hpp"
#include "job/unsupported.hpp"
#include "units/gpus_text.hpp"

namespace oomplan {
namespace {

using namespace knob;

std::string get_gpus(const Job& j, const Role*) { return fmt::format("{} x {}", j.cluster.gpus, j.cluster.gpu); }
Refusal set_gpus(const Knob& k, Job& j, Role*, std::string_view text) {
  constexpr std::string_view kExpected = "a number and a kind of GPU, such as 8 x H100-80GB";
  const GpusSaid said = read_gpus(text);
  if (!said.count || (said.kind.empty() && j.cluster.gpu.empty())) return {std::string(kExpected), {}, {}};
  if (!k.limits.holds(*said.count)) return {fmt::format("{} to {} GPUs", k.limits.least, k.limits.most), {}, {}};
  j.cluster.gpus = *said.count;
  if (!said.kind.empty()) j.cluster.gpu = said.kind;
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
  const auto [name, version] = split_version(text);
  const auto framework = parse<Framework>(name);
  if (!framework) return refuse_choice(k, name);
  if (!version.empty() && !is_version(version)) return {"a version behind the name, such as areal 1.0.4", {}, {}};
  for (auto& role : j.roles) {
    role.trainer.framework = *framework;
    role.trainer.framework_version = version;
    role.trainer.loop = training_loop(*framework, role.engine);
  }
  return {};
}

bool serving(EngineKind e) { return e == EngineKind::sglang || e == EngineKind::vllm; }
std::string get_engine(const Job&, const Role* r) {
  if (!r->serves() || r->server.version.empty()) return std::string(spelling(r->engine));
  return fmt::format("{} {}", spelling(r->engine), r->server.version);
}
Refusal set_engine(const Knob& k, Job&, Role* r, std::string_view text) {
  const auto [name, version] = split_version(text);
  const bool should_serve = r->kind == RoleKind::rollout || r->kind == RoleKind::server;
  const bool may_do_both = does_as_its_engine(r->kind);
  const std::string expected = should_serve                   ? "sglang or vllm"
                               : r->kind == RoleKind::teacher ? "fsdp2, megatron, archon or vllm"
                               : may_do_both                  ? "fsdp2, fsdp1, ddp, deepspeed, single, vllm or sglang"
                                                              : "fsdp2, fsdp1, ddp, deepspeed or single";
  const bool described = r->trainer.loop.runs_megatron && r->kind != RoleKind::reward;
  const bool megatron = name == "megatron" && (r->kind == RoleKind::trainer || described);
  if (auto why = unsupported_value("engine", name); !megatron && !why.empty()) return {expected, {}, std::move(why)};
  if (name == "fsdp" && !should_serve) return {expected, "fsdp2", "AReaL calls FSDP2 fsdp, verl calls FSDP1 so"};
  const auto engine = parse<EngineKind>(name);
  if (!engine) return {expected, nearest(name, k.choices), {}};
  if (serving(*engine) != should_serve && !may_do_both)
    return {expected, {}, fmt::format("{} {}", r->name, should_serve ? "serves" : "trains")};
  if (!version.empty() && !serving(*engine))
    return {fmt::format("{} without a version", name), {}, "a training engine has the version of 'framework'"};
  if (!version.empty() && !asked_version(version).valid) return {"a version behind the name, such as vllm 0.11.0", {}, {}};
  r->engine = *engine;
  r->trainer.loop = training_loop(r->trainer.framework, *engine);
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

std::string get_name(const Job& j, const Role*) { return j.name; }
Refusal set_name(const Knob&, Job& j, Role*, std::string_view text) {
  constexpr std::size_t kLongest = 200;
  if (text.size() > kLongest) return {fmt::format("a name of at most {} letters", kLongest), {}, {}};
  j.name = text;
  return {};
}

}  // namespace

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
                 "what drives the training engines, with its version: areal 1.0.4, verl 0.9.0, agilerl 2.8, slime 0.3.1, relax "
                 "2026.08, torch or torch 2.2"),
             {"areal", "verl", "agilerl", "slime", "relax", "torch"}),
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
                "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True for the trainers; verl switches them on by itself while it "
                "trains"),
            "lets the caching allocator grow its segments, which lowers fragmentation"),
      one_of(saves(row("sync.by", of, choice, knob::choice<&Sync::by>(), speed, "how new weights reach the servers"),
                   "hands new weights over in files: no buckets on the GPUs; slower, and all nodes need one folder"),
             spellings<SyncBy>()),
      saves(within(row("sync.bucket", of, KnobType::bytes, knob::bytes<&Sync::bucket>(), speed,
                       "weights that are sent in one go: weight_chunked_mem_mb, update_weights_bucket_megabytes, "
                       "--update-weight-buffer-size"),
                   {kMiB, kMemoryLimit.most}),
            "sends the weights in smaller pieces; the update takes longer"),
      row("sync.bridge", of, flag, knob::flag<&Sync::bridge>(), semantics,
          "slime's and Relax's updates: Megatron-Bridge makes the checkpoint's tensors (--megatron-to-hf-mode bridge)"),
      row("sync.checkpoint_engine", of, flag, knob::flag<&Sync::checkpoint_engine>(), semantics,
          "Relax: its checkpoint engine sends the weights to servers on GPUs of their own (--fully-async)"),
  };
}

std::vector<Knob> role_rows() {
  using enum KnobType;
  using enum Effect;
  const auto of = KnobOf::role;
  return {
      row("model", of, text, {get_model, set_model}, semantics, "model of this role"),
      one_of(row("engine", of, text, {get_engine, set_engine}, semantics,
                 "fsdp2, fsdp1, ddp, deepspeed, single, megatron (not of a reward model), archon (areal), sglang or vllm; "
                 "servers with a "
                 "version"),
             {"fsdp2", "fsdp1", "ddp", "deepspeed", "single", "sglang", "vllm"}),
      row("beside", of, text, {get_beside, set_beside}, semantics, "role whose GPUs it shares, or none"),
      within(row("first_gpu", KnobOf::serves, count, knob::count<&Role::first_gpu>(), semantics,
                 "of a server beside a trainer: which of that one's GPUs is its first, where it takes a part of them"),
             {0, 131072}, "GPUs"),
      row("in_process", of, flag, knob::flag<&Role::in_process>(), semantics,
          "with beside: shares the process too, so one CUDA context and one caching allocator"),
      saves(row("layout", of, layout, {get_layout, set_layout}, speed,
                "degrees of parallelism: d data, t tensor, p pipeline, c context (Ulysses, or Megatron's own), e expert"),
            "splits the work over more GPUs; more communication"),
  };
}

namespace {

/// Settings that one training engine alone has, by how their keys begin.
constexpr std::pair<std::string_view, EngineKind> kOfOneEngine[] = {{"zero.", EngineKind::deepspeed},
                                                                    {"bucket_cap_mb", EngineKind::ddp},
                                                                    {"gradient_as_bucket_view", EngineKind::ddp},
                                                                    {"static_graph", EngineKind::ddp},
                                                                    {"find_unused_parameters", EngineKind::ddp},
                                                                    {"checkpoint_units", EngineKind::fsdp1},
                                                                    {"lora.own_units", EngineKind::fsdp1},
                                                                    {"lora.layered_summon", EngineKind::fsdp1}};

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
