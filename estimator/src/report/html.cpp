// A small self-contained fragment for notebooks: the verdict and a bar a phase, styles inline.
#include <fmt/format.h>

#include <algorithm>

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

const char* colour_of(Bytes part, Bytes whole) {
  if (part > whole) return kBad;
  return static_cast<double>(part) > 0.9 * static_cast<double>(whole) ? kNear : kGood;
}

}  // namespace

std::string to_html(const Estimate& estimate, const Job& job) {
  std::string out = "<div class=\"oomplan\" style=\"font-family:sans-serif;font-size:13px;max-width:60em\">\n";
  out +=
      fmt::format("<p style=\"color:{};font-weight:600\">{}</p>\n", estimate.fits() ? kGood : kBad, escaped(verdict(estimate)));
  if (estimate.fit_probability)
    out += fmt::format("<p>probability that it fits: {}</p>\n", escaped(probability_text(*estimate.fit_probability)));
  out +=
      "<table style=\"border-collapse:collapse\">\n<tr><th align=\"left\">GPUs</th><th align=\"left\">phase</th><th "
      "align=\"right\">needed</th>"
      "<th></th><th align=\"right\">of usable</th><th align=\"right\">to spare</th></tr>\n";
  for (const auto& gpu : estimate.gpus) {
    for (std::size_t i = 0; i < gpu.phases.size(); ++i) {
      const Moment& phase = gpu.phases[i];
      const Bytes needed = phase.usage.capacity_needed;
      const double share =
          gpu.usable > 0 ? std::clamp(100.0 * static_cast<double>(needed) / static_cast<double>(gpu.usable), 0.0, 100.0) : 100.0;
      out += fmt::format(
          "<tr{}><td>{}</td><td>{}</td><td align=\"right\">{}{}</td><td><div style=\"width:16em;background:#8883\">"
          "<div style=\"width:{:.1f}%;height:0.9em;background:{}\"></div></div></td><td align=\"right\">{}</td><td "
          "align=\"right\">{}</td></tr>\n",
          i == gpu.worst ? " style=\"font-weight:600\"" : "",
          i == 0 ? escaped(gpu.ranks) + " (" + escaped(gpu.gpu) + ")" : std::string(), escaped(phase.phase),
          phase.bound ? "&le; " : "", bytes_text(needed), share, colour_of(needed, gpu.usable),
          escaped(percent_text(needed, gpu.usable)), bytes_text(gpu.usable - needed));
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
