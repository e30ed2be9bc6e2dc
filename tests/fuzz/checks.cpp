#include "checks.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "report/report.hpp"
#include "units/utf8.hpp"

namespace oomplan::fuzz {

void require(bool holds, const std::string& what) {
  if (!holds) throw Broken(what);
}

std::vector<std::string> parts_of(std::string_view text, std::size_t least) {
  constexpr std::string_view kBetween = "\n%%\n";
  std::vector<std::string> out;
  for (std::size_t at = text.find(kBetween); out.size() + 1 < least && at != std::string_view::npos; at = text.find(kBetween)) {
    out.emplace_back(text.substr(0, at + 1));
    text.remove_prefix(at + kBetween.size());
  }
  out.emplace_back(text);
  out.resize(std::max(least, out.size()));
  return out;
}

std::vector<std::string> lines_of(std::string_view text) {
  std::vector<std::string> out;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    if (end > 0) out.emplace_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return out;
}

void check_text(std::string_view text) {
  for (std::size_t at = 0; at < text.size();) {
    const auto c = static_cast<unsigned char>(text[at]);
    if (c >= 0x20 && c < 0x7f) {  // most of a text, and the checks below allocate
      ++at;
      continue;
    }
    const std::size_t n = utf8_length(text, at);
    require(n > 0, "text that is not UTF-8");
    require(c == '\n' || c >= 0x80, "a control character in a text");
    const std::string_view character = text.substr(at, n);
    require(character == printable(character) || c == '\n', "a mark that steers a terminal");
    at += n;
  }
}

nlohmann::json check_json(const std::string& text) {
  check_text(text);
  auto json = nlohmann::json::parse(text, nullptr, false);
  require(!json.is_discarded(), "JSON that is none");
  return json;
}

void check_problems(const std::vector<Problem>& problems) {
  require(!problems.empty(), "an InputError without a problem");
  for (const Problem& problem : problems) {
    require(!problem.found.empty() || !problem.expected.empty() || !problem.why.empty(), "a problem without words");
    check_text(to_text(problem));
  }
  require(check_json(to_json(problems)).at("problems").size() == problems.size(), "problems that are lost");
}

}  // namespace oomplan::fuzz
