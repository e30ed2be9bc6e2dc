#include "frontends/launch/braces.hpp"

#include <charconv>
#include <optional>
#include <string_view>

#include <fmt/format.h>

namespace oomplan::launch {
namespace {

constexpr std::int64_t kMostWords = 100'000;

/// A place in a word: a piece, and a byte in it.
struct At {
  std::size_t piece, byte;
};

/// The next plain character at or behind `at` that is one of `wanted`.
std::optional<At> next_plain(const Word& word, At at, std::string_view wanted) {
  for (; at.piece < word.pieces.size(); ++at.piece, at.byte = 0) {
    const Piece& piece = word.pieces[at.piece];
    if (piece.kind != Piece::Kind::plain) continue;
    const std::size_t found = piece.text.find_first_of(wanted, at.byte);
    if (found != std::string::npos) return At{at.piece, found};
  }
  return std::nullopt;
}

/// The pieces of [from, to).
void append(std::vector<Piece>& out, const Word& word, At from, At to) {
  for (std::size_t i = from.piece; i < word.pieces.size() && i <= to.piece; ++i) {
    const Piece& piece = word.pieces[i];
    const std::size_t first = i == from.piece ? from.byte : 0;
    if (piece.kind != Piece::Kind::plain) {
      if (i < to.piece) out.push_back(piece);
      continue;
    }
    const std::size_t last = i == to.piece ? to.byte : piece.text.size();
    if (last <= first) continue;
    Piece part = piece;
    part.text = piece.text.substr(first, last - first);
    out.push_back(std::move(part));
  }
}
Word part(const Word& word, At from, At to) {
  Word out;
  out.line = word.line;
  append(out.pieces, word, from, to);
  return out;
}

std::optional<std::int64_t> number(std::string_view text) {
  std::int64_t out = 0;
  if (text.starts_with('+')) text.remove_prefix(1);
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  if (text.empty() || error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return out;
}

/// {1..8}, {a..e}, {0..64..8}
std::vector<Word> sequence(const std::string& text, int line, Budget& budget) {
  const std::size_t dots = text.find("..");
  if (dots == std::string::npos) return {};
  const std::size_t more = text.find("..", dots + 2);
  const std::string_view all = text;
  const std::string_view first = all.substr(0, dots),
                         last = all.substr(dots + 2, more == std::string::npos ? more : more - dots - 2);
  std::int64_t step = 1;
  if (more != std::string::npos) {
    const auto given = number(all.substr(more + 2));
    if (!given) return {};
    step = *given == 0 || *given == INT64_MIN ? 1 : *given < 0 ? -*given : *given;
  }
  const bool letters = first.size() == 1 && last.size() == 1 && !number(first) && !number(last);
  const auto from = letters ? std::optional<std::int64_t>(first[0]) : number(first);
  const auto to = letters ? std::optional<std::int64_t>(last[0]) : number(last);
  if (!from || !to) return {};
  const auto padded = [](std::string_view n) {
    return n.size() > 1 && (n[0] == '0' || (n[0] == '-' && n.size() > 2 && n[1] == '0'));
  };
  const std::size_t width = !letters && (padded(first) || padded(last)) ? std::max(first.size(), last.size()) : 0;
  const std::uint64_t distance = *from < *to ? static_cast<std::uint64_t>(*to) - static_cast<std::uint64_t>(*from)
                                             : static_cast<std::uint64_t>(*from) - static_cast<std::uint64_t>(*to);
  const std::uint64_t count = distance / static_cast<std::uint64_t>(step);
  if (count > static_cast<std::uint64_t>(kMostWords)) throw TooMuch("a sequence of more than 100000 words");
  budget.spend(static_cast<std::int64_t>(count));
  std::vector<Word> out;
  for (std::uint64_t i = 0; i <= count; ++i) {
    const std::int64_t value =
        *from < *to ? *from + static_cast<std::int64_t>(i) * step : *from - static_cast<std::int64_t>(i) * step;
    Piece piece{letters ? Piece::Kind::quoted : Piece::Kind::plain};
    piece.text = letters ? std::string(1, static_cast<char>(value)) : fmt::format("{:0{}}", value, width);
    out.push_back({{std::move(piece)}, line});
  }
  return out;
}

struct Brace {
  At open, close;
  std::vector<At> commas;
};

/// The brace that opens at `open`; nullopt: it is only a character.
std::optional<Brace> brace_at(const Word& word, At open) {
  Brace out{open, open, {}};
  int nesting = 0;
  for (std::optional<At> at = At{open.piece, open.byte + 1}; (at = next_plain(word, *at, "{},")); ++at->byte) {
    const char c = word.pieces[at->piece].text[at->byte];
    if (c == '{') ++nesting;
    if (c == ',' && nesting == 0) out.commas.push_back(*at);
    if (c == '}' && nesting-- == 0) {
      out.close = *at;
      return out;
    }
  }
  return std::nullopt;
}

void expand(const Word& word, std::vector<Word>& out, Budget& budget, int depth) {
  budget.spend(static_cast<std::int64_t>(word.pieces.size()) + 1);
  if (depth > 50 || static_cast<std::int64_t>(out.size()) > kMostWords) throw TooMuch("braces that make more than 100000 words");
  const At end{word.pieces.size(), 0};
  for (std::optional<At> at = At{0, 0}; (at = next_plain(word, *at, "{")); ++at->byte) {
    const std::optional<Brace> brace = brace_at(word, *at);
    if (!brace) continue;
    std::vector<Word> middles;
    const At inside{at->piece, at->byte + 1};
    if (brace->commas.empty()) {
      if (inside.piece == brace->close.piece)
        middles =
            sequence(word.pieces[inside.piece].text.substr(inside.byte, brace->close.byte - inside.byte), word.line, budget);
      if (middles.empty()) continue;
    } else {
      At from = inside;
      for (const At& comma : brace->commas) {
        middles.push_back(part(word, from, comma));
        from = {comma.piece, comma.byte + 1};
      }
      middles.push_back(part(word, from, brace->close));
    }
    std::vector<Word> backs;
    expand(part(word, {brace->close.piece, brace->close.byte + 1}, end), backs, budget, depth + 1);
    for (const Word& middle : middles) {
      std::vector<Word> inner;
      expand(middle, inner, budget, depth + 1);
      for (const Word& m : inner)
        for (const Word& back : backs) {
          Word made = part(word, {0, 0}, *at);
          made.pieces.insert(made.pieces.end(), m.pieces.begin(), m.pieces.end());
          made.pieces.insert(made.pieces.end(), back.pieces.begin(), back.pieces.end());
          budget.spend(static_cast<std::int64_t>(made.pieces.size()));
          out.push_back(std::move(made));
          if (static_cast<std::int64_t>(out.size()) > kMostWords) throw TooMuch("braces that make more than 100000 words");
        }
    }
    return;
  }
  out.push_back(word);
}

}  // namespace

std::vector<Word> without_braces(const Word& word, Budget& budget) {
  std::vector<Word> out;
  expand(word, out, budget, 0);
  return out;
}

}  // namespace oomplan::launch
