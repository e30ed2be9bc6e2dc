#include "estimate/figures.hpp"

#include <algorithm>
#include <numeric>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <oomplan/units/errors.hpp>

#include "estimate/megatron_run.hpp"
#include "inference/cache_format.hpp"
#include "job/knobs.hpp"
#include "job/training_loop.hpp"
#include "job/validate.hpp"
#include "training/reference_run.hpp"
#include "units/json_depth.hpp"

namespace oomplan {
namespace {

using Json = nlohmann::json;

InputError wrong(std::string path, std::string found, std::string expected) {
  return InputError(Problem{{"", 0, 0, std::move(path)}, std::move(found), std::move(expected), "", ""});
}

Json parsed(std::string_view text) {
  if (const std::string deep = too_deep(text); !deep.empty()) throw wrong("", deep, "a case: a JSON object");
  Json j = bounded_json<Json>(text);
  if (!j.is_object()) throw wrong("", "no JSON object", "a case: a JSON object");
  return j;
}

std::string text_of(const std::string& key, const Json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_boolean()) return value.get<bool>() ? "true" : "false";
  if (value.is_number()) return value.dump();
  if (value.is_array()) {
    std::string items;
    for (const auto& item : value) items += (items.empty() ? "" : ", ") + text_of(key, item);
    return "[" + items + "]";
  }
  throw wrong(key, value.dump(), "a number, a flag, a word or a list");
}

/// Every knob of the role, in the order given; maps are groups.
void set_all(Job& job, const std::string& prefix, const Json& settings) {
  if (!settings.is_object()) throw wrong(prefix, settings.dump(), "settings: a map");
  for (const auto& [key, value] : settings.items()) {
    const std::string path = prefix + "." + key;
    if (value.is_object())
      set_all(job, path, value);
    else
      set(job, path, text_of(path, value));
  }
}

/// The facts of a comparison; unknown keys are problems.
class Apart {
 public:
  explicit Apart(Json facts) : facts_(std::move(facts)) {
    if (!facts_.is_object()) throw wrong("apart", facts_.dump(), "a map");
  }
  static Apart of(const Json& job) { return Apart(job.value("apart", Json::object())); }
  bool has(const char* key) const { return facts_.contains(key); }
  bool flag(const char* key, bool otherwise) {
    const Json value = take(key);
    if (value.is_null()) return otherwise;
    if (!value.is_boolean()) throw wrong(std::string("apart.") + key, value.dump(), "true or false");
    return value.get<bool>();
  }
  std::int64_t count(const char* key, std::int64_t otherwise) {
    const Json value = take(key);
    if (value.is_null()) return otherwise;
    if (!value.is_number_integer() || value.get<std::int64_t>() < 1)
      throw wrong(std::string("apart.") + key, value.dump(), "a positive number");
    return value.get<std::int64_t>();
  }
  DType format(const char* key, DType otherwise) {
    const Json value = take(key);
    if (value.is_null()) return otherwise;
    for (const DTypeRow& r : kDTypes)
      if (value.is_string() && r.name == value.get<std::string>()) return r.value;
    throw wrong(std::string("apart.") + key, value.dump(), "a format of numbers");
  }
  std::vector<std::string> words(const char* key) {
    const Json value = take(key);
    std::vector<std::string> out;
    for (const Json& item : value.is_null() ? Json::array() : value) {
      if (!value.is_array() || !item.is_string()) throw wrong(std::string("apart.") + key, value.dump(), "a list of words");
      out.push_back(item.get<std::string>());
    }
    return out;
  }
  void done() const {
    if (!facts_.empty()) throw wrong("apart." + facts_.begin().key(), "an unknown key", "a fact of a comparison");
  }

