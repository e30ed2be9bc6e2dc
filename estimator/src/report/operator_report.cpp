#include "report/operator_report.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "report/format.hpp"
#include "report/live_table.hpp"
#include "units/json_text.hpp"

namespace oomplan {

std::string to_text(const OperatorAnswer& answer, const TextStyle& style) {
  constexpr std::size_t kRows = 12, kIndent = 2;
  return fmt::format("allocated  {}  highest level of a call\n", bytes_text(answer.allocated)) +
         fmt::format("resident   {}  between calls: inputs, weights, gradients, workspaces\n", bytes_text(answer.resident)) +
         fmt::format("reserved   {}  by the caching allocator\n\n", bytes_text(answer.reserved)) +
         live_table(answer.live, kRows, kIndent, style);
}

std::string to_json(const OperatorAnswer& answer) {
  nlohmann::ordered_json live = nlohmann::ordered_json::array();
  for (const LiveTensor& t : answer.live)
    live.push_back({{"name", t.name},
                    {"shape", t.shape},
                    {"dtype", name(t.dtype)},
                    {"bytes", t.bytes},
                    {"count", t.count},
                    {"category", name(t.category)},
                    {"kept_by", name(t.holder)}});
  const nlohmann::ordered_json out{{"schema", "oomplan.operator/1"},
                                   {"allocated_bytes", answer.allocated},
                                   {"resident_bytes", answer.resident},
                                   {"reserved_bytes", answer.reserved},
                                   {"live", live}};
  return json_text(out) + "\n";
}

std::string operators_to_text(const TextStyle& style) {
  using Align = Table::Align;
  Table table({Align::left, Align::left, Align::left, Align::left});
  table.row({head("operator"), head("by"), head("sizes"), head("what")});
  for (const OperatorRow& row : operator_rows()) {
    std::vector<std::string_view> sizes;
    for (const OperatorSize& size : row.sizes) sizes.push_back(size.name);
    table.row({std::string(row.name), fmt::format("{}", fmt::join(row.by, " ")), fmt::format("{}", fmt::join(sizes, " ")),
               std::string(row.help)});
  }
  return table.text(0, style.colour);
}

}  // namespace oomplan
