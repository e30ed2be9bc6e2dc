#include "report/models_table.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "catalog/architecture.hpp"
#include "catalog/catalog.hpp"
#include "catalog/parameters.hpp"
#include "report/format.hpp"
#include "report/report.hpp"
#include "units/json_text.hpp"

namespace oomplan {
namespace {

std::vector<std::string> named(const Catalog& catalog, std::string_view word) {
  std::vector<std::string> out = catalog.ids_with(word);
  if (out.empty()) catalog.model(word);  // says what is nearest
  return out;
}
std::int64_t total_of(const Architecture& a) {
  std::int64_t sum = 0;
  for (const auto& parameter : parameters(a)) sum += parameter.total();
  return sum;
}

}  // namespace

std::string models_to_text(const Catalog& catalog, std::string_view word, const TextStyle& style) {
  using Align = Table::Align;
  Table table({Align::left, Align::right, Align::right, Align::right});
  table.row({head("model"), head("parameters"), head("layers"), head("positions")});
  for (const auto& id : named(catalog, word)) {
    const ModelFound found = catalog.model(id);
    const Architecture& a = *found.architecture;
    table.row({printable(id), fmt::format("{:.2f} B", static_cast<double>(total_of(a)) / 1e9), grouped(a.layers()),
               a.max_positions > 0 ? grouped(a.max_positions) : "-"});
  }
  return table.text(0, style.colour);
}

std::string models_to_json(const Catalog& catalog, std::string_view word) {
  nlohmann::ordered_json out;
  out["schema"] = "oomplan.models/1";
  out["oomplan_version"] = std::string(version());
  auto rows = nlohmann::ordered_json::array();
  for (const auto& id : named(catalog, word)) {
    const ModelFound found = catalog.model(id);
    const Architecture& a = *found.architecture;
    nlohmann::ordered_json row;
    row["id"] = id;
    row["parameters"] = total_of(a);
    row["layers"] = a.layers();
    row["positions"] = a.max_positions > 0 ? nlohmann::ordered_json(a.max_positions) : nlohmann::ordered_json(nullptr);
    rows.push_back(std::move(row));
  }
  out["models"] = std::move(rows);
  return json_text(out) + "\n";
}

}  // namespace oomplan
