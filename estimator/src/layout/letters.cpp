#include "layout/letters.hpp"

#include <fmt/format.h>

#include "layout/dims.hpp"

namespace oomplan {
namespace {

constexpr std::string_view kExpected = "letters with degrees, such as d4, d2t4 or attn:d2p2t2c2|ffn:d2p2t2e2";

LettersRead refuse(std::string why, std::string nearest = {}) {
  return {std::nullopt, std::string(kExpected), std::move(nearest), std::move(why)};
}

std::string lower(std::string_view text) {
  std::string out;
  for (const char c : text) out += c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return out;
}

/// "d2p2t2" with only the letters of `allowed`.
Dims take_dims(std::string_view s, std::string_view allowed, std::string_view where) {
  Dims out;
  if (s.empty()) out.why = fmt::format("no letter stands {}", where.empty() ? "in it" : where);
  while (!s.empty() && out.why.empty()) {
    const char letter = s[0];
    s.remove_prefix(1);
    std::int64_t degree = 0;
    if (allowed.find(letter) == std::string_view::npos) {
      out.why = meaning_of_letter(letter);
      if (out.why.empty()) out.why = fmt::format("'{}' is not one of the letters {}", letter, fmt::join(allowed, ", "));
      if (!where.empty()) out.why += fmt::format(" {}", where);
    } else if (out.degree.contains(letter)) {
      out.why = fmt::format("the letter '{}' stands twice", letter);
    } else {
      out.why = take_degree(s, letter, degree);
      out.degree[letter] = degree;
    }
  }
  return out;
}

LettersRead from(Folded folded) {
  if (!folded.why.empty()) return refuse(std::move(folded.why));
  return {folded.layout, {}, {}, {}};
}

/// `attn:` gives d, t, p, c; `ffn:` gives e and the expert tensor degree, and must fill the same GPUs.
LettersRead from_hybrid(std::string_view attn, std::string_view ffn) {
  const Dims a = take_dims(attn, "cdtp", "behind attn:");
  if (!a.why.empty()) return refuse(a.why);
  const Dims f = take_dims(ffn, "detp", "behind ffn:");
  if (!f.why.empty()) return refuse(f.why);
  return from(fold(a, f, ExpertDefault::derived));
}

}  // namespace

LettersRead read_letters(std::string_view text) {
  std::string packed;
  for (const char c : text)
    if (c != ' ' && c != '\t') packed += c;
  std::string_view s = packed;
  if (s.starts_with('(') && s.ends_with(')')) s = s.substr(1, s.size() - 2);
  if (s.starts_with("attn:")) {
    const auto bar = s.find("|ffn:");
    if (bar == std::string_view::npos) return refuse("'attn:' needs '|ffn:' behind it");
    return from_hybrid(s.substr(5, bar - 5), s.substr(bar + 5));
  }
  if (const auto colon = s.find(':'); colon != std::string_view::npos)
    return refuse("the engine is written at 'engine', the layout has only letters", std::string(s.substr(colon + 1)));
  if (s.find('+') != std::string_view::npos) return refuse("one role has one layout: GPUs are added up over the roles");
  const Dims dims = take_dims(s, "dtpce", {});
  if (!dims.why.empty()) return refuse(dims.why, lower(s) != s && take_dims(lower(s), "dtpce", {}).why.empty() ? lower(s) : "");
  return from(fold(dims));
}

std::string letters(const Layout& l) {
  std::string out;
  const auto add = [&out](char letter, std::int64_t degree) {
    if (degree > 1) out += fmt::format("{}{}", letter, degree);
  };
  add('d', l.data);
  add('p', l.pipeline);
  add('t', l.tensor);
  add('c', l.context);
  if (!l.hybrid) {
    add('e', l.expert);
    return out.empty() ? "d1" : out;
  }
  out = "attn:" + (out.empty() ? std::string("d1") : out) + "|ffn:";
  add('t', l.expert_tensor);
  out += fmt::format("e{}", l.expert);
  return out;
}

}  // namespace oomplan