 private:
  Json take(const char* key) {
    Json value;
    if (const auto at = facts_.find(key); at != facts_.end()) {
      value = *at;
      facts_.erase(at);
    }
    return value;
  }
  Json facts_;
};

std::shared_ptr<const Architecture> architecture_of(const Json& job, std::string_view config, const Catalog& catalog) {
  const Json named = job.value("model", Json("model"));
  if (!named.is_string()) throw wrong("model", named.dump(), "a name");
  const auto name = named.get<std::string>();
  if (config.empty()) return catalog.model(name).architecture;
  return std::make_shared<const Architecture>(read_config(config, name));
}

Job job_with(RoleKind kind, std::string name, EngineKind engine) {
  Job job;
  job.kind = kind == RoleKind::server ? JobKind::serving : JobKind::sft;
  Role role;
  role.name = std::move(name);
  role.kind = kind;
  role.engine = engine;
  role.trainer.loop = training_loop(role.trainer.framework);
  job.roles.push_back(std::move(role));
  return job;
}

/// What an engine has of its own where a case is silent: FSDP1 no units but layers, Megatron 16 bits.
void start_from_engine(Role& role) {
  Trainer& t = role.trainer;
  if (role.engine == EngineKind::fsdp1) t.root_reshard = t.wrap_embedding = t.wrap_head = false;
  if (role.engine != EngineKind::megatron) return;
  t.kernels = Kernels::transformer_engine;
  t.storage = t.compute = DType::bf16;
}

/// The kind of GPU that a case names, and as many as its role asks for.
void place_role(Job& job, const Json& given, const char* otherwise) {
  const std::int64_t world = job.roles[0].layout().world();
  set(job, "gpus", text_of("gpus", given.value("gpus", Json(fmt::format("{} x {}", world, otherwise)))));
  job.cluster.gpus_per_node = static_cast<int>(std::gcd(job.cluster.gpus, std::int64_t{8}));
}

/// What read() would refuse, but of the knobs `beyond`: parts of a step that were executed by themselves.
void check(const Job& job, const Catalog& catalog, const std::vector<std::string>& beyond = {}) {
  std::vector<Problem> all = problems(job, catalog);
  for (const std::string& knob : beyond) {
    const std::string path = fmt::format("{}.{}", job.roles[0].name, knob);
    if (std::erase_if(all, [&](const Problem& p) { return p.place.path == path; }) == 0)
      throw wrong("apart.beyond", knob, "a knob whose value is refused");
  }
  if (!all.empty()) throw InputError(std::move(all));
}

TrainingCase case_of(const Job& job, Apart apart, const Catalog& catalog) {
  if (job.roles.size() != 1 || job.roles[0].serves())
    throw wrong("", fmt::format("{} roles", job.roles.size()), "one role, which trains");
  const Role& role = job.roles[0];
  if (std::string why = undescribed_tower(role); !why.empty())
    throw InputError(Problem{{"", 0, 0, role.name + ".model"}, role.model, "a model that the kernel sets describe", "", why});
  TrainingCase out;
  out.architecture = role.architecture;
  out.trainer = role.trainer;
  out.engine = role.engine;
  out.gpu = &catalog.gpu(job.cluster.gpu);
  out.micro_batches = std::max<std::int64_t>(1, micro_batches_of(job, role.trainer));
  out.forward_only = apart.flag("forward_only", false);
  out.passes = apart.count("passes", 1);
  out.shows_casts_of_softmax = apart.flag("shows_casts_of_softmax", false);
  if (out.engine == EngineKind::megatron) {
    out.trainer = megatron_on_gpu(role, *out.gpu);
    out.stage = apart.count("stage", 1) - 1;
    if (apart.has("fp8_transposes")) {
      out.trainer.megatron.fp8_transposes = apart.flag("fp8_transposes", true);
      out.trainer.megatron.fp8_on_blackwell = !out.trainer.megatron.fp8_transposes;
    }
    if (out.stage >= out.trainer.layout.pipeline)
      throw wrong("apart.stage", std::to_string(out.stage + 1), "a stage of the pipeline, from 1");
  }
  apart.done();
  return out;
}

KernelInternals internals_of(const TrainingCase& c) {
  KernelInternals out =
      c.gpu == nullptr ? KernelInternals(c.trainer.kernel_internals) : KernelInternals(c.trainer.kernel_internals, *c.gpu);
  out.casts_softmax = out.casts_softmax || c.shows_casts_of_softmax;
  return out;
}

}  // namespace

