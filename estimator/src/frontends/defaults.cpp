#include "frontends/defaults.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "frontends/framework.hpp"
#include "job/names.hpp"
#include "units/sizes.hpp"

namespace oomplan {
namespace {

bool shares_gpus(const Job& job, const Role& role) {
  return !role.beside.empty() ||
         std::any_of(job.roles.begin(), job.roles.end(), [&](const Role& other) { return other.beside == role.name; });
}
bool is_value_model(const Role& r) { return r.kind == RoleKind::critic || r.kind == RoleKind::reward; }

}  // namespace

const std::vector<DefaultRow>& default_rows() {
  static const std::vector<DefaultRow> rows = [] {
    std::vector<DefaultRow> all;
    for (const FrameworkRow& framework : framework_rows())
      for (const DefaultRow& row : framework.defaults()) all.push_back(row);
    return all;
  }();
  return rows;
}

bool has_default(Framework framework, std::string_view key) {
  const auto& rows = default_rows();
  return std::any_of(rows.begin(), rows.end(),
                     [&](const DefaultRow& row) { return row.framework == framework && row.key == key; });
}

std::string_view newest_version(Framework f) { return row_of(f).releases.newest; }
std::string_view oldest_version(Framework f) { return row_of(f).releases.oldest; }
std::string_view last_known_version(Framework f) { return row_of(f).releases.last; }

std::string server_version(Framework f, std::string_view version, EngineKind engine, const Facts& facts) {
  const auto comes_along = row_of(f).server_version;
  const std::string_view pinned = comes_along != nullptr ? comes_along(version, engine) : std::string_view{};
  if (!pinned.empty()) return std::string(pinned);
  const auto known = facts.known_versions(spelling(engine));
  return known.empty() ? std::string{} : known.back();
}

DefaultValue value_of(const DefaultRow& row, std::string_view version, KnobType type, const Facts& facts) {
  if (!row.value.empty()) return {std::string(row.value), std::string(row.source)};
  const Fact& fact = facts.find(spelling(row.framework), row.source, {std::string(version), {}, {}});
  const auto whole = static_cast<std::int64_t>(fact.value);
  if (type == KnobType::number) return {number_text(fact.value), fact.source};
  if (type == KnobType::flag) return {whole != 0 ? "true" : "false", fact.source};
  return {count_text(whole), fact.source};
}

std::string framework_text(Framework f, std::string_view version) {
  const std::string_view name = row_of(f).loop.name;
  return version.empty() ? std::string(name) : fmt::format("{} {}", name, version);
}

bool applies(const DefaultRow& row, const Job& job, const Role& role) {
  const Framework framework = role.trainer.framework;
  if (row.framework != framework || !version_matches(role.trainer.framework_version, row.versions)) return false;
  if (role.serves() && job.kind == JobKind::serving) return false;  // a server without a framework around it
  switch (row.roles) {
    case For::trains:
      return !role.serves();
    case For::unit_by_unit:
      return !role.serves() && role.engine != EngineKind::fsdp1;
    case For::flat:
      return role.engine == EngineKind::fsdp1;
    case For::policy:
      return !role.serves() && !is_value_model(role);
    case For::values:
      return !role.serves() && is_value_model(role);
    case For::reference:
      return role.kind == RoleKind::reference && !role.serves();
    case For::megatron:
      return role.engine == EngineKind::megatron;
    case For::sglang:
      return role.engine == EngineKind::sglang;
    case For::vllm:
      return role.engine == EngineKind::vllm;
    case For::servers:
      return role.serves();
    case For::shared:
      return role.serves() && shares_gpus(job, role);
  }
  return false;
}

}  // namespace oomplan
