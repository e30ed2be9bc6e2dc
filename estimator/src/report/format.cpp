#include "report/format.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

namespace oomplan {
std::string grouped(std::int64_t n) {
  std::string digits = std::to_string(n);
  const std::size_t first = n < 0 ? 1 : 0;
  for (std::size_t i = digits.size(); i > first + 3;) digits.insert(i -= 3, ",");
  return digits;
}

std::string probability_text(double probability) {
  if (probability >= 0.995) return "more than 99 %";
  if (probability < 0.005) return "less than 1 %";
  return fmt::format("{:.0f} %", 100 * probability);
}

std::string short_probability(double probability) {
  if (probability >= 0.995) return ">99 %";
  if (probability < 0.005) return "<1 %";
  return probability_text(probability);
}

std::string percent_text(Bytes part, Bytes whole) {
  if (whole <= 0) return "-";
  const double percent = 100.0 * static_cast<double>(part) / static_cast<double>(whole);
  if (percent >= 10'000) return ">9999 %";
  // Never "100 %" for what does not fit, nor for what does.
  if (part > whole && percent < 100.5) return "101 %";
  if (part < whole && percent >= 99.5) return "99 %";
  if (part > 0 && percent < 0.5) return "<1 %";
  return fmt::format("{:.0f} %", percent);
}

std::size_t columns(std::string_view text) {
  return static_cast<std::size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

std::string clipped(const std::string& text, std::size_t width) {
  if (columns(text) <= width) return text;
  std::size_t at = 0;
  for (std::size_t taken = 0; taken + 2 < width && at < text.size(); ++taken) at += character_at(text, at).size();
  return text.substr(0, at) + "..";
}

namespace {

/// The start of the character in which byte `at` lies.
std::size_t character_start(std::string_view text, std::size_t at) {
  while (at > 0 && at < text.size() && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80) --at;
  return at;
}

}  // namespace

std::string change_text(const std::string& from, const std::string& to, std::size_t width) {
  constexpr std::size_t kAround = 8;
  if (from.empty()) return to;
  if (columns(from) + columns(to) + 4 <= width) return from + " -> " + to;
  std::size_t head = 0, tail = 0;
  const std::size_t least = std::min(from.size(), to.size());
  while (head < least && from[head] == to[head]) ++head;
  while (tail < least - head && from[from.size() - 1 - tail] == to[to.size() - 1 - tail]) ++tail;
  const auto part = [&](const std::string& text) {
    const std::size_t first = character_start(text, head > kAround ? head - kAround : 0);
    const std::size_t last = character_start(text, std::min(text.size(), text.size() - tail + kAround));
    return (first > 0 ? ".." : "") + text.substr(first, last - first) + (last < text.size() ? ".." : "");
  };
  return part(from) + " -> " + part(to);
}

std::string bar(Bytes part, Bytes whole, int width, bool unicode) {
  if (width <= 0) return {};
  const std::size_t cells = static_cast<std::size_t>(width);
  const double share = whole > 0 ? std::max(0.0, static_cast<double>(part) / static_cast<double>(whole)) : 0.0;
  std::string out;
  if (part > whole) {
    for (std::size_t i = 0; i + 1 < cells; ++i) out += unicode ? "█" : "#";
    return out + (unicode ? "▶" : ">");
  }
  if (!unicode) {
    auto full = static_cast<std::size_t>(std::lround(share * static_cast<double>(cells)));
    if (full == 0 && part > 0) full = 1;
    return std::string(full, '#') + std::string(cells - full, '.');
  }
  constexpr std::array<const char*, 8> kEighths{"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
  auto eighths = static_cast<std::size_t>(std::lround(share * static_cast<double>(cells) * 8));
  if (eighths == 0 && part > 0) eighths = 1;
  for (std::size_t i = 0; i < eighths / 8; ++i) out += "█";
  out += kEighths[eighths % 8];
  for (std::size_t i = (eighths + 7) / 8; i < cells; ++i) out += "░";
  return out;
}

std::string wrapped(std::string_view text, std::size_t width, std::size_t indent) {
  std::string out;
  std::size_t line = indent;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find(' ', at), text.size());
    const std::string_view word = text.substr(at, end - at);
    const std::size_t wide = columns(word);
    if (wide > 0) {
      if (!out.empty() && line + 1 + wide > width) {
        out += '\n' + std::string(indent, ' ');
        line = indent;
      } else if (!out.empty()) {
        out += ' ';
        ++line;
      }
      out += word;
      line += wide;
    }
    at = end + 1;
  }
  return out;
}

std::string paint(const std::string& text, Colour colour, bool on) {
  constexpr std::array<const char*, 6> kCodes{"", "\x1b[32m", "\x1b[33m", "\x1b[31m", "\x1b[2m", "\x1b[1m"};
  if (!on || colour == Colour::none || text.empty()) return text;
  return kCodes[static_cast<std::size_t>(colour)] + text + "\x1b[0m";
}

namespace {

std::size_t longest_word(std::string_view text) {
  std::size_t out = 0;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find(' ', at), text.size());
    out = std::max(out, columns(text.substr(at, end - at)));
    at = end + 1;
  }
  return out;
}

}  // namespace

std::string Table::text(std::size_t indent, bool colour, std::size_t width) const {
  constexpr std::size_t kLeastRoom = 24;
  std::vector<std::size_t> widths(aligns_.size(), 0);
  for (const auto& row : rows_)
    for (std::size_t i = 0; i < row.size() && i < widths.size(); ++i) widths[i] = std::max(widths[i], columns(row[i].text));
  const std::size_t last = widths.size() - 1;
  std::size_t start = indent;  // of the last column
  for (std::size_t i = 0; i < last; ++i) start += widths[i] + 2;
  const bool folds = width > 0 && aligns_[last] == Align::left && start + widths[last] > width;
  std::string out;
  for (const auto& row : rows_) {
    std::string line(indent, ' ');
    std::string gap;  // spaces are written before the next cell, so that no line ends in one
    for (std::size_t i = 0; i < row.size() && i < widths.size(); ++i) {
      const std::string pad(widths[i] - columns(row[i].text), ' ');
      const bool empty = row[i].text.empty();
      if (aligns_[i] == Align::right) gap += pad;
      if (!empty && i == last && folds && start + columns(row[i].text) > width) {
        const bool room = start + std::max(kLeastRoom, longest_word(row[i].text)) <= width;
        const std::size_t below = room ? start : indent + 4;
        line += (room ? gap : "\n" + std::string(below, ' ')) + paint(wrapped(row[i].text, width, below), row[i].colour, colour);
        gap.clear();
      } else if (!empty) {
        line += gap + paint(row[i].text, row[i].colour, colour);
        gap.clear();
      }
      if (aligns_[i] == Align::left) gap += pad;
      gap += "  ";
    }
    out += line.find_first_not_of(' ') == std::string::npos ? "\n" : line + "\n";
  }
  return out;
}

}  // namespace oomplan
