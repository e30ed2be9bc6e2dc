#include "layout/letters.hpp"

#include <array>
#include <map>

#include <fmt/format.h>

namespace oomplan {
namespace {

constexpr std::string_view kExpected = "letters with degrees, such as d4, d2t4 or attn:d2p2t2c2|ffn:d2p2t2e2";

/// Degrees by letter, and the first thing that is wrong.
struct Dims {
  std::map<char, std::int64_t> degree;
  std::string why;
  std::string nearest;
  std::int64_t of(char letter, std::int64_t otherwise = 1) const {
    const auto it = degree.find(letter);
    return it == degree.end() ? otherwise : it->second;
  }
};

LettersRead refuse(std::string why, std::string nearest = {}) {
  return {std::nullopt, std::string(kExpected), std::move(nearest), std::move(why)};
}

std::string_view meaning(char letter) {
  switch (letter) {
    case 'm':
      return "'m' was the tensor degree before AReaL 0.3.1: write t";
    case 's':
      return "there is no letter for sequence parallelism: it follows t, and Ulysses is c";
    case 'r':
      return "replicas of a server are d";
    default:
      return {};
  }
}

std::string lower(std::string_view text) {
  std::string out;
  for (const char c : text) out += c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return out;
}

/// One degree at the front of `s`: digits without a leading zero.
std::string take_degree(std::string_view& s, char letter, std::int64_t& out) {
  std::size_t n = 0;
  while (n < s.size() && s[n] >= '0' && s[n] <= '9') ++n;
  if (n == 0) return fmt::format("no number stands behind '{}'", letter);
  if (s[0] == '0')
    return n == 1 ? fmt::format("a degree is at least 1: '{}0'", letter) : fmt::format("leading zero behind '{}'", letter);
  if (n > 6) return fmt::format("the degree of '{}' is above {}", letter, kMostDegree);
  for (std::size_t i = 0; i < n; ++i) out = out * 10 + (s[i] - '0');
  if (out > kMostDegree) return fmt::format("the degree of '{}' is above {}", letter, kMostDegree);
  s.remove_prefix(n);
  return {};
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
      out.why = meaning(letter);
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

LettersRead from_dims(const Dims& d) {
  Layout out;
  out.data = d.of('d');
  out.tensor = d.of('t');
  out.pipeline = d.of('p');
  out.context = d.of('c');
  out.expert = d.of('e');
  return {out, {}, {}, {}};
}

/// `attn:` gives d, t, p, c; `ffn:` gives e and the expert tensor degree, and must fill the same GPUs.
LettersRead from_hybrid(std::string_view attn, std::string_view ffn) {
  const Dims a = take_dims(attn, "cdtp", "behind attn:");
  if (!a.why.empty()) return refuse(a.why);
  const Dims f = take_dims(ffn, "detp", "behind ffn:");
  if (!f.why.empty()) return refuse(f.why);
  LettersRead out = from_dims(a);
  Layout& layout = *out.layout;
  layout.hybrid = true;
  layout.expert = f.of('e');
  layout.expert_tensor = f.of('t');
  if (f.of('p', layout.pipeline) != layout.pipeline)
    return refuse(fmt::format("the pipeline degrees differ: p{} behind attn:, p{} behind ffn:", layout.pipeline, f.of('p')));
  const std::int64_t ranks = layout.expert * layout.expert_tensor * layout.pipeline;
  if (layout.world() % ranks != 0)
    return refuse(fmt::format("the expert data degree cannot be derived: {} GPUs of attn: are not a multiple of e*t*p = {}",
                              layout.world(), ranks));
  if (f.of('d', layout.world() / ranks) != layout.world() / ranks)
    return refuse(fmt::format("attn: takes {} GPUs, ffn: {}", layout.world(), f.of('d') * ranks));
  return out;
}

LettersRead check_size(LettersRead read) {
  if (!read) return read;
  const Layout& l = *read.layout;
  const double world = static_cast<double>(l.data) * static_cast<double>(l.tensor) * static_cast<double>(l.pipeline) *
                       static_cast<double>(l.context);
  if (world > static_cast<double>(kMostDegree)) return refuse(fmt::format("it takes more than {} GPUs", kMostDegree));
  const std::int64_t expert_ranks = l.pipeline * l.expert_tensor * l.expert;
  if (!l.hybrid && l.expert > 1 && l.world() % expert_ranks != 0)
    return refuse(fmt::format("{} GPUs are not a multiple of p*e = {}", l.world(), expert_ranks));
  return read;
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
    const std::string_view attn = s.substr(5, bar - 5), ffn = s.substr(bar + 5);
    const Dims a = take_dims(attn, "cdtp", {});
    if (a.why.empty()) {  // degrees are bounded one by one; their product is, before anything is multiplied
      auto sized = check_size(from_dims(a));
      if (!sized) return sized;
    }
    return from_hybrid(attn, ffn);
  }
  if (const auto colon = s.find(':'); colon != std::string_view::npos)
    return refuse("the engine is written at 'engine', the layout has only letters", std::string(s.substr(colon + 1)));
  if (s.find('+') != std::string_view::npos) return refuse("one role has one layout: GPUs are added up over the roles");
  const Dims dims = take_dims(s, "dtpce", {});
  if (!dims.why.empty()) return refuse(dims.why, lower(s) != s && take_dims(lower(s), "dtpce", {}).why.empty() ? lower(s) : "");
  return check_size(from_dims(dims));
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
