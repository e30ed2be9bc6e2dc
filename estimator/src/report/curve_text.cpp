#include "report/curve_text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>

#include "report/format.hpp"

namespace oomplan {
namespace {

constexpr std::size_t kRows = 8;
constexpr std::size_t kAxis = 11;  // "  12.3 GiB "
constexpr std::size_t kEighths = 8;

struct Column {
  Bytes level = 0;
  char letter = ' ';  // of a stretch, under its first column
};

/// Columns of a stretch: two at least, the others by how many levels it has.
std::vector<std::size_t> shares_of(const std::vector<Stretch>& stretches, std::size_t width) {
  std::size_t levels = 0;
  for (const auto& s : stretches) levels += s.levels.size();
  const std::size_t least = 2 * stretches.size() <= width ? 2 : 1;
  const std::size_t left = width > least * stretches.size() ? width - least * stretches.size() : 0;
  std::vector<std::size_t> out;
  for (const auto& s : stretches) out.push_back(least + (levels > 0 ? left * s.levels.size() / levels : 0));
  return out;
}

char letter_of(std::size_t stretch) {
  constexpr std::string_view kLetters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
  return kLetters[stretch % kLetters.size()];
}

std::vector<Column> columns_of(const std::vector<Stretch>& stretches, std::size_t width) {
  const auto shares = shares_of(stretches, width);
  std::vector<Column> out;
  for (std::size_t s = 0; s < stretches.size(); ++s) {
    const auto& levels = stretches[s].levels;
    for (std::size_t i = 0; i < shares[s]; ++i) {
      const std::size_t from = i * levels.size() / shares[s];
      const std::size_t to = std::max(from + 1, (i + 1) * levels.size() / shares[s]);
      Bytes highest = 0;
      for (std::size_t k = from; k < std::min(to, levels.size()); ++k) highest = std::max(highest, levels[k]);
      out.push_back({highest, i == 0 ? letter_of(s) : ' '});
    }
  }
  return out;
}

/// What a column shows in a row that covers the eighths from `above` on.
std::string cell(std::size_t eighths, std::size_t above, bool unicode) {
  constexpr const char* kBlocks[] = {" ", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  const std::size_t filled = eighths <= above ? 0 : std::min(eighths - above, kEighths);
  if (unicode) return kBlocks[filled];
  return filled > kEighths / 2 ? "#" : filled > 0 ? "." : " ";
}

std::string legend(const std::vector<Stretch>& stretches, const TextStyle& style) {
  std::string out;
  for (std::size_t i = 0; i < stretches.size(); ++i)
    out += fmt::format("{}{}={}", i > 0 ? ", " : "", letter_of(i), printable(stretches[i].phase));
  return std::string(kAxis, ' ') + wrapped(out, static_cast<std::size_t>(std::max(40, style.width)) - kAxis, kAxis) + "\n";
}

}  // namespace

std::string curve_text(const std::vector<Stretch>& stretches, Bytes usable, const TextStyle& style) {
  if (stretches.empty()) return {};
  const auto columns = columns_of(stretches, static_cast<std::size_t>(std::max(40, style.width)) - kAxis);
  Bytes top = 1;
  for (const auto& c : columns) top = std::max(top, c.level);
  const auto eighths = [top](Bytes level) {
    return static_cast<std::size_t>(static_cast<double>(level) / static_cast<double>(top) * kRows * kEighths + 0.5);
  };
  std::string out;
  for (std::size_t row = kRows; row-- > 0;) {
    const bool labelled = row + 1 == kRows || row + 1 == kRows / 2;
    const Bytes here = top / static_cast<Bytes>(kRows) * static_cast<Bytes>(row + 1);
    out += fmt::format("{:>{}} ", labelled ? bytes_text(row + 1 == kRows ? top : here) : "", kAxis - 1);
    std::string line;
    for (const auto& c : columns) {
      const std::string shown = cell(eighths(c.level), row * kEighths, style.unicode);
      line += c.level > usable && shown != " " ? paint(shown, Colour::bad, style.colour) : shown;
    }
    out += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  }
  std::string letters(kAxis, ' ');
  for (const auto& c : columns) letters += c.letter;
  return out + letters.substr(0, letters.find_last_not_of(' ') + 1) + "\n" + legend(stretches, style);
}

}  // namespace oomplan
