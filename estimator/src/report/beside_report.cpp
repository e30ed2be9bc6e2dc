#include "report/beside_report.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>

#include "report/format.hpp"
#include "report/frame_text.hpp"
#include "report/report.hpp"
#include "units/json_text.hpp"

namespace oomplan {
namespace {

using snapshot::Beside;
using snapshot::SizeRow;
using Align = Table::Align;
using Json = nlohmann::ordered_json;

/// "+1.3 %" of what was recorded.
std::string difference_text(Bytes predicted, Bytes recorded) {
  if (recorded <= 0) return "";
  return fmt::format("{:+.2f} %", 100.0 * static_cast<double>(predicted - recorded) / static_cast<double>(recorded));
}

std::string and_more(const std::string& text, std::int64_t more) {
  return text.empty() || more == 0 ? text : fmt::format("{}, {} more", text, grouped(more));
}

std::string levels_text(const Beside& b, bool colour) {
  Table table({Align::left, Align::right, Align::right, Align::right});
  table.row({"", head("predicted"), head("recorded"), head("difference")});
  const auto row = [&](const char* what, Bytes predicted, Bytes recorded) {
    table.row({what, bytes_text(predicted), bytes_text(recorded), difference_text(predicted, recorded)});
  };
  row("allocated", b.predicted.allocated, b.recorded.allocated);
  row("reserved", b.predicted.reserved, b.recorded.reserved);
  table.row({"in blocks of equal size", bytes_text(b.alike), bytes_text(b.alike), ""});
  table.row({"on one side only", bytes_text(b.predicted_alone), bytes_text(b.recorded_alone), ""});
  return table.text(2, colour);
}

/// Rows that `wanted` picks, as a table.
template <class Wanted>
std::string rows_text(const BesideReport& report, const Beside& b, const char* title, const Wanted& wanted,
                      const TextStyle& style) {
  Table table({Align::right, Align::right, Align::right, Align::left, Align::left});
  table.row({head("each"), head("predicted"), head("recorded"), head("tensor"), head("allocated by")});
  const std::size_t room = static_cast<std::size_t>(std::max(24, (style.width - 40) / 2));
  std::int64_t shown = 0, all = 0;
  for (const SizeRow& row : b.rows) {
    if (!wanted(row) || ++all > report.top) continue;
    ++shown;
    const std::string place = row.recorded > 0 ? frame_text(row.place) : "";
    table.row({bytes_text(row.bytes), grouped(row.predicted), grouped(row.recorded),
               clipped(and_more(printable(row.tensor), row.more_tensors), room),
               clipped(and_more(place, row.more_places), room)});
  }
  if (shown == 0) return "";
  std::string out = fmt::format("\n  {}, {} of {} sizes:\n{}", title, shown, all, table.text(2, style.colour));
  return out;
}

std::string device_text(const BesideReport& report, const Beside& b, const TextStyle& style) {
  const std::string head_line = fmt::format("GPU {} of {} beside {}, {}", b.device, report.file, b.ranks, b.phase);
  std::string out = "\n" + paint(printable(head_line), Colour::strong, style.colour) + "\n" + levels_text(b, style.colour);
  const std::string moment =
      fmt::format("{} stands beside the highest of {}. Context, NCCL and graphs are in no record.",
                  b.whole_history ? "The record's highest moment" : "What lived when it was recorded, as it has no history,",
                  report.stated ? "this phase" : "the predicted phase that is most like it");
  out += "  " + wrapped(moment, static_cast<std::size_t>(style.width), 2) + "\n";
  out += rows_text(
      report, b, "Sizes that differ in number", [](const SizeRow& row) { return row.predicted != row.recorded; }, style);
  out += rows_text(report, b, "Sizes that are alike", [](const SizeRow& row) { return row.predicted == row.recorded; }, style);
  return out;
}

Json json_of(const snapshot::Peak& peak) { return {{"allocated_bytes", peak.allocated}, {"reserved_bytes", peak.reserved}}; }

Json json_of(const SizeRow& row) {
  const bool placed = row.place != nullptr;
  return {{"bytes", row.bytes},
          {"predicted", row.predicted},
          {"recorded", row.recorded},
          {"tensor", row.tensor.empty() ? Json(nullptr) : Json(printable(row.tensor))},
          {"more_tensors", row.more_tensors},
          {"file", placed ? Json(printable(row.place->file)) : Json(nullptr)},
          {"line", placed ? Json(row.place->line) : Json(nullptr)},
          {"function", placed ? Json(printable(row.place->function)) : Json(nullptr)},
          {"more_places", row.more_places}};
}

Json json_of(const Beside& b) {
  Json rows = Json::array();
  for (const auto& row : b.rows) rows.push_back(json_of(row));
  return {{"device", b.device},
          {"history", b.whole_history},
          {"ranks", b.ranks},
          {"phase", b.phase},
          {"predicted_peak", json_of(b.predicted)},
          {"recorded_peak", json_of(b.recorded)},
          {"alike_bytes", b.alike},
          {"predicted_alone_bytes", b.predicted_alone},
          {"recorded_alone_bytes", b.recorded_alone},
          {"sizes", std::move(rows)}};
}

}  // namespace

std::string to_text(const BesideReport& report, const TextStyle& style) {
  if (report.devices.empty()) return "\n" + printable(report.file) + ": no device holds memory at its highest moment\n";
  std::string out;
  for (const auto& device : report.devices) out += device_text(report, device, style);
  return out;
}

std::string to_json(const Estimate& estimate, const Job& job, const BesideReport& report) {
  Json out = estimate_object(estimate, job);
  Json devices = Json::array();
  for (const auto& device : report.devices) devices.push_back(json_of(device));
  out["recorded"] = {{"file", printable(report.file)}, {"devices", std::move(devices)}};
  return json_text(out) + "\n";
}

}  // namespace oomplan
