#include "frontends/write.hpp"

#include <algorithm>
#include <array>
#include <set>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "catalog/catalog.hpp"
#include "frontends/assemble.hpp"
#include "frontends/defaults.hpp"
#include "job/knobs.hpp"
#include "job/names.hpp"
#include "job/validate_megatron.hpp"
#include "units/json_text.hpp"
#include "units/sizes.hpp"

namespace oomplan {
namespace {

constexpr std::array<std::string_view, 3> kAlwaysOfARole{"engine", "beside", "layout"};

std::string key_of(const Role* role, std::string_view knob) {
  return role == nullptr ? std::string(knob) : fmt::format("{}.{}", role->name, knob);
}
bool has(const Knob& knob, const Role* role) {
  if (role == nullptr) return knob.of == KnobOf::job;
  return applies(knob, *role) && !(role->engine == EngineKind::megatron && foreign_to_megatron(*role, knob.key));
}
/// Flags of the weight update that one framework has are written where they are on.
bool says_nothing(const Knob& knob, std::string_view value) {
  return knob.of == KnobOf::job && knob.key.starts_with("sync.") && value == "false";
}
bool trains(const Job& job) {
  return std::any_of(job.roles.begin(), job.roles.end(), [](const Role& r) { return !r.serves(); });
}

std::vector<RoleAsked> roles_of(const Job& job) {
  std::vector<RoleAsked> out;
  for (const auto& role : job.roles) out.push_back({role.kind, {}, role.name});
  return out;
}

/// The settings from which assemble() makes this job: the structure, and whatever a job with only that would have otherwise.
class Shortest {
 public:
  explicit Shortest(const Job& job) : job_(job) {}

  std::set<std::string> keys() {
    const std::string model = get("model", nullptr);
    if (job_.cluster.gpus > 0) choose("gpus", nullptr);
    if (!model.empty()) choose("model", nullptr);
    if (trains(job_)) choose("framework", nullptr);
    for (const auto& role : job_.roles) {
      if (model.empty() && !role.model.empty()) choose("model", &role);
      for (const auto knob : kAlwaysOfARole)
        if (knob != "beside" || !role.beside.empty()) choose(knob, &role);
      if (!role.serves() && !has_default(role.trainer.framework, "precision.storage")) choose("precision.storage", &role);
    }
    while (choose_next_difference()) {
    }
    return chosen_;
  }

 private:
  std::string get(std::string_view knob, const Role* role) const { return oomplan::get(job_, key_of(role, knob)); }
  void choose(std::string_view knob, const Role* role) {
    const std::string key = key_of(role, knob);
    if (chosen_.insert(key).second) settings_.push_back({key, get(knob, role), {}});
  }
  bool choose_differences(const Job& made, const Role* role) {
    bool any = false;
    const Role* other = role == nullptr ? nullptr : made.role(role->name);
    if (role != nullptr && (other == nullptr || other->engine != role->engine)) return false;
    for (const auto& knob : knobs()) {
      const bool by_role = knob.key == "model" || (role == nullptr && knob.key == "framework");
      if (!has(knob, role) || by_role || chosen_.contains(key_of(role, knob.key))) continue;
      if (knob.get(job_, role) == knob.get(made, other)) continue;
      choose(knob.key, role);
      any = true;
    }
    return any;
  }
  /// Roles one after another: what the actor is given may make the reference right.
  bool choose_next_difference() {
    const FindModel find = [this](const std::string& name) -> std::shared_ptr<const Architecture> {
      for (const auto& role : job_.roles)
        if (role.model == name) return role.architecture;
      for (const auto& role : job_.roles)
        if (role.server.draft_model == name) return role.server.draft.architecture;
      for (const auto& role : job_.roles)
        if (role.trainer.reference_model == name) return role.trainer.other.architecture;
      return nullptr;
    };
    const Job made = assemble(roles_of(job_), settings_, find, Catalog::builtin().facts(), {}).job;
    if (choose_differences(made, nullptr)) return true;
    std::vector<const Role*> order;  // the actor first: ref and critic take over from it
    for (const auto& role : job_.roles) order.push_back(&role);
    std::stable_sort(order.begin(), order.end(),
                     [](const Role* a, const Role* b) { return (a->kind == RoleKind::actor) > (b->kind == RoleKind::actor); });
    return std::any_of(order.begin(), order.end(), [&](const Role* role) { return choose_differences(made, role); });
  }

  const Job& job_;
  std::set<std::string> chosen_;
  std::vector<Setting> settings_;
};

/// A text as a YAML scalar: plain where it cannot be misread, else in double quotes.
std::string scalar(const Knob& knob, const std::string& text) {
  if (knob.type == KnobType::items && text.starts_with('[') && text.ends_with(']')) return text;
  const auto plain = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '.' || c == '/' ||
           c == '-' || c == ' ';
  };
  const bool easy = !text.empty() && std::all_of(text.begin(), text.end(), plain) && text.front() != '-' && text.front() != ' ' &&
                    text.back() != ' ' && text != "null" && text != "Null" && text != "NULL" && text != "..." && text != "---";
  if (easy) return text;
  return nlohmann::json(text).dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
}

/// Writes `key: value` lines; keys with a common first part come under one heading.
class YamlLines {
 public:
  void add(std::string_view key, const std::string& value, const std::string& comment, int indent) {
    const auto dot = key.find('.');
    const std::string_view group = dot == std::string_view::npos ? std::string_view{} : key.substr(0, dot);
    if (!group.empty() && group != group_) line(std::string(group) + ":", {}, indent);
    group_ = group;
    line(fmt::format("{}: {}", group.empty() ? key : key.substr(dot + 1), value), comment, indent + (group.empty() ? 0 : 2));
  }
  void heading(const std::string& text, const std::string& comment = {}) {
    group_ = {};
    line(text, comment, 0);
  }
  std::string take() { return std::move(out_); }