TrainingCase training_case(const Job& job, std::string_view apart, const Catalog& catalog) {
  return case_of(job, Apart(apart.empty() ? Json::object() : parsed(apart)), catalog);
}

TrainingCase read_training_case(std::string_view text, std::string_view config, const Catalog& catalog) {
  const Json given = parsed(text);
  Job job = job_with(RoleKind::trainer, "trainer", EngineKind::fsdp2);
  if (given.contains("framework")) set(job, "framework", text_of("framework", given["framework"]));
  const Json settings = given.value("trainer", Json::object());
  if (settings.is_object() && settings.contains("engine"))  // first: other knobs depend on it
    set(job, "trainer.engine", text_of("trainer.engine", settings["engine"]));
  start_from_engine(job.roles[0]);
  set_all(job, "trainer", settings);
  Apart apart = Apart::of(given);
  const bool blackwell = apart.has("fp8_transposes") && !Apart(apart).flag("fp8_transposes", true);
  place_role(job, given, blackwell ? "B200-180GB" : "H100-80GB");
  job.roles[0].model = text_of("model", given.value("model", Json("model")));
  job.roles[0].architecture = architecture_of(given, config, catalog);
  if (given.contains("reference_config"))
    job.roles[0].trainer.other.architecture =
        std::make_shared<const Architecture>(read_config(given["reference_config"].dump(), "reference"));
  const LossHead head = job.roles[0].trainer.head;  // says whose it is
  if (head == LossHead::value) job.roles[0].kind = RoleKind::critic;
  if (head == LossHead::next_token || head == LossHead::lm_eval) job.roles[0].kind = RoleKind::generator;
  check(job, catalog, apart.words("beyond"));
  return case_of(job, std::move(apart), catalog);
}

TrainingFigures training_figures(const TrainingCase& c) {
  if (c.engine == EngineKind::megatron) return megatron_figures(c);
  const Architecture& a = *c.architecture;
  const Trainer& t = c.trainer;
  const KernelInternals internals = internals_of(c);
  TrainTapes tapes;
  if (c.forward_only)
    tapes.log_probs = make_tape(a, log_prob_pass(t, c.engine, a, false, t.tokens_per_micro_batch, internals));
  else
    tapes.train = make_tape(a, train_pass(t, c.engine, a, false, t.tokens_per_micro_batch, internals));
  if (!c.forward_only && t.reference != ReferencePass::none)
    tapes.reference =
        make_tape(reference_architecture(t, a), reference_pass(t, c.engine, reference_architecture(t, a), internals));
  const TrainPlan plan = make_plan(a, t, c.engine, false, !c.forward_only, tapes, c.micro_batches);
  const Tape& tape = c.forward_only ? *plan.log_probs : *plan.train;
  const PassCounts& pass = c.forward_only ? plan.log_prob_counts : plan.train_counts;

  TrainingFigures out;
  if (!plan.cpu_offload) {
    out.parameters = plan.resident;
    out.states = c.forward_only ? 0 : plan.optimizer + plan.optimizer_steps;
  }
  // whatever is offloaded between phases is back for the step
  if (plan.reference != nullptr && plan.reference->apart && !plan.cpu_offload) out.parameters += plan.reference->plan.resident;
  Bytes level = plan.buffers + plan.buckets + out.parameters + out.states;
  if (plan.reference != nullptr && plan.reference->apart) level += plan.reference->plan.buffers;
  // views of DDP's buckets are there with these
  if (plan.keep_gradients && !plan.bucket_views && !c.forward_only) level += plan.gradients;
  PeakRecorder r;
  TrainEngine<PeakRecorder> engine(r, plan, "");
  Player<PeakRecorder> player(r, tape, pass.counts, pass.chunks, "");
  ReferenceRun<PeakRecorder> reference(r, plan, "", engine);
  reference.teach(player);
  const auto stretch = [&](Bytes& highest, const auto& record) {
    r = {};
    record();
    highest = std::max(highest, level + r.span().peak);
    level += r.span().net;
  };
  const Bytes inputs = (t.padding_mask ? 3 : 2) * bytes_of(pass.counts.b * pass.counts.s, DType::int64);
  // FSDP1 with use_orig_params: the gradients of the step before are there until the root's forward pass begins
  if (plan.use_orig_params && !plan.cpu_offload && !c.forward_only) out.forward = level + plan.gradients + inputs;
  const std::int64_t passes = c.forward_only ? c.passes : c.micro_batches;
  // the first micro-batch makes the gradients, the second adds to them, and every further one but the last is like the second
  for (std::int64_t m = 0; m < passes; ++m) {
    if (m > 2 && m < passes - 1) continue;
    stretch(out.forward, [&] {
      engine.before_forward();
      engine.forward(player, Index(0));
      reference.forward();
      player.leave_step(Index(0));
    });
    if (c.forward_only) continue;
    stretch(out.backward, [&] { engine.backward(player, Index(0), m == 0 && !plan.keep_gradients, m == passes - 1); });
  }
  if (!c.forward_only) {
    // the last micro-batch's input_ids and labels are names of the loop that calls step()
    level += inputs;
    stretch(out.optimizer, [&] { engine.optimizer_step(); });
  }
  out.peak = std::max({out.forward, out.backward, out.optimizer});
  return out;
}

