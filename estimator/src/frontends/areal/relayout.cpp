#include "frontends/areal/relayout.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "frontends/areal/grammars.hpp"
#include "layout/letters.hpp"

namespace oomplan::areal {
namespace {

std::optional<Allocation> read(const std::string& text, Release release, bool engine) {
  if (!engine) return read_allocation(text, release).allocation;
  AllocationRead one = read_engine(text, release);
  return one.allocation;
}

/// Where part number `index` stands; the parts are in the order of the text from 0.3.2 on.
std::string_view segment(std::string_view text, std::size_t index) {
  int open = 0;
  std::size_t begin = 0, number = 0;
  for (std::size_t i = 0; i <= text.size(); ++i) {
    const char c = i < text.size() ? text[i] : '+';
    open += c == '(' ? 1 : c == ')' ? -1 : 0;
    if (open > 0 || (c != '+' && c != '|')) continue;
    if (number++ == index) return text.substr(begin, i - begin);
    begin = i + 1;
  }
  return {};
}

/// The letters of one part replaced, the text otherwise as it was; "" where there are none to be found.
std::string spliced(const std::string& text, std::size_t index, const Layout& layout) {
  const std::string_view part = segment(text, index);
  if (part.empty() || part.find('(') != std::string_view::npos) return {};
  std::size_t from = part.find_last_of(":.") + 1;  // npos + 1 is 0: no backend is written
  while (from < part.size() && part[from] == ' ') ++from;
  const auto end = part.find_last_not_of(' ') + 1;
  const auto begin = static_cast<std::size_t>(part.data() - text.data());
  return text.substr(0, begin + from) + letters(layout) + text.substr(begin + end);
}

}  // namespace

Relayout with_layout(const std::string& text, Release release, const Part& part, const Layout& layout, bool engine) {
  const auto now = read(text, release, engine);
  const auto why = fmt::format("AReaL {} cannot write the layout {}", name_of(release), letters(layout));
  if (!now) return {{}, why};
  Allocation wanted = *now;
  const auto at = std::find(wanted.parts.begin(), wanted.parts.end(), part);
  if (at == wanted.parts.end()) return {{}, why};
  at->layout = layout;
  const auto index = static_cast<std::size_t>(at - wanted.parts.begin());
  const auto means = [&](const std::string& candidate) {
    const auto got = candidate.empty() ? std::nullopt : read(candidate, release, engine);
    if (!got || got->parts.size() != wanted.parts.size()) return false;
    for (std::size_t i = 0; i < got->parts.size(); ++i)
      if (got->parts[i].layout != wanted.parts[i].layout || got->parts[i].backend != wanted.parts[i].backend ||
          got->parts[i].name != wanted.parts[i].name || got->parts[i].anchor != wanted.parts[i].anchor)
        return false;
    return true;
  };
  if (wanted.era >= Era::ebnf)
    if (const std::string kept = spliced(text, index, layout); means(kept)) return {kept, {}};
  const Grammar* grammar = grammar_of(release, Parser::current);
  const std::string whole = grammar != nullptr ? spelled(wanted, *grammar) : "";
  if (means(whole)) return {whole, {}};
  return {{}, why};
}

}  // namespace oomplan::areal
