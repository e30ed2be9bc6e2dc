// The accuracy table's row for a job: models/accuracy.json, which benchmarks/accuracy writes.
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
                     Evidence{row.at("like").get<std::string>(), row.at("measurements").get<int>(), row.at("error_p50_percent").get<double>(),
                              row.at("error_p95_percent").get<double>()});
  return out;
}

}  // namespace

Evidence evidence_for(const Job& job, const Catalog&) {
  static const auto rows = read_rows();
  // The trainer's figures where there is one, else the server's.
  const Role* about = nullptr;
  for (const auto& r : job.roles)
    if (about == nullptr || (about->serves() && !r.serves())) about = &r;
  if (about == nullptr) return {};
  for (const auto& [engine, evidence] : rows)
    if (engine == spelling(about->engine)) return evidence;
  return {};
}

}  // namespace oomplan
