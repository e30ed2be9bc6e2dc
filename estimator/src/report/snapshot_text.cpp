#include <fmt/format.h>

#include <algorithm>
#include <ctime>

#include "report/format.hpp"
#include "report/frame_text.hpp"
#include "report/snapshot_report.hpp"

namespace oomplan {
namespace {

using namespace snapshot;
using Align = Table::Align;

/// "2026-03-05 09:31:32 UTC" of microseconds since 1970.
std::string time_text(std::int64_t microseconds) {
  constexpr std::int64_t kYear3000 = 32'503'680'000;
  const std::time_t seconds = std::clamp<std::int64_t>(microseconds / 1'000'000, 0, kYear3000);
  std::tm parts{};
  gmtime_r(&seconds, &parts);
  return fmt::format("{:04}-{:02}-{:02} {:02}:{:02}:{:02} UTC", parts.tm_year + 1900, parts.tm_mon + 1, parts.tm_mday,
                     parts.tm_hour, parts.tm_min, parts.tm_sec);
}

std::string event_text(const Peak& peak) { return peak.event < 0 ? "before the first event" : "event " + grouped(peak.event); }

/// What differs from PyTorch's defaults.
std::string settings_text(const SnapshotReport& report) {
  std::string out;
  for (const auto& [key, value] : report.snapshot.settings) {
    const bool plain = value.empty() || value == "0" || value == "-1" || value == "False" ||
                       (key == "pinned_num_register_threads" && value == "1");
    if (!plain) out += fmt::format("{}{}={}", out.empty() ? "" : ", ", key, value);
  }
  if (!out.empty()) return printable(out);
  if (!report.snapshot.settings.empty()) return "defaults";
  return settings_of(report.snapshot).expandable_segments ? "not recorded; expandable segments are in use" : "not recorded";
}

std::string levels(const DeviceHistory& d, bool colour) {
  Table table({Align::left, Align::right, Align::right, Align::left});
  table.row({"", head("allocated"), head("reserved"), ""});
  if (d.events > 0) {
    table.row({"peak of allocated",
               {bytes_text(d.allocated_peak.allocated), Colour::strong},
               bytes_text(d.allocated_peak.reserved),
               {event_text(d.allocated_peak), Colour::dim}});
    table.row({"peak of reserved",
               bytes_text(d.reserved_peak.allocated),
               {bytes_text(d.reserved_peak.reserved), Colour::strong},
               {event_text(d.reserved_peak), Colour::dim}});
  }
  table.row({"now", bytes_text(d.now.allocated), bytes_text(d.now.reserved), ""});
  return table.text(2, colour);
}

std::string fragmentation(const Now& now, std::size_t width) {
  std::string text = fmt::format("Reserved now: {} segment{}", grouped(now.segments), now.segments == 1 ? "" : "s");
  if (now.expandable_segments > 0) text += fmt::format(" ({} expandable)", grouped(now.expandable_segments));
  text += fmt::format(", {} free", bytes_text(now.free));
  if (now.free > 0)
    text += fmt::format(
        ": {} in segments that are wholly free (empty_cache() gives them back), {} beside blocks in use; largest free block {}",
        bytes_text(now.releasable), bytes_text(now.inactive_split), bytes_text(now.largest_free));
  if (now.pending > 0) text += fmt::format("; {} freed but still used by another stream", bytes_text(now.pending));
  return "  " + wrapped(text + ".", width, 2) + "\n";
}

std::string ooms_text(const SnapshotReport& report, const DeviceHistory& d, const TextStyle& style) {
  std::string out;
  constexpr std::size_t kShown = 5;
  for (std::size_t i = 0; i < d.ooms.size() && i < kShown; ++i) {
    const auto& oom = d.ooms[i];
    std::string text = fmt::format(
        "Out of memory at event {}: {} asked for, {} free on the device. This process held {}, {} of it allocated: it could have "
        "had "
        "{}.",
        grouped(oom.event), bytes_text(oom.requested), bytes_text(oom.free), bytes_text(oom.reserved), bytes_text(oom.allocated),
        bytes_text(oom.limit()));
    if (const Frame* frame = telling_frame(report.snapshot, oom.stack)) text += " Asked by " + frame_text(frame) + ".";
    out += "  " + paint(wrapped(text, static_cast<std::size_t>(style.width), 2), Colour::bad, style.colour) + "\n";
  }
  if (d.ooms.size() > kShown)
    out += fmt::format("  and {} times more\n", grouped(static_cast<std::int64_t>(d.ooms.size() - kShown)));
  return out;
}

std::string live_text(const SnapshotReport& report, const DeviceHistory& d, const TextStyle& style) {
  const auto places = places_of(report.snapshot, d.live);
  if (places.empty()) return "";
  Bytes all = 0, shown = 0;
  const auto count = std::min(places.size(), static_cast<std::size_t>(report.top));
  for (std::size_t i = 0; i < places.size(); ++i) {
    all += places[i].total();
    if (i < count) shown += places[i].total();
  }
  std::string out = fmt::format("\n  Live {}, {} of {} rows ({}):\n", d.events > 0 ? "at the peak of allocated" : "now", count,
                                places.size(), percent_text(shown, all));
  Table table({Align::right, Align::right, Align::right, Align::left});
  table.row({head("total"), head("each"), head("number"), head("allocated by")});
  const std::size_t room = static_cast<std::size_t>(std::max(20, style.width - 40));
  for (std::size_t i = 0; i < count; ++i) {
    const auto& place = places[i];
    const std::string from = place.before ? "before the first event" : frame_text(place.frame);
    table.row({bytes_text(place.total()), bytes_text(place.bytes), grouped(place.count), clipped(from, room)});
  }
  return out + table.text(2, style.colour);
}

std::string replay_text(const Comparison& c, const TextStyle& style) {
  const auto width = static_cast<std::size_t>(style.width);
  if (!c.not_possible.empty() && c.allocations == 0)
    return "\n  " + wrapped("Replay: not possible, " + printable(c.not_possible) + ".", width, 2) + "\n";
  Table table({Align::left, Align::right, Align::right});
  table.row({"", head("recorded"), head("replayed")});
  table.row({"peak of reserved", bytes_text(c.recorded_reserved_peak), bytes_text(c.reserved_peak)});
  table.row({"segment events", grouped(c.recorded_segment_events), grouped(c.segment_events)});
  table.row({"allocations at the recorded address", grouped(c.allocations), grouped(c.placed_equal)});
  std::string out = "\n  Replay through the allocator:\n" + table.text(2, style.colour);
  std::string end = "Every event is equal.";
  if (c.first_difference >= 0)
    end = fmt::format("First difference at event {}: {}.", grouped(c.first_difference), printable(c.difference));
  if (!c.not_possible.empty()) end += " The replay stopped: " + printable(c.not_possible) + ".";
  return out + "  " + wrapped(end, width, 2) + "\n";
}

std::string device_text(const SnapshotReport& report, const DeviceHistory& d, const TextStyle& style) {
  const auto width = static_cast<std::size_t>(style.width);
  std::string title = paint(fmt::format("GPU {}", d.device), Colour::strong, style.colour);
  if (d.events == 0)
    title += ": no history was recorded, the state alone";
  else
    title += fmt::format(": {} events", grouped(d.events));
  if (d.events > 0 && d.first_time > 0) title += fmt::format(", {} to {}", time_text(d.first_time), time_text(d.last_time));
  std::string out = title + "\n" + levels(d, style.colour) + "\n" + fragmentation(d.now, width);
  if (d.unmatched > 0)
    out += "  " +
           wrapped(fmt::format("The history ends before the segments do: {} of its allocations are neither freed nor in them. "
                               "Its figures and those of now belong to different moments.",
                               grouped(d.unmatched)),
                   width, 2) +
           "\n";
  out += ooms_text(report, d, style) + live_text(report, d, style);
  if (report.replay) out += replay_text(d.comparison, style);
  return out;
}

}  // namespace

std::string to_text(const SnapshotReport& report, const TextStyle& style) {
  std::string out = fmt::format("{}\nAllocator settings: {}\n", printable(report.file), settings_text(report));
  if (report.devices.empty()) out += "\nNo device holds memory, and none has a history.\n";
  for (const auto& device : report.devices) out += "\n" + device_text(report, device, style);
  return out;
}

}  // namespace oomplan
