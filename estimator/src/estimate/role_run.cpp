#include "estimate/role_run.hpp"

#include <algorithm>

#include <fmt/format.h>
#include <string>

#include "catalog/text_alone.hpp"
#include "estimate/communicators.hpp"
#include "estimate/deepep.hpp"
#include "estimate/generator_run.hpp"
#include "estimate/megatron_run.hpp"
#include "estimate/megatron_update.hpp"
#include "estimate/timeline.hpp"
#include "inference/cache_format.hpp"
#include "job/model_makers.hpp"
#include "job/names.hpp"
#include "job/stored_weights.hpp"
#include "job/training_loop.hpp"
#include "job/vision_pass.hpp"

namespace oomplan {
namespace {

bool is_critic(const Role& r) { return r.kind == RoleKind::critic || r.kind == RoleKind::reward; }

Bytes fact_bytes(const Facts& facts, std::string_view engine, std::string_view fact, const FactQuery& q) {
  return static_cast<Bytes>(facts.find(engine, fact, q).value);
}

bool has_experts(const Architecture& a) {
  return std::any_of(a.runs.begin(), a.runs.end(),
                     [](const LayerRun& r) { return r.layer.feed_forward.kind == FeedForwardKind::moe; });
}

/// Archon saves, and updates through files, by distributed checkpoints: every rank brings its shards to the host and gathers
/// nothing (areal/experimental/engine/archon_checkpoint.py save_model_to_hf, 0.5.3 to 2.0.0). Experts are sent as slices of three
/// matrices of all experts (state_dict_adapter.py, convert_single_to_hf).
void resolve_archon_save(RoleRun& run) {
  const Trainer& t = run.role->trainer;
  SyncModel shards = trained_model(*run.tapes.train, t.storage, t.storage);
  SyncModel whole =
      has_experts(*run.role->architecture) ? shards : sync_model(*run.role->architecture, t.storage, t.storage, true);
  gather_twice(whole, t.layout.tensor);
  run.sync_model = std::make_shared<SyncModel>(std::move(whole));
  shards.total_sent = shards.largest_sent = shards.largest_stored = 0;
  for (SyncTensor& tensor : shards.tensors) {
    const std::int64_t rows = tensor.shape.empty() ? 1 : tensor.shape[0];
    tensor.sent = tensor.sent / rows * ceil_div(rows, t.layout.data * t.layout.context);
    tensor.stored = 0;
    shards.largest_sent = std::max(shards.largest_sent, tensor.sent);
  }
  for (const SyncStep& step : shards.order) shards.total_sent += shards.tensors[step.tensor].sent;
  run.adapters = std::make_shared<SyncModel>(std::move(shards));  // kept where LoRA's are, which Archon does not have
  SyncPoint point;
  point.way = SyncWay::disk;
  run.save[0] = run.save[1] = plan_sync(*run.adapters, point);
}

/// Weights are saved tensor by tensor, gathered on every rank, kept on the host of rank 0.
void resolve_save(RoleRun& run, const Catalog& catalog) {
  const Trainer& t = run.role->trainer;
  if (!run.trains) return;
  if (run.role->engine == EngineKind::archon) return resolve_archon_save(run);
  // PyTorch alone saves what it trains: transformers 5 keeps fused experts, nothing is cast on the way.
  const bool plain = t.loop.saves_plainly;
  const DType wire = plain ? t.storage : wire_dtype(catalog.facts(), t.loop, t.framework_version, t.storage, t.compute);
  const bool fused = plain || fused_experts(catalog.facts(), t.loop, t.framework_version);
  SyncModel everything = sync_model(*run.role->architecture, t.storage, wire, fused);
  gather_twice(everything, t.layout.tensor);
  if (t.lora.rank > 0) {
    // peft's save_pretrained writes adapters; only PyTorch alone gathers nothing else for it
    const DType stored = t.lora.format == AdapterFormat::fp32 ? DType::fp32 : t.storage;
    const DType sent = plain ? stored : wire_dtype(catalog.facts(), t.loop, t.framework_version, stored, t.compute);
    run.adapters = std::make_shared<SyncModel>(trained_model(*run.tapes.train, stored, sent));
    everything = plain ? *run.adapters : joined(everything, *run.adapters);
  }
  run.sync_model = std::make_shared<SyncModel>(std::move(everything));
  SyncPoint point;
  point.way = SyncWay::disk;
  for (const bool first : {true, false}) {
    point.sender = first;
    run.save[first ? 0 : 1] = plan_sync(*run.sync_model, point);
  }
}

/// What Megatron engines send: all tensors of the checkpoint one by one, in 16 bits; AReaL's of adapters nothing else, verl's at
/// first both (verl/workers/engine_workers.py, 0.9 and 0.10: update_weights with load_format dummy).
void resolve_megatron_sync(RoleRun& run) {
  if (run.role->kind != RoleKind::actor) return;
  if (const MegatronAdapters beside = megatron_adapters(run.role->trainer)) {
    run.adapters = std::make_shared<SyncModel>(megatron_adapters_model(*run.role->architecture, beside, DType::bf16));
    run.sync_model = run.adapters;
    if (!run.role->trainer.loop.summons_adapters) return;
  }
  run.sync_model = std::make_shared<SyncModel>(sync_model(*run.role->architecture, DType::bf16, DType::bf16, false));
}

/// What a tape cannot describe is told with the place where the model is named.
void update_named_trainer(RoleRun& run, const Job& job, const Catalog& catalog, TapeStore& store) try {
  // Trainers load the whole model. The tower's parameters are trained, or kept, and images go through it; of text alone nothing
  // does.
  const Architecture& model = *run.role->architecture;
  if (std::string why = undescribed_tower(*run.role); !why.empty())
    throw InputError(Problem{{}, model.name, "a model that the kernel sets describe", {}, std::move(why)});
  if (run.role->engine == EngineKind::megatron) return resolve_megatron(run, job, catalog);
  update_trainer(run, job, store);
} catch (InputError& e) {
  std::vector<Problem> problems = e.problems;
  const auto model = job.origins.find(run.role->name + ".model");
  for (auto& p : problems) {
    if (!p.place.path.empty()) continue;
    if (model != job.origins.end()) p.place = model->second.place;
    if (p.place.path.empty()) p.place.path = run.role->name + ".model";
    // one key names the model of several roles: which of them it is
    if (run.role->kind == RoleKind::reference && !p.place.path.starts_with(run.role->name)) p.found = "ref: " + p.found;
  }
  throw InputError(std::move(problems));
}

/// A loop says what its framework does; a job whose maker set one without the other means neither.
void check_loop(const Role& role) {
  const Trainer& t = role.trainer;
  if (t.loop == training_loop(t.framework, role.engine)) return;
  throw InputError(Problem{{"job", 0, 0, role.name + ".loop"},
                           fmt::format("what {} does", t.loop.name),
                           fmt::format("what {} does: set(job, \"framework\", ...) sets both", training_loop(t.framework).name),
                           {},
                           "the job's framework and its loop are of two"});
}

void resolve_trainer(RoleRun& run, const Job& job, const Catalog& catalog, TapeStore& store) {
  check_loop(*run.role);
  run.gpu = &catalog.gpu(job.cluster.gpu);
  run.trains = learns(*run.role);
  run.critic = is_critic(*run.role);
  update_named_trainer(run, job, catalog, store);
  run.constants = process_constants(job, *run.role, catalog);
  for (RoleRun& part : run.parts) part.constants = run.constants;
  if (run.role->engine == EngineKind::megatron) return resolve_megatron_sync(run);
  resolve_save(run, catalog);
}

void resolve_server(RoleRun& run, const Job& job, const Catalog& catalog) {
  const Role& role = *run.role;
  Server server = role.server;
  server.as_stored = serves_as_stored(role);
  server = with_cache_format(*role.architecture, role.engine, server, catalog.facts(), catalog.gpu(job.cluster.gpu).sm);
  run.model = server_model(*role.architecture, role.engine, server);
  run.facts = resolve(catalog.facts(), role.engine, server, catalog.gpu(job.cluster.gpu), run.model);
  run.point = point_of(role.server);
  run.point.deepep_bytes = server_deepep_bytes(role, catalog);
  const bool rewards = role.kind == RoleKind::reward;
  run.point.logprobs = job.kind == JobKind::rl && !rewards;
  if (role.kind == RoleKind::teacher) run.point.scored = std::max<std::int64_t>(1, job.prompt_tokens + job.response_tokens - 1);
  const std::int64_t replicas = role.cache_groups();
  if (role.server.concurrency > 0) run.point.sequences = ceil_div(role.server.concurrency, replicas);
  // responses to one prompt share its pages: the first one computes them, the others their last page
  if (!rewards && role.server.concurrency > 0 && job.samples_per_prompt > 0 && role.server.share_prompts &&
      role.engine == EngineKind::vllm) {
    const std::int64_t prompts = ceil_div(run.point.sequences, job.samples_per_prompt);
    run.point.step_tokens = prompts * job.prompt_tokens + (run.point.sequences - prompts) * run.facts.page_tokens;
    run.point.flight_tokens = prompts * job.prompt_tokens + run.point.sequences * job.response_tokens;
  }
}

const Role* sender_of(const Job& job) {
  for (const auto& r : job.roles)
    if (r.kind == RoleKind::actor || r.kind == RoleKind::trainer) return &r;
  return nullptr;
}

/// areal/experimental/engine/archon_weight_sync.py, 1.0.4: a bucket is sent before the next is filled, in the storage format.
/// What arrives are the experts' matrices one by one.
void send_from_archon(RoleRun& from, RoleRun& to, SyncPoint point) {
  const bool disk = point.way == SyncWay::disk;
  if (!disk) point.way = SyncWay::buckets;
  point.casts = false;
  const SyncModel& sent = disk ? *from.adapters : *from.sync_model;
  to.sync_model =
      std::make_shared<SyncModel>(sync_model(*from.role->architecture, from.sync_model->storage, from.sync_model->wire, false));
  to.receive = plan_sync(*to.sync_model, point);
  for (const bool first : {true, false}) {
    point.sender = first || disk;
    from.send[first ? 0 : 1] = plan_sync(sent, point);
  }
}

/// verl reads adapters to the host, under FSDP1 out of gathered units (verl/utils/fsdp_utils.py, collect_lora_params). They go to
/// vLLM as they are until 0.7.1, which has a buffer for them; to SGLang in the message of a request.
void read_to_host(RoleRun& from, const Catalog& catalog, SyncPoint& point) {
  const Trainer& t = from.role->trainer;
  const auto value_of = [&](const char* fact) {
    return catalog.facts().find(t.loop.facts, fact, FactQuery{t.framework_version, "", {}}).value;
  };
  const auto does = [&](const char* fact) { return value_of(fact) != 0; };
  const bool vllm = point.server == EngineKind::vllm;
  point.from_host = true;
  point.gathers_to_host = from.role->engine != EngineKind::fsdp1;
  point.has_buffer = vllm && does("buffers_adapters");
  point.copies = vllm ? static_cast<int>(value_of("copies_adapters")) : 0;
  from.summon = !t.lora.layered_summon             ? Summon::whole
                : does("summons_through_the_host") ? Summon::through_host
                                                   : Summon::unit_by_unit;
}

/// verl's Megatron engine: the base, as without adapters, then the adapters, which Megatron-Bridge gathers one by one and puts on
/// the host (megatron/bridge/models/conversion/peft_bridge.py, 0.5.2: stream_adapter_weights_megatron_to_hf).
void send_base_and_adapters(RoleRun& from, RoleRun& to, const Catalog& catalog, SyncPoint point) {
  for (const bool first : {true, false}) {
    point.sender = first;
    from.send[first ? 0 : 1] = plan_sync(*from.sync_model, point);
  }
  point.adapters = true;
  read_to_host(from, catalog, point);
  from.summon.reset();
  to.receive = plan_sync(*from.adapters, point);
}

void resolve_sync(std::vector<RoleRun>& runs, const Job& job, const Catalog& catalog) {
  const Role* actor = sender_of(job);
  if (actor == nullptr || job.sync.by == SyncBy::none) return;
  RoleRun* from = nullptr;
  for (auto& r : runs)
    if (r.role == actor) from = &r;
  for (auto& to : runs) {
    if (to.role->kind != RoleKind::rollout) continue;  // a teacher's weights stay
    const Trainer& t = actor->trainer;
    // the same updater serves both where servers on other GPUs map the buckets, too
    const bool same_gpu = share_gpus(job, *actor, *to.role) || (t.loop.checkpoint_engine && job.sync.by == SyncBy::ipc);
    SyncPoint point =
        sync_point(catalog.facts(), t.loop, t.framework_version, job.sync.by, job.sync.bucket, to.role->engine, same_gpu);
    if (point.empties_first)
      for (auto& r : runs) r.empties_behind_training |= learns(*r.role) && share_gpus(job, *actor, *r.role);
    if (t.loop.gathers_buckets) {
      send_in_buckets(*from, to, job, catalog, point);
      for (auto& other : runs)
        if (job.sync.checkpoint_engine && follows_actor(*other.role)) other.receive = to.receive;
      continue;
    }
    if (actor->engine == EngineKind::archon) {
      send_from_archon(*from, to, point);
      continue;
    }
    if (actor->engine == EngineKind::megatron && from->adapters != nullptr && t.loop.summons_adapters) {
      send_base_and_adapters(*from, to, catalog, point);
      continue;
    }
    // through files AReaL gathers the whole state dict before peft picks the adapters from it
    point.adapters = from->adapters != nullptr && point.way != SyncWay::disk;
    if (point.adapters && t.loop.summons_adapters) read_to_host(*from, catalog, point);
    const SyncModel& sent = point.adapters ? *from->adapters : *from->sync_model;
    to.receive = plan_sync(sent, point);
    for (const bool first : {true, false}) {
      point.sender = first;
      from->send[first ? 0 : 1] = plan_sync(sent, point);
    }
  }
}

}  // namespace

namespace {

/// Why training on text alone beside the model's tower is not described; "" when it is.
std::string unsupported_beside_tower(const Role& role) {
  const Trainer& t = role.trainer;
  const auto without = [&](std::string_view what) {
    return fmt::format("text alone beside a vision tower ('{}') is not supported yet {}", role.architecture->tower.kind, what);
  };
  const EngineKind e = role.engine;
  if (e != EngineKind::single && e != EngineKind::ddp && e != EngineKind::fsdp2 && e != EngineKind::fsdp1)
    return without("under this engine: say engine: single, ddp, fsdp2 or fsdp1");
  if (!t.loop.saves_plainly) return without("in this framework");
  if (t.kernels != Kernels::hf_flash && t.kernels != Kernels::hf_sdpa && t.kernels != Kernels::hf_eager)
    return without("with these kernels: say kernels: hf_flash, hf_sdpa or hf_eager");
  if (t.layout.tensor > 1 || t.layout.context > 1) return without("where the language model is split");
  if (t.lora.base.format != BaseFormat::full) return without("with a packed base");
  if (role.engine == EngineKind::fsdp2 && !role.architecture->tower.kind.starts_with("gemma4") &&
      !unsupported_tower(role.architecture->tower).empty())
    return without("under FSDP2: the units of this tower are not described");
  return {};
}

}  // namespace

std::string undescribed_tower(const Role& role) {
  const Architecture& model = *role.architecture;
  if (model.tower.kind.empty()) return {};
  // its layers say what of a tower is described
  if (role.engine == EngineKind::megatron && sees_images_under_megatron(role.trainer)) return {};
  const std::string text = fmt::format("its language model by itself is model: {}{}", role.model, kTextAlone);
  const bool runs = vision_pass(role.trainer, role.engine, model).images > 0;
  std::string why = runs ? unsupported_tower(model.tower) : unsupported_beside_tower(role);
  return why.empty() ? why : fmt::format("{}; {}", why, text);
}

ProcessConstants process_constants(const Job& job, const Role& role, const Catalog& catalog) {
  const Gpu& gpu = catalog.gpu(job.cluster.gpu);
  ProcessConstants c;
  const FactQuery q{"", gpu.sm, {}};
  c.libraries = fact_bytes(catalog.facts(), "torch", "libraries_bytes", q);
  c.context = fact_bytes(catalog.facts(), "torch", "context_bytes", q) + c.libraries;
  c.workspace = fact_bytes(catalog.facts(), "torch", "cublas_workspace_bytes", q);
  for (const ProcessGroup& group : process_groups(job, role)) c.nccl += communicator_bytes(group, job.cluster, catalog);
  c.deepep = deepep_bytes(role, catalog);
  resolve_sleeping_groups(c, job, role, catalog);
  return c;
}

/// A model that is loaded in front of deepspeed.initialize, which splits it parameter by parameter.
void load_whole(RoleRun& run) {
  const Trainer& t = run.role->trainer;
  run.loads_full = true;
  if (t.zero.load == ZeroLoad::whole_fp32) run.full_storage *= bytes_of(1, DType::fp32) / bytes_of(1, t.storage);
}

void update_trainer(RoleRun& run, const Job& job, TapeStore& store) {
  const Role& role = *run.role;
  if (role.kind == RoleKind::generator) return update_generator(run, job, store);
  const Trainer& t = role.trainer;
  const KernelInternals internals(t.kernel_internals, *run.gpu);
  const std::int64_t log_prob_tokens =
      t.logprob_tokens_per_micro_batch > 0 ? t.logprob_tokens_per_micro_batch : t.tokens_per_micro_batch;
  if (run.trains)
    run.tapes.train = store.get(role.architecture,
                                train_pass(t, role.engine, *role.architecture, run.critic, t.tokens_per_micro_batch, internals));
  if (job.kind == JobKind::rl || !run.trains)
    run.tapes.log_probs =
        store.get(role.architecture, log_prob_pass(t, role.engine, *role.architecture, run.critic, log_prob_tokens, internals));
  if (run.trains && t.reference != ReferencePass::none)
    run.tapes.reference = store.get(t.other.architecture != nullptr ? t.other.architecture : role.architecture,
                                    reference_pass(t, role.engine, reference_architecture(t, *role.architecture), internals));
  run.plan = make_plan(*role.architecture, t, role.engine, run.critic, run.trains, run.tapes, micro_batches_of(job, t));
  const Tape& tape = run.plan.tape();
  run.full_storage = 0;
  for (std::size_t i = 0; i < tape.leaves.size(); ++i)
    if (!tape.leaves[i].shared)
      run.full_storage += bytes_of(tape.leaves[i].elements(), run.plan.storage[i]) * tape.stations[tape.leaves[i].station].count *
                          tape.leaves[i].parts;
  // AReaL areal/engine/fsdp_engine.py 1.0.4: from_pretrained under torch.device("cuda") on every rank unless
  // memory_efficient_load
  run.loads_full = t.loop.loads_on_gpu && role.engine == EngineKind::fsdp2 && !t.memory_efficient_load;
  if (role.engine == EngineKind::deepspeed && t.zero.stage == 3 && t.zero.load != ZeroLoad::split) load_whole(run);
  // a model with a tower comes from from_pretrained() on every rank, to the host then (`is_llm_cpu_load`, 0.5.3 on)
  run.loads_on_every_host = t.memory_efficient_load && !role.architecture->tower.kind.empty();
  run.held_pixels = held_pixels(t, role.engine, *role.architecture);
}

namespace {

/// AReaL's Megatron engine makes at least two micro-batches for every stage, and a multiple of the stages
/// (areal/engine/megatron_engine.py: _prepare_mb_list, 1.0.4).
std::int64_t for_pipeline(const Trainer& t, std::int64_t micro_batches) {
  const std::int64_t stages = t.loop.fills_pipeline ? t.layout.pipeline : 1;
  return stages == 1 ? micro_batches : round_up(std::max(micro_batches, 2 * stages), stages);
}

std::int64_t micro_batches_of_batch(const Job& job, const Trainer& t);

}  // namespace

std::int64_t micro_batches_of(const Job& job, const Trainer& t) { return for_pipeline(t, micro_batches_of_batch(job, t)); }

namespace {

std::int64_t micro_batches_of_batch(const Job& job, const Trainer& t) {
  if (t.micro_batches > 0) return t.micro_batches;
  // Unstated: an RL step has several micro-batches, and the second one, beside the first one's gradients, is the one to plan for.
  if (job.sequences_per_step == 0) return job.kind == JobKind::rl ? 2 : 1;
  const std::int64_t ranks = std::max<std::int64_t>(1, t.layout.data);
  const std::int64_t sequences = ceil_div(job.sequences_per_step, ranks);
  if (t.sequences_per_micro_batch > 0) return std::max<std::int64_t>(1, ceil_div(sequences, t.sequences_per_micro_batch));
  const std::int64_t tokens = sequences * (job.prompt_tokens + job.response_tokens);
  return std::max<std::int64_t>(1, ceil_div(tokens, std::max<std::int64_t>(1, t.tokens_per_micro_batch)));
}

}  // namespace

std::vector<RoleRun> resolve_roles(const Job& job, const Catalog& catalog, TapeStore& store) {
  std::vector<RoleRun> runs(job.roles.size());
  for (std::size_t i = 0; i < job.roles.size(); ++i) {
    runs[i].role = &job.roles[i];
    runs[i].index = i;
    const auto& role = job.roles[i];
    if (role.architecture == nullptr)
      throw InputError(Problem{{"", 0, 0, role.name + ".model"}, "'" + role.model + "'", "a model that was looked up", "", ""});
    if (role.serves())
      resolve_server(runs[i], job, catalog);
    else if (shards_by_fsdp2(role.engine) || role.engine == EngineKind::fsdp1 || role.engine == EngineKind::ddp ||
             role.engine == EngineKind::single || role.engine == EngineKind::deepspeed || role.engine == EngineKind::megatron)
      resolve_trainer(runs[i], job, catalog, store);
    else
      throw InputError(Problem{{"", 0, 0, role.name + ".engine"},
                               std::string(spelling(role.engine)),
                               "fsdp2, fsdp1, ddp, deepspeed, single, megatron, archon, sglang or vllm",
                               "",
                               "this engine is not supported yet"});
  }
  resolve_sync(runs, job, catalog);
  return runs;
}

}  // namespace oomplan
