#include "frontends/relax/resource.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "frontends/megatron/flag_table.hpp"
#include "frontends/yaml.hpp"

namespace oomplan::relax {
namespace {

using Json = nlohmann::json;
using slime::Own;
using slime::SlimeText;

constexpr std::int64_t kMostGpus = std::int64_t{1} << 17;

Asked asked_of(const Json& value) {
  Asked out;
  out.written = value.dump();
  const bool pair = value.is_array() && value.size() == 2 && value[0].is_number_integer() && value[1].is_number_integer();
  out.readable =
      pair && std::abs(value[0].get<std::int64_t>()) <= kMostGpus && std::abs(value[1].get<std::int64_t>()) <= kMostGpus;
  if (out.readable) out.services = value[0].get<std::int64_t>(), out.gpus = value[1].get<std::int64_t>();
  return out;
}

/// A scalar of YAML as PyYAML would have it, as far as flags need it.
Json value_of(const yaml::Node& node) {
  if (node.kind == yaml::Node::Kind::null) return nullptr;
  if (node.quoted) return node.text;
  if (node.text == "true" || node.text == "True") return true;
  if (node.text == "false" || node.text == "False") return false;
  const Json number = Json::parse(node.text, nullptr, false);
  return number.is_number() ? number : Json(node.text);
}

/// --custom-config-path: its values replace arguments that are parsed already.
void take_custom(SlimeText& t) {
  const std::string path = t.own.text("custom_config_path"), place = t.own.place("custom_config_path");
  if (path.empty()) return;
  const auto text = t.open ? t.open(path) : std::nullopt;
  if (!text) return t.told.note(Note::Level::warning, place, fmt::format("no file {} here: its values replace flags", path));
  const yaml::Node root = yaml::parse(*text, path);
  for (const yaml::Entry& entry : root.entries) {
    const std::string& name = entry.first.text;
    const bool scalar = entry.second.kind == yaml::Node::Kind::scalar || entry.second.kind == yaml::Node::Kind::null;
    const bool own = slime::flag_named(t.release, name) != nullptr, of_megatron = megatron::flag_named(name) != nullptr;
    if (!scalar || (!own && !of_megatron)) continue;
    if (own)
      t.own.set(name, value_of(entry.second), place);
    else
      t.megatron.set(name, value_of(entry.second), place);
    t.told.note(Note::Level::info, place, fmt::format("{} replaces {}", path, name));
  }
}

/// Behind --dynamic-context-parallel: the next power of two that holds the longest sequence.
void take_dynamic_context(SlimeText& t) {
  const Own& o = t.own;
  const auto context = o.whole("rollout_max_context_len"), tokens = o.whole("max_tokens_per_gpu");
  if (!o.on("dynamic_context_parallel") || !context || !tokens || *tokens < 1 || *context < 1) return;
  std::int64_t degree = 1;
  while (degree * *tokens < *context && degree < kMostGpus) degree *= 2;
  t.megatron.set("context_parallel_size", degree, o.place("dynamic_context_parallel"));
}

/// _FP16_OPTIMIZER_FALLBACKS (relax/backends/megatron/arguments.py, since the state of August).
void take_fp16(SlimeText& t) {
  constexpr const char* kPrecise = "use_precision_aware_optimizer";
  if (t.megatron.on("fp16") && t.release.since("2026.08") && !t.megatron.given(kPrecise))
    t.megatron.set(kPrecise, true, t.megatron.place("fp16"));
}

void take_actor(SlimeText& t, const Resource& r) {
  const bool by_default = t.own.whole_or("actor_num_gpus_per_node", 8) == 8 && t.own.whole_or("actor_num_nodes", 1) == 1;
  const std::int64_t gpus = r.gpus("actor");
  if (!by_default || gpus < 1) return;
  const std::int64_t node = std::min(std::max<std::int64_t>(1, t.own.whole_or("num_gpus_per_node", 8)), gpus);
  t.own.set("actor_num_gpus_per_node", node, "--resource");
  t.own.set("actor_num_nodes", std::max<std::int64_t>(1, gpus / node), "--resource");
}

void take_batch(SlimeText& t) {
  const auto all = t.megatron.whole("global_batch_size");
  const std::int64_t samples = std::max<std::int64_t>(1, t.own.whole_or("n_samples_per_prompt", 1));
  if (t.own.has("rollout_batch_size") || !all || !t.release.since("2026.07")) return;
  if (t.own.text("loss_type") == "policy_loss")
    t.own.set("rollout_batch_size", *all / samples, t.megatron.place("global_batch_size"));
}

}  // namespace

std::int64_t Resource::gpus(std::string_view role) const {
  const auto found = roles.find(role);
  return found == roles.end() ? 0 : found->second.gpus;
}

Resource resource_of(const SlimeText& t) {
  Resource out;
  out.given = t.own.has("resource");
  if (!out.given) return out;
  const auto object = object_of(t, "resource");
  out.readable = object != nullptr;
  if (object == nullptr) return out;
  for (const auto& [role, value] : object->items()) out.roles[role] = asked_of(value);
  return out;
}

std::shared_ptr<const Json> object_of(const SlimeText& t, std::string_view flag) {
  Json value = Json::parse(t.own.text(flag), nullptr, false);
  return value.is_object() ? std::make_shared<const Json>(std::move(value)) : nullptr;
}

bool trains_on_policy(const SlimeText& t) {
  const Own& o = t.own;
  if (!o.on("fully_async")) return false;
  const std::int64_t all = o.whole_or("rollout_batch_size", 0) * o.whole_or("n_samples_per_prompt", 1);
  return o.on("true_on_policy_mode") || (all > 0 && all == t.megatron.whole_or("global_batch_size", 0));
}

bool starts_teacher(const SlimeText& t, const Resource& r) {
  const Own& o = t.own;
  return o.on("use_opd") && o.text("opd_type") == "sglang" && r.has("teacher") &&
         (o.has("teacher_hf_checkpoint") || o.has("opd_teacher_routes"));
}

bool starts_judge(const SlimeText& t, const Resource& r) {
  return (t.own.has("genrm_model_path") || t.own.has("genrm_instances")) && r.has("genrm");
}

bool critic_shares(const SlimeText& t, const Resource& r) {
  const auto critic = r.roles.find("critic"), actor = r.roles.find("actor");
  return t.own.on("colocate") && critic != r.roles.end() && actor != r.roles.end() &&
         critic->second.written == actor->second.written;
}

void prepare(SlimeText& t) {
  take_custom(t);
  const Resource r = resource_of(t);
  take_actor(t, r);
  take_batch(t);
  take_dynamic_context(t);
  take_fp16(t);
  if (r.has("rollout") && !t.own.has("rollout_num_gpus")) t.own.set("rollout_num_gpus", r.gpus("rollout"), "--resource");
  if (r.has("genrm") && t.own.whole_or("genrm_num_gpus", 1) == 1) t.own.set("genrm_num_gpus", r.gpus("genrm"), "--resource");
  const std::int64_t actor = t.own.whole_or("actor_num_nodes", 1) * t.own.whole_or("actor_num_gpus_per_node", 8);
  const bool shares = t.own.on("colocate") && !t.own.on("hybrid");
  if (!shares || t.own.on("debug_rollout_only") || starts_judge(t, r) || starts_teacher(t, r)) return;
  if (const auto said = t.own.whole("rollout_num_gpus"); said && *said != actor && r.has("rollout")) {
    t.told.note(Note::Level::warning, t.own.place("rollout_num_gpus"),
                fmt::format("{} GPUs of the servers: with --colocate Relax takes the {} of the actor", *said, actor));
    t.own.set("rollout_num_gpus", actor, "--colocate");
  }
}

}  // namespace oomplan::relax
