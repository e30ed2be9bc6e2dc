// The GPU table and the engine facts, as the catalog holds them.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include <nlohmann/json.hpp>

#include "catalog/catalog.hpp"
#include "catalog/engine_releases.hpp"
#include "report/format.hpp"
#include "report/report.hpp"
#include "units/enums.hpp"
#include "units/json_text.hpp"

namespace oomplan {
namespace {

using Json = nlohmann::ordered_json;
using Align = Table::Align;

std::string joined(const std::vector<std::string>& items, const char* between) {
  std::string out;
  for (const auto& item : items) out += (out.empty() ? "" : between) + item;
  return out;
}

std::string in_tera(double per_second) { return per_second > 0 ? fmt::format("{:.4g}", per_second / 1e12) : "-"; }

/// A number that is whole prints as an integer.
Json plain(double value) {
  if (!std::isfinite(value)) return nullptr;
  if (std::floor(value) == value && std::fabs(value) < 9e15) return static_cast<std::int64_t>(value);
  return value;
}

bool is_bytes(const Fact& fact) { return fact.fact.ends_with("_bytes"); }

std::string value_text(const Fact& fact, double value) {
  if (is_bytes(fact) && std::fabs(value) < 9e15) return bytes_text(std::llround(value));
  return fmt::format("{:g}", value);
}

std::string when_text(const Fact& fact) {
  std::string out = fact.versions;
  const auto add = [&out](const std::string& text) { out += (out.empty() ? "" : "; ") + text; };
  if (!fact.gpus.empty()) add(joined(fact.gpus, "/"));
  for (const auto& [key, condition] : fact.when) {
    const bool compares = condition.find_first_of("<>=!") == 0;
    add(key + (compares ? "" : "=") + condition);
  }
  return out.empty() ? "any" : out;
}

std::vector<Fact> chosen(const Facts& facts, std::string_view engine, std::string_view version) {
  std::vector<std::string> engines;
  for (const auto& fact : facts.rows())
    if (std::find(engines.begin(), engines.end(), fact.engine) == engines.end()) engines.push_back(fact.engine);
  std::sort(engines.begin(), engines.end());
  if (!engine.empty() && std::find(engines.begin(), engines.end(), engine) == engines.end())
    throw InputError(Problem{.place = {},
                             .found = "engine '" + std::string(engine) + "'",
                             .expected = "one of " + list_of(engines),
                             .nearest = nearest(engine, engines),
                             .why = {}});
  if (!version.empty() && (version.find_first_not_of("0123456789.abcdefghijklmnopqrstuvwxyz+-_") != std::string_view::npos ||
                           version[0] < '0' || version[0] > '9'))
    throw InputError(Problem{.place = {},
                             .found = "version '" + std::string(version) + "'",
                             .expected = "numbers joined by dots, such as 0.11.2",
                             .nearest = {},
                             .why = {}});
  const AnsweringVersion answer = answering_version(facts, engine, version);
  if (!answer.version.empty()) version = answer.version;
  std::vector<Fact> out;
  for (const auto& fact : facts.rows())
    if ((engine.empty() || fact.engine == engine) && (version.empty() || version_matches(version, fact.versions)))
      out.push_back(fact);
  return out;
}

}  // namespace

std::string gpus_to_text(const Catalog& catalog, const TextStyle& style) {
  Table table({Align::left, Align::left, Align::right, Align::right, Align::right, Align::right, Align::left, Align::left});
  table.row({head("GPU"), head("sm"), head("usable"), head("TB/s"), head("bf16 TFLOP/s"), head("fp8 TFLOP/s"), head("link"),
             head("also called")});
  for (const auto& gpu : catalog.gpus())
    table.row({printable(gpu.name),
               printable(gpu.sm),
               bytes_text(gpu.usable),
               in_tera(gpu.memory_bandwidth),
               in_tera(gpu.bf16_flops),
               in_tera(gpu.fp8_flops),
               printable(gpu.link),
               {clipped(printable(joined(gpu.aliases, ", ")), 40), Colour::dim}});
  return table.text(0, style.colour);
}

std::string gpus_to_json(const Catalog& catalog) {
  Json out;
  out["schema"] = "oomplan.gpus/1";
  out["oomplan_version"] = std::string(version());
  Json rows = Json::array();
  for (const auto& gpu : catalog.gpus()) {
    Json row;
    row["name"] = gpu.name;
    row["aliases"] = gpu.aliases;
    row["sm"] = gpu.sm;
    row["usable_bytes"] = gpu.usable;
    row["sms"] = gpu.sms;
    row["memory_bytes_per_second"] = plain(gpu.memory_bandwidth);
    row["bf16_flops_per_second"] = plain(gpu.bf16_flops);
    row["fp8_flops_per_second"] = plain(gpu.fp8_flops);
    row["link_bytes_per_second"] = plain(gpu.link_bandwidth);
    row["link"] = gpu.link;
    row["source"] = gpu.source;
    rows.push_back(std::move(row));
  }
  out["gpus"] = std::move(rows);
  return json_text(out) + "\n";
}

std::string facts_to_text(const Catalog& catalog, std::string_view engine, std::string_view version, const TextStyle& style) {
  const auto facts = chosen(catalog.facts(), engine, version);
  if (facts.empty()) return "No facts.\n";
  Table table({Align::left, Align::left, Align::right, Align::right, Align::left, Align::left, Align::left});
  table.row({head("engine"), head("fact"), head("value"), head("+-"), head("when"), head("known by"), head("source")});
  for (const auto& fact : facts) {
    const std::string by =
        std::string(spelling(fact.kind)) + (fact.measurements > 0 ? fmt::format(" ({})", fact.measurements) : "");
    table.row({printable(fact.engine),
               printable(fact.fact),
               value_text(fact, fact.value),
               fact.spread > 0 ? value_text(fact, fact.spread) : "",
               clipped(printable(when_text(fact)), 44),
               by,
               {clipped(printable(fact.source), 60), Colour::dim}});
  }
  return table.text(0, style.colour);
}

std::string facts_remark(const Catalog& catalog, std::string_view engine, std::string_view version) {
  return version.empty() ? std::string() : answering_version(catalog.facts(), engine, version).remark;
}

std::string facts_to_json(const Catalog& catalog, std::string_view engine, std::string_view version) {
  Json out;
  out["schema"] = "oomplan.facts/1";
  out["oomplan_version"] = std::string(oomplan::version());
  Json rows = Json::array();
  for (const auto& fact : chosen(catalog.facts(), engine, version)) {
    Json row;
    row["engine"] = fact.engine;
    row["fact"] = fact.fact;
    row["versions"] = fact.versions;
    row["gpus"] = fact.gpus;
    row["when"] = fact.when;
    if (is_bytes(fact)) {
      row["value_bytes"] = std::llround(fact.value);
      row["spread_bytes"] = std::llround(fact.spread);
    } else {
      row["value"] = plain(fact.value);
      row["spread"] = plain(fact.spread);
    }
    row["measurements"] = fact.measurements;
    row["kind"] = std::string(spelling(fact.kind));
    row["source"] = fact.source;
    rows.push_back(std::move(row));
  }
  out["facts"] = std::move(rows);
  return json_text(out) + "\n";
}

}  // namespace oomplan
