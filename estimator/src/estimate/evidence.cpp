// The accuracy table's row for an engine: models/accuracy.json, which benchmarks/accuracy writes.
#include <nlohmann/json.hpp>

#include "catalog/embedded.hpp"
#include "estimate/role_run.hpp"
#include "job/names.hpp"

namespace oomplan {
namespace {

struct EvidenceRow {
  std::string engine, framework, kernels;  ///< the latter two "": of any
  Evidence evidence;

  bool speaks_of(const Role& role) const {
    return engine == spelling(role.engine) && (framework.empty() || framework == spelling(role.trainer.framework)) &&
           (kernels.empty() || kernels == spelling(role.trainer.kernels));
  }
};

std::vector<EvidenceRow> read_rows() {
  std::vector<EvidenceRow> out;
  const auto table = nlohmann::json::parse(embedded_text("accuracy.json"));
  for (const auto& row : table.at("rows")) {
    const auto only = row.value("only_for", nlohmann::json::object());
    out.push_back({row.at("engine").get<std::string>(), only.value("framework", ""), only.value("kernels", ""),
                   Evidence{row.at("like").get<std::string>(), row.at("measurements").get<int>(),
                            row.at("error_p50_percent").get<double>(), row.at("error_p95_percent").get<double>()}});
  }
  return out;
}

}  // namespace

Evidence evidence_for(const Role& role) {
  static const auto rows = read_rows();
  Evidence out;
  for (const auto& row : rows)  // what is true of fewer jobs stands later
    if (row.speaks_of(role)) out = row.evidence;
  return out;
}

}  // namespace oomplan
