#include <oomplan/units/errors.hpp>

#include <algorithm>
#include <array>

#include "units/utf8.hpp"

namespace oomplan {
namespace {

std::string joined(const std::vector<Problem>& all) {
  std::string out;
  for (const auto& problem : all) {
    if (!out.empty()) out += '\n';
    out += to_text(problem);
  }
  return out;
}

/// The words in which reasons say so, everywhere.
constexpr std::array<std::string_view, 2> kNotSupported{"not supported yet", "does not read yet"};
constexpr std::string_view kTheirs = "itself refuses it";

ProblemKind kind_of(const Problem& p) {
  if (p.kind == ProblemKind::unknown_model || p.kind == ProblemKind::defect) return p.kind;
  const auto says = [&](std::string_view words) { return p.why.find(words) != std::string::npos; };
  if (says(kTheirs)) return ProblemKind::refused_by_framework;
  return std::any_of(kNotSupported.begin(), kNotSupported.end(), says) ? ProblemKind::not_supported : p.kind;
}

/// Messages never fail: what they show of a user's text is text, whatever it was.
std::vector<Problem> cleaned(std::vector<Problem> all) {
  for (Problem& p : all) p.kind = kind_of(p);
  for (Problem& p : all)
    for (std::string* text : {&p.place.file, &p.place.path, &p.found, &p.expected, &p.nearest, &p.why}) *text = printable(*text);
  return all;
}

}  // namespace

std::string to_text(const Problem& p) {
  std::string out = p.place.file;
  if (p.place.line > 0) out += ":" + std::to_string(p.place.line);
  if (p.place.line > 0 && p.place.column > 0) out += ":" + std::to_string(p.place.column);
  if (!p.place.path.empty()) out += (out.empty() ? "" : " ") + p.place.path;
  std::string said;
  const auto add = [&said](const std::string& piece) { said += (said.empty() ? "" : ", ") + piece; };
  if (!p.found.empty()) add("found " + p.found);
  if (!p.expected.empty()) add("expected " + p.expected);
  if (!p.nearest.empty()) said += " (did you mean '" + p.nearest + "'?)";
  if (!p.why.empty()) said += (said.empty() ? "" : ": ") + p.why;
  if (out.empty()) return said;
  return said.empty() ? out : out + ": " + said;
}

std::string_view name(ProblemKind kind) {
  constexpr std::array<std::string_view, 5> kNames{"malformed", "refused_by_framework", "unknown_model", "not_supported",
                                                   "defect"};
  return kNames[static_cast<std::size_t>(kind)];
}

ProblemKind InputError::kind() const {
  ProblemKind first = ProblemKind::defect;
  for (const Problem& p : problems) first = std::min(first, p.kind);
  return first;
}

InputError::InputError(std::vector<Problem> all) : std::runtime_error(joined(cleaned(all))), problems(cleaned(std::move(all))) {}

}  // namespace oomplan