 private:
  void line(const std::string& text, const std::string& comment, int indent) {
    constexpr std::size_t kColumn = 44;
    std::string full = std::string(static_cast<std::size_t>(indent), ' ') + text;
    if (!comment.empty()) {
      full.resize(std::max(full.size() + 2, kColumn), ' ');
      full += "# " + comment;
    }
    out_ += full + "\n";
  }
  std::string out_;
  std::string_view group_;
};

std::string one_line(std::string text) {
  for (char& c : text)
    if (static_cast<unsigned char>(c) < 0x20) c = ' ';
  return text;
}
std::string comment_of(const Job& job, const std::string& key) {
  const auto it = job.origins.find(key);
  return it == job.origins.end() ? std::string{} : one_line(to_text(it->second));
}

std::string write(const Job& job, const std::function<bool(const std::string&)>& wanted, bool annotated) {
  YamlLines lines;
  lines.heading("oomplan: 1");
  const auto add_all = [&](const Role* role) {
    for (const auto& knob : knobs()) {
      const std::string key = key_of(role, knob.key);
      if (!has(knob, role) || !wanted(key)) continue;
      const std::string value = knob.get(job, role);
      if (value.empty() || says_nothing(knob, value)) continue;
      lines.add(knob.key, scalar(knob, value), annotated ? comment_of(job, key) : "", role == nullptr ? 0 : 2);
    }
  };
  add_all(nullptr);
  for (const auto& role : job.roles) {
    lines.heading(role.name + ":");
    add_all(&role);
  }
  return lines.take();
}

nlohmann::ordered_json json_value(const Knob& knob, const std::string& text) {
  if (text == knob.zero || (text.empty() && knob.type != KnobType::text)) return nullptr;
  switch (knob.type) {
    case KnobType::count:
      return *read_count(text).value;
    case KnobType::bytes:
      return *read_bytes(text).value;
    case KnobType::number:
      return *read_number(text).value;
    case KnobType::flag:
      return text == "true";
    default:
      return text;
  }
}

nlohmann::ordered_json json_origin(const Origin& o) {
  nlohmann::ordered_json out{{"kind", spelling(o.kind)}};
  if (!o.place.file.empty() && o.kind != Origin::Kind::default_ && o.kind != Origin::Kind::derived) out["file"] = o.place.file;
  if (o.place.line > 0) out["line"] = o.place.line;
  if (o.place.column > 0) out["column"] = o.place.column;
  if (!o.because.empty()) out["because"] = o.because;
  if (!o.source.empty()) out["source"] = o.source;
  return out;
}

}  // namespace

std::string to_text(const Origin& o) {
  switch (o.kind) {
    case Origin::Kind::file:
      return to_text(Problem{{o.place.file, o.place.line, o.place.column, {}}, {}, {}, {}, {}});
    case Origin::Kind::override_:
      return o.place.file.empty() ? "override" : o.place.file;
    case Origin::Kind::default_:
      return o.source.empty() ? o.because : fmt::format("{} ({})", o.because, o.source);
    case Origin::Kind::derived:
      break;
  }
  return o.source.empty() ? "derived: " + o.because : fmt::format("derived: {} ({})", o.because, o.source);
}

std::string to_yaml(const Job& job) {
  const auto keys = Shortest(job).keys();
  return write(job, [&](const std::string& key) { return keys.contains(key); }, false);
}

std::string to_annotated_yaml(const Job& job) {
  const bool one_model = !get(job, "model").empty();
  return write(job, [&](const std::string& key) { return !one_model || !key.ends_with(".model"); }, true);
}

std::string to_json(const Job& job) {
  nlohmann::ordered_json out{{"schema", "oomplan.job/1"}, {"kind", spelling(job.kind)}};
  const auto settings = [&](const Role* role) {
    nlohmann::ordered_json all = nlohmann::ordered_json::object();
    for (const auto& knob : knobs())
      if (has(knob, role) && !says_nothing(knob, knob.get(job, role)))
        all[std::string(knob.key)] = json_value(knob, knob.get(job, role));
    return all;
  };
  out["settings"] = settings(nullptr);
  out["roles"] = nlohmann::ordered_json::array();
  for (const auto& role : job.roles)
    out["roles"].push_back({{"name", role.name}, {"kind", spelling(role.kind)}, {"settings", settings(&role)}});
  out["origins"] = nlohmann::ordered_json::object();
  for (const auto& [key, origin] : job.origins) out["origins"][key] = json_origin(origin);
  return json_text(out);
}

}  // namespace oomplan
