#include <nlohmann/json.hpp>

#include "report/format.hpp"
#include "report/snapshot_report.hpp"
#include "units/json_text.hpp"

namespace oomplan {
namespace {

using Json = nlohmann::ordered_json;
using namespace snapshot;

void put_frame(Json& row, const Frame* frame) {
  row["file"] = frame != nullptr ? Json(printable(frame->file)) : Json(nullptr);
  row["line"] = frame != nullptr ? Json(frame->line) : Json(nullptr);
  row["function"] = frame != nullptr ? Json(printable(frame->function)) : Json(nullptr);
}

Json json_of(const Now& now) {
  return {{"allocated_bytes", now.allocated},
          {"requested_bytes", now.requested},
          {"reserved_bytes", now.reserved},
          {"pending_bytes", now.pending},
          {"free_bytes", now.free},
          {"releasable_bytes", now.releasable},
          {"inactive_split_bytes", now.inactive_split},
          {"largest_free_bytes", now.largest_free},
          {"segments", now.segments},
          {"small_segments", now.small_segments},
          {"expandable_segments", now.expandable_segments},
          {"blocks", now.blocks}};
}

Json json_of(const Peak& peak) {
  return {{"allocated_bytes", peak.allocated}, {"reserved_bytes", peak.reserved}, {"event", peak.event}};
}

Json json_of(const Comparison& c) {
  if (!c.not_possible.empty() && c.allocations == 0) return {{"possible", false}, {"why_not", printable(c.not_possible)}};
  return {{"possible", true},
          {"stopped", c.not_possible.empty() ? Json(nullptr) : Json(printable(c.not_possible))},
          {"reserved_peak_bytes", {{"recorded", c.recorded_reserved_peak}, {"replayed", c.reserved_peak}}},
          {"segment_events", {{"recorded", c.recorded_segment_events}, {"replayed", c.segment_events}}},
          {"allocations", c.allocations},
          {"at_recorded_address", c.placed_equal},
          {"out_of_memory", c.ooms},
          {"first_difference_event", c.first_difference < 0 ? Json(nullptr) : Json(c.first_difference)},
          {"first_difference", c.first_difference < 0 ? Json(nullptr) : Json(c.difference)}};
}

Json json_of(const SnapshotReport& report, const DeviceHistory& d) {
  const bool history = d.events > 0;
  Json out;
  out["device"] = d.device;
  out["events"] = d.events;
  out["first_time_us"] = history && d.first_time > 0 ? Json(d.first_time) : Json(nullptr);
  out["last_time_us"] = history && d.last_time > 0 ? Json(d.last_time) : Json(nullptr);
  out["unmatched_allocations"] = d.unmatched;
  out["now"] = json_of(d.now);
  out["allocated_peak"] = history ? json_of(d.allocated_peak) : Json(nullptr);
  out["reserved_peak"] = history ? json_of(d.reserved_peak) : Json(nullptr);
  out["live_at"] = history ? "allocated_peak" : "now";
  const auto places = places_of(report.snapshot, d.live);
  out["live_rows"] = places.size();
  out["live"] = Json::array();
  for (const auto& place : places) {
    if (static_cast<std::int64_t>(out["live"].size()) >= report.top) break;
    Json row{{"bytes", place.bytes}, {"count", place.count}, {"total_bytes", place.total()}};
    put_frame(row, place.frame);
    row["before_recording"] = place.before;
    out["live"].push_back(row);
  }
  out["out_of_memory"] = Json::array();
  for (const auto& oom : d.ooms) {
    Json row{{"event", oom.event},         {"requested_bytes", oom.requested}, {"free_bytes", oom.free},
             {"limit_bytes", oom.limit()}, {"allocated_bytes", oom.allocated}, {"reserved_bytes", oom.reserved}};
    put_frame(row, telling_frame(report.snapshot, oom.stack));
    out["out_of_memory"].push_back(row);
  }
  out["replay"] = report.replay ? json_of(d.comparison) : Json(nullptr);
  return out;
}

}  // namespace

std::string to_json(const SnapshotReport& report) {
  Json out;
  out["schema"] = "oomplan.snapshot/1";
  out["file"] = printable(report.file);
  out["settings"] = report.snapshot.settings.empty() ? Json(nullptr) : Json::object();
  for (const auto& [key, value] : report.snapshot.settings) out["settings"][printable(key)] = printable(value);
  out["devices"] = Json::array();
  for (const auto& device : report.devices) out["devices"].push_back(json_of(report, device));
  return json_text(out) + "\n";
}

}  // namespace oomplan
