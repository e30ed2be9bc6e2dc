// The accuracy table's row for an engine: models/accuracy.json, which benchmarks/accuracy writes.
#include <nlohmann/json.hpp>

#include "catalog/embedded.hpp"
#include "estimate/role_run.hpp"
#include "job/names.hpp"

namespace oomplan {
namespace {

std::vector<std::pair<std::string, Evidence>> read_rows() {
  std::vector<std::pair<std::string, Evidence>> out;
  const auto table = nlohmann::json::parse(embedded_text("accuracy.json"));
  for (const auto& row : table.at("rows"))
    out.emplace_back(row.at("engine").get<std::string>(),
                     Evidence{row.at("like").get<std::string>(), row.at("measurements").get<int>(),
                              row.at("error_p50_percent").get<double>(), row.at("error_p95_percent").get<double>()});
  return out;
}

}  // namespace

Evidence evidence_for(const Role& role) {
  static const auto rows = read_rows();
  for (const auto& [engine, evidence] : rows)
    if (engine == spelling(role.engine)) return evidence;
  return {};
}

}  // namespace oomplan
