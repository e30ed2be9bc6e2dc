// The look-ups on the table of knobs; the rows themselves stand in knob_rows.cpp.
#include "job/knobs.hpp"

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "catalog/architecture.hpp"
#include "job/names.hpp"
#include "job/role_names.hpp"
#include "job/unsupported.hpp"

namespace oomplan {
namespace {

bool serves(const Role& r) {
  return does_as_its_engine(r.kind) ? r.serves() : r.kind == RoleKind::rollout || r.kind == RoleKind::server;
}
bool learns(RoleKind kind) { return kind == RoleKind::actor || kind == RoleKind::critic || kind == RoleKind::trainer; }

const Knob* row_of(std::string_view key, const Role* role) {
  for (const auto& knob : knobs())
    if (knob.key == key && (role == nullptr ? knob.of == KnobOf::job : applies(knob, *role))) return &knob;
  return nullptr;
}

/// Settings of FSDP that mean nothing to DDP, whose ranks hold all parameters, to DeepSpeed, which splits them in its own way,
/// and to one device.
constexpr std::array<std::string_view, 11> kOfShards{
    "reshard_after_forward", "root_reshard",   "reshard_ranks", "forward_prefetch", "backward_prefetch", "limit_all_gathers",
    "use_orig_params",       "wrap_embedding", "wrap_head",     "wrap_norm",        "reshard_last"};
/// And one device has nobody to share with.
constexpr std::array<std::string_view, 3> kOfRanks{"cpu_offload_policy", "replicas", "gradient_sync_every_micro_batch"};
bool means_nothing(std::string_view key, EngineKind engine) {
  const auto one_of = [key](const auto& keys) { return std::find(keys.begin(), keys.end(), key) != keys.end(); };
  if (engine == EngineKind::single && one_of(kOfRanks)) return true;
  const bool whole = engine == EngineKind::ddp || engine == EngineKind::deepspeed || engine == EngineKind::single;
  return whole && one_of(kOfShards);
}

/// A knob that roles have, only not this one: say whose it is.
std::string whose(std::string_view key, const Role& role) {
  for (const auto& knob : knobs()) {
    if (knob.key != key) continue;
    if (means_nothing(key, role.engine))
      return role.engine == EngineKind::single
                 ? fmt::format("'{}' is a setting of several ranks; {} runs on one device", key, role.name)
                 : fmt::format("'{}' is a setting of FSDP; {} runs {}", key, role.name, spelling(role.engine));
    if (knob.engine)
      return fmt::format("'{}' is a setting of {}; {} runs {}", key, spelling(*knob.engine), role.name, spelling(role.engine));
    if (knob.of == KnobOf::job) return fmt::format("'{}' is a setting of the whole job: write it without a role", key);
    if (knob.of == KnobOf::serves) return fmt::format("'{}' is a setting of servers; {} does not serve", key, role.name);
    if (knob.of == KnobOf::trains) return fmt::format("'{}' is a setting of training engines; {} serves", key, role.name);
    if (knob.of == KnobOf::rewards) return fmt::format("'{}' is a setting of a reward model's server", key);
    return fmt::format("'{}' is a setting of roles with an optimizer; {} has none", key, role.name);
  }
  return {};
}

/// mem_fraction_static on vLLM is gpu_memory_utilization, and the other way round.
std::string same_knob_here(std::string_view key, const Role& role) {
  for (const auto& other : knobs()) {
    if (other.key != key || !other.engine || other.of != KnobOf::serves) continue;
    for (const auto& knob : knobs())
      if (knob.engine && knob.of == other.of && applies(knob, role)) return std::string(knob.key);
  }
  return {};
}

KnobAt unknown(std::string_view key, const Role* role) {
  KnobAt out;
  out.problem.why = unsupported_key(key);
  if (!out.problem.why.empty()) return out;
  const auto valid = keys_of(role);
  out.problem.expected = role == nullptr ? "a key of a job or of one of its roles" : fmt::format("a key of {}", role->name);
  if (role != nullptr) out.problem.why = whose(key, *role);
  const std::string_view ours = our_word(key);
  out.problem.nearest = role == nullptr ? std::string{} : same_knob_here(ours.empty() ? key : ours, *role);
  if (out.problem.nearest.empty() && out.problem.why.empty()) out.problem.nearest = nearest_key(key, valid);
  return out;
}

}  // namespace

bool applies(const Knob& knob, const Role& role) {
  if ((knob.engine && *knob.engine != role.engine) || means_nothing(knob.key, role.engine)) return false;
  switch (knob.of) {
    case KnobOf::job:
      return false;
    case KnobOf::role:
      return true;
    case KnobOf::serves:
      return serves(role);
    case KnobOf::trains:
      return !serves(role);
    case KnobOf::learns:
      return learns(role.kind);
    case KnobOf::rewards:
      return role.kind == RoleKind::reward && role.serves();
  }
  return false;
}

std::vector<std::string> keys_of(const Role* role) {
  std::vector<std::string> out;
  for (const auto& knob : knobs())
    if (role == nullptr ? knob.of == KnobOf::job : applies(knob, *role)) out.emplace_back(knob.key);
  return out;
}

KnobAt find_knob(const Job& job, std::string_view key) {
  const auto dot = key.find('.');
  const std::string_view head = key.substr(0, dot);
  const Role* role = job.role(head);
  if (role != nullptr && dot != std::string_view::npos) {
    const auto rest = key.substr(dot + 1);
    if (const Knob* knob = row_of(rest, role)) return {knob, role->name, {}};
    return unknown(rest, role);
  }
  if (role == nullptr) {
    if (const Knob* knob = row_of(key, nullptr)) return {knob, {}, {}};
    if (kind_of_role_named(head))
      return {nullptr, {}, {"a key of a role of the job", {}, fmt::format("the job has no role '{}'", head)}};
  }
  KnobAt out = unknown(key, nullptr);
  if (out.problem.nearest.empty() && dot != std::string_view::npos) {  // "acter.layout"
    std::vector<std::string> names;
    for (const auto& r : job.roles) names.push_back(r.name);
    const auto meant = nearest(head, names);
    if (!meant.empty()) out.problem.nearest = meant + std::string(key.substr(dot));
  }
  return out;
}

std::string get(const Job& job, std::string_view key) {
  const KnobAt at = find_knob(job, key);
  if (at.knob == nullptr)
    throw InputError({{{}, 0, 0, std::string(key)}, "an unknown key", at.problem.expected, at.problem.nearest, at.problem.why});
  return at.knob->get(job, job.role(at.role));
}

void set(Job& job, std::string_view key, std::string_view text) {
  const KnobAt at = find_knob(job, key);
  const Place place{{}, 0, 0, std::string(key)};
  if (at.knob == nullptr) throw InputError({place, "an unknown key", at.problem.expected, at.problem.nearest, at.problem.why});
  const Refusal refusal = at.knob->set(*at.knob, job, job.role(at.role), text);
  if (refusal.refused()) throw InputError({place, fmt::format("'{}'", text), refusal.expected, refusal.nearest, refusal.why});
  job.origins[std::string(key)] = {Origin::Kind::override_, place, {}, {}};
}

bool same_settings(const Job& a, const Job& b) {
  if (a.kind != b.kind || a.roles.size() != b.roles.size()) return false;
  const auto same = [&](const Role* ra, const Role* rb) {
    return std::all_of(knobs().begin(), knobs().end(), [&](const Knob& knob) {
      return !(ra == nullptr ? knob.of == KnobOf::job : applies(knob, *ra)) || knob.get(a, ra) == knob.get(b, rb);
    });
  };
  for (std::size_t i = 0; i < a.roles.size(); ++i) {
    const Role &ra = a.roles[i], &rb = b.roles[i];
    if (ra.name != rb.name || ra.kind != rb.kind || ra.engine != rb.engine || !same(&ra, &rb)) return false;
    if (!(ra.trainer == rb.trainer) || !(ra.server == rb.server)) return false;
    if ((ra.architecture == nullptr) != (rb.architecture == nullptr)) return false;
    if (ra.architecture != nullptr && !(*ra.architecture == *rb.architecture)) return false;
  }
  return same(nullptr, nullptr);
}

const Role* Job::role(std::string_view wanted) const {
  for (const auto& r : roles)
    if (r.name == wanted) return &r;
  return nullptr;
}
Role* Job::role(std::string_view wanted) {
  for (auto& r : roles)
    if (r.name == wanted) return &r;
  return nullptr;
}

}  // namespace oomplan
