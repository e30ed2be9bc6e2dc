// A framework's guide for a job: a row for every point, in the guide's order.
#include <algorithm>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <oomplan/guide.hpp>

#include "report/format.hpp"
#include "report/report.hpp"
#include "units/json_text.hpp"

namespace oomplan {
namespace {

/// What a point would do here.
std::string effect(const GuidePoint& p) {
  if (p.overrides.empty()) return printable(p.why);
  std::string out = p.gain == 0 ? "changes nothing at the worst moment"
                                : fmt::format("{} at the worst moment", (p.gain > 0 ? "frees " : "needs ") +
                                                                            bytes_text(p.gain > 0 ? p.gain : -p.gain) +
                                                                            (p.gain > 0 ? "" : " more"));
  if (p.phase_gain > 0) out += fmt::format("; most, {}, in {}", bytes_text(p.phase_gain), printable(p.phase));
  return out + (p.fits ? "; then it fits" : "; then it does not fit");
}

}  // namespace

std::string to_text(const Guide& g, const TextStyle& style) {
  const auto width = static_cast<std::size_t>(std::max(40, style.width));
  std::string out = verdict(g.estimate) + "\n\n" + printable(g.source) + ", point by point, each alone\n";
  std::string section;
  for (const GuidePoint& p : g.points) {
    if (p.section != section) out += "\n" + paint(printable(p.section), Colour::strong, style.colour) + "\n";
    section = p.section;
    out += "  " + wrapped(printable(p.text) + ": " + effect(p), width - 2, 4) + "\n";
    if (p.overrides.empty()) continue;
    out += "    " + wrapped("costs: " + printable(p.why), width - 4, 6) + "\n";
    out += change_lines(p.overrides, width, 4);
  }
  return out;
}

std::string to_json(const Guide& g) {
  nlohmann::ordered_json out;
  out["schema"] = "oomplan.guide/1";
  out["oomplan_version"] = std::string(version());
  out["job"] = g.reading.job.name;
  out["source"] = g.source;
  out["fits"] = g.estimate.fits();
  out["verdict"] = verdict(g.estimate);
  out["points"] = nlohmann::ordered_json::array();
  for (const GuidePoint& p : g.points)
    out["points"].push_back({{"section", p.section},
                             {"text", p.text},
                             {"overrides", p.overrides},
                             {"why", p.why},
                             {"gain_bytes", p.gain},
                             {"phase", p.phase},
                             {"phase_gain_bytes", p.phase_gain},
                             {"fits", p.fits}});
  return json_text(out) + "\n";
}

}  // namespace oomplan
