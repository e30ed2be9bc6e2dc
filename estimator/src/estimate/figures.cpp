#include "estimate/figures.hpp"

#include <algorithm>

#include <nlohmann/json.hpp>

#include <oomplan/units/errors.hpp>

#include "estimate/megatron_run.hpp"
#include "job/knobs.hpp"
#include "training/reference_run.hpp"

namespace oomplan {
namespace {

using Json = nlohmann::json;

InputError wrong(std::string path, std::string found, std::string expected) {
  return InputError(Problem{{"", 0, 0, std::move(path)}, std::move(found), std::move(expected), "", ""});
}

Json parsed(std::string_view text) {
  Json j = Json::parse(text, nullptr, false);
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
  explicit Apart(const Json& job) : facts_(job.value("apart", Json::object())) {
    if (!facts_.is_object()) throw wrong("apart", facts_.dump(), "a map");
  }
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
  job.roles.push_back(std::move(role));
  return job;
}

}  // namespace

TrainingCase read_training_case(std::string_view text, std::string_view config, const Catalog& catalog) {
  const Json given = parsed(text);
  Job job = job_with(RoleKind::trainer, "trainer", EngineKind::fsdp2);
  if (given.contains("framework")) set(job, "framework", text_of("framework", given["framework"]));
  const Json settings = given.value("trainer", Json::object());
  if (settings.is_object() && settings.contains("engine"))  // first: other knobs depend on it
    set(job, "trainer.engine", text_of("trainer.engine", settings["engine"]));
  set_all(job, "trainer", settings);
  const Role& role = job.roles[0];
  TrainingCase out;
  out.architecture = architecture_of(given, config, catalog);
  out.trainer = role.trainer;
  out.engine = role.engine;
  out.micro_batches = std::max<std::int64_t>(1, role.trainer.micro_batches);
  Apart apart(given);
  out.forward_only = apart.flag("forward_only", false);
  const Layout& l = out.trainer.layout;
  if (out.engine == EngineKind::megatron) {
    out.stage = apart.count("stage", 1) - 1;
    out.trainer.megatron.fp8_transposes = apart.flag("fp8_transposes", true);
    out.trainer.megatron.fp8_on_blackwell = !out.trainer.megatron.fp8_transposes;
    if (out.stage >= l.pipeline) throw wrong("apart.stage", std::to_string(out.stage + 1), "a stage of the pipeline, from 1");
    apart.done();
    return out;
  }
  apart.done();
  if (l.pipeline > 1 || l.expert > 1)
    throw wrong("trainer.layout", "pipeline or expert parallelism", "data, context and tensor parallelism");
  if (l.data * l.context % out.trainer.replicas != 0)
    throw wrong("trainer.replicas", std::to_string(out.trainer.replicas), "a divisor of the GPUs");
  return out;
}

TrainingFigures training_figures(const TrainingCase& c) {
  if (c.engine == EngineKind::megatron) return megatron_figures(c);
  const Architecture& a = *c.architecture;
  const Trainer& t = c.trainer;
  TrainTapes tapes;
  if (c.forward_only)
    tapes.log_probs = make_tape(a, log_prob_pass(t, c.engine, a, false, t.tokens_per_micro_batch, t.kernel_internals));
  else
    tapes.train = make_tape(a, train_pass(t, c.engine, a, false, t.tokens_per_micro_batch, t.kernel_internals));
  if (!c.forward_only && t.reference != ReferencePass::none)
    tapes.reference = make_tape(a, reference_pass(t, c.engine, a, t.kernel_internals));
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
  const auto stretch = [&](Bytes& highest, const auto& record) {
    r = {};
    record();
    highest = std::max(highest, level + r.span().peak);
    level += r.span().net;
  };
  const Bytes inputs = (t.padding_mask ? 3 : 2) * bytes_of(pass.counts.b * pass.counts.s, DType::int64);
  // FSDP1 with use_orig_params: the gradients of the step before are there until the root's forward pass begins
  if (plan.use_orig_params && !plan.cpu_offload && !c.forward_only) out.forward = level + plan.gradients + inputs;
  const std::int64_t passes = c.forward_only ? 1 : c.micro_batches;
  // the first micro-batch makes the gradients, the second adds to them, and every further one but the last is like the second
  for (std::int64_t m = 0; m < passes; ++m) {
    if (m > 2 && m < passes - 1) continue;
    stretch(out.forward, [&] {
      engine.before_forward();
      engine.forward(player, Index(0));
      reference.forward();
    });
    if (c.forward_only) break;
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
  set(job, "gpus", text_of("gpus", given.value("gpus", Json("1 x H100-80GB"))));
  set(job, "server.engine", text_of("server.engine", settings["engine"]));  // first: other knobs depend on it
  set_all(job, "server", settings);
  ServingCase out;
  out.engine = job.roles[0].engine;
  out.server = job.roles[0].server;
  out.architecture = architecture_of(given, config, catalog);
  out.gpu = catalog.gpu(job.cluster.gpu);
  Apart apart(given);
  out.gpu.usable = apart.count("total_bytes", out.gpu.usable);
  out.server.weights = apart.format("weights", out.server.weights);
  out.server.kv = apart.format("kv", out.server.kv);
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
