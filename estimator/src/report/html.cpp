// A small self-contained fragment for notebooks: the verdict and a bar a phase, styles inline.
#include <fmt/format.h>

#include <algorithm>

#include "report/blocks.hpp"
#include "report/format.hpp"
#include "report/report.hpp"

namespace oomplan {
namespace {

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : printable(text)) switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        out += c;
    }
  return out;
}

constexpr const char* kGood = "#2e7d32";
constexpr const char* kNear = "#b26a00";
constexpr const char* kBad = "#c62828";

constexpr const char* kTable = "<table style=\"border-collapse:collapse\">\n";

/// Cells of HTML; the first two are text, the others numbers.
std::string row_of(const std::vector<std::string>& cells, const char* tag, bool strong = false) {
  std::string out = strong ? "<tr style=\"font-weight:600\">" : "<tr>";
  for (std::size_t i = 0; i < cells.size(); ++i)
    out += fmt::format("<{0} style=\"padding:2px 8px;text-align:{1}\">{2}</{0}>", tag, i < 2 ? "left" : "right", cells[i]);
  return out + "</tr>\n";
}

const char* colour_of(Bytes part, Bytes whole) {
  if (part > whole) return kBad;
  return static_cast<double>(part) > 0.9 * static_cast<double>(whole) ? kNear : kGood;
}

std::string bar_of(Bytes part, Bytes whole) {
  const double share = whole > 0 ? std::clamp(100.0 * static_cast<double>(part) / static_cast<double>(whole), 0.0, 100.0) : 100.0;
  return fmt::format(
      "<div style=\"width:16em;background:#8883\"><div style=\"width:{:.1f}%;height:0.9em;background:{}\"></div></div>", share,
      colour_of(part, whole));
}

}  // namespace

std::string to_html(const Found& found, const Job& job) {
  std::string out = "<div class=\"oomplan\" style=\"font-family:sans-serif;font-size:13px;max-width:80em\">\n";
  const std::string text = to_text(found, job);
  out += fmt::format("<p style=\"color:{};font-weight:600\">{}</p>\n", found.best.empty() ? kBad : kGood,
                     escaped(text.substr(0, text.find('\n'))));
  if (found.best.empty()) {
    out += kTable + row_of({"phase", "changed", "still missing", ""}, "th");
    for (const auto& limit : found.limits)
      out += row_of({escaped(limit.phase), escaped(limit.axis), bytes_text(limit.missing), escaped(limit.text)}, "td");
    return out + "</table>\n</div>\n";
  }
  const bool serves = found.best.front().relative_throughput > 0;
  out += kTable + row_of({"#", "what to change", serves ? "throughput" : "step time", "needed", "", "P(fit)"}, "th");
  const auto row = [&](const std::string& number, const Candidate& c) {
    std::string changes;
    for (const auto& word : c.overrides) changes += (changes.empty() ? "" : " ") + escaped(word);
    const GpuAnswer* gpu = tightest(c.estimate);
    const Bytes needed = gpu == nullptr ? 0 : gpu->phases[gpu->worst].usage.capacity_needed;
    const double rank = serves ? c.relative_throughput : c.relative_step_time;
    out += row_of({number, changes.empty() ? "(the job as it is)" : changes, rank > 0 ? fmt::format("{:.2f}", rank) : "-",
                   bytes_text(needed), bar_of(needed, gpu == nullptr ? 0 : gpu->usable),
                   c.estimate.fit_probability ? escaped(short_probability(*c.estimate.fit_probability)) : "-"},
                  "td");
  };
  if (found.as_it_stands) row("", *found.as_it_stands);
  for (std::size_t i = 0; i < found.best.size(); ++i) row(std::to_string(i + 1), found.best[i]);
  return out + "</table>\n</div>\n";
}

std::string to_html(const Estimate& estimate, const Job& job) {
  std::string out = "<div class=\"oomplan\" style=\"font-family:sans-serif;font-size:13px;max-width:60em\">\n";
  out +=
      fmt::format("<p style=\"color:{};font-weight:600\">{}</p>\n", estimate.fits() ? kGood : kBad, escaped(verdict(estimate)));
  if (estimate.fit_probability)
    out += fmt::format("<p>probability that it fits: {}</p>\n", escaped(probability_text(*estimate.fit_probability)));
  out += kTable;
  out += row_of({"GPUs", "phase", "needed", "", "of usable", "to spare"}, "th");
  for (const auto& [gpu, spread] : blocks_of(estimate.gpus)) {
    for (std::size_t i = 0; i < gpu.phases.size(); ++i) {
      const Moment& phase = gpu.phases[i];
      const Bytes needed = phase.usage.capacity_needed;
      out += row_of({i == 0 ? escaped(gpu.ranks) + " (" + escaped(gpu.gpu) + ")" : std::string(), escaped(phase.phase),
                     (phase.bound ? "&le; " : "") + bytes_text(needed), bar_of(needed, gpu.usable),
                     escaped(percent_text(needed, gpu.usable)), bytes_text(gpu.usable - needed)},
                    "td", i == gpu.worst);
    }
  }
  out += "</table>\n";
  for (const auto& server : estimate.servers)
    if (!server.shortage.empty())
      out += fmt::format("<p style=\"color:{}\">{}: {}</p>\n", kNear, escaped(server.role), escaped(server.shortage));
  for (const auto& note : estimate.notes)
    if (note.level == Note::Level::warning) out += fmt::format("<p style=\"color:{}\">{}</p>\n", kNear, escaped(note.text));
  if (!job.name.empty()) out += fmt::format("<p style=\"color:#888\">{}</p>\n", escaped(job.name));
  return out + "</div>\n";
}

}  // namespace oomplan