ServingCase read_serving_case(std::string_view text, std::string_view config, const Catalog& catalog) {
  const Json given = parsed(text);
  const Json settings = given.value("server", Json::object());
  if (!settings.is_object() || !settings.contains("engine"))
    throw wrong("server.engine", "nothing", "vllm or sglang with a version");
  Job job = job_with(RoleKind::server, "server", EngineKind::vllm);
  job.roles[0].server.kv.reset();
  set(job, "server.engine", text_of("server.engine", settings["engine"]));  // first: other knobs depend on it
  set_all(job, "server", settings);
  place_role(job, given, "H100-80GB");
  job.roles[0].model = text_of("model", given.value("model", Json("model")));
  job.roles[0].architecture = architecture_of(given, config, catalog);
  check(job, catalog);
  ServingCase out;
  out.engine = job.roles[0].engine;
  out.server = job.roles[0].server;
  out.architecture = job.roles[0].architecture;
  out.gpu = catalog.gpu(job.cluster.gpu);
  Apart apart = Apart::of(given);
  out.gpu.usable = apart.count("total_bytes", out.gpu.usable);
  out.server.weights = apart.format("weights", out.server.weights);
  if (apart.has("kv")) out.server.kv = apart.format("kv", DType::bf16);
  out.server = with_cache_format(*out.architecture, out.engine, out.server, catalog.facts(), out.gpu.sm);
  out.logprobs = apart.flag("logprobs", false);
  apart.done();
  return out;
}

ServingFigures serving_figures(const ServingCase& c, const Catalog& catalog) {
  ServingFigures out;
  out.logged = serve(*c.architecture, c.engine, c.server, c.gpu, catalog.facts());
  const ServerModel model = server_model(*c.architecture, c.engine, c.server);
  ServerPoint point = point_of(c.server);
  point.logprobs = c.logprobs;
  const ServerPlan server = plan(model, resolve(catalog.facts(), c.engine, c.server, c.gpu, model), point);
  PeakRecorder r;
  const ServerSites sites = make_sites(r, server);
  for (const ServerPhase phase : {ServerPhase::load, ServerPhase::start, ServerPhase::generate}) record(r, server, sites, phase);
  out.device = r.span().peak;
  return out;
}

}  // namespace oomplan
