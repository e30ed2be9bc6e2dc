#include "frontends/areal/allocation.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "frontends/areal/grammars.hpp"
#include "units/utf8.hpp"

namespace oomplan::areal {
namespace {

Problem problem_of(std::string_view text, std::string_view expected, std::string why, std::string nearest = {}) {
  return {{}, fmt::format("'{}'", shortened(text, 200)), std::string(expected), std::move(nearest), std::move(why)};
}

/// Do two readings put the same layouts on the same GPUs? Backends may differ: realhf's trainer has no other name.
bool same_layouts(const Allocation& a, const Allocation& b) {
  return std::equal(a.parts.begin(), a.parts.end(), b.parts.begin(), b.parts.end(), [](const Part& x, const Part& y) {
    Layout left = x.layout, right = y.layout;
    left.hybrid = right.hybrid = false;
    return x.kind == y.kind && x.anchor == y.anchor && left == right && x.expert_data == y.expert_data;
  });
}

/// The text in `grammar` of what the newest grammar that takes it reads.
std::string respelled(std::string_view text, const Grammar& grammar) {
  const auto& rows = grammars();
  for (auto row = rows.rbegin(); row != rows.rend(); ++row) {
    const Parsed read = parse(text, *row);
    if (!read.allocation || !read.allocation->ignored.empty()) continue;
    const std::string out = spelled(*read.allocation, grammar);
    const Parsed again = out.empty() ? Parsed{} : parse(out, grammar);
    if (again.allocation && same_layouts(*read.allocation, *again.allocation)) return out;
  }
  return {};
}

struct Ranges {
  std::string accepted, refused;
  std::string why;  ///< of the newest refusal
};

Ranges ranges_of(const std::vector<Acceptance>& all) {
  Ranges out;
  for (std::size_t i = 0; i < all.size();) {
    std::size_t end = i;
    while (end + 1 < all.size() && all[end + 1].accepted == all[i].accepted) ++end;
    std::string& to = all[i].accepted ? out.accepted : out.refused;
    to += (to.empty() ? "" : ", ") + range_text(all[i].first, all[end].last);
    if (!all[end].accepted) out.why = all[end].why;
    i = end + 1;
  }
  return out;
}

}  // namespace

std::int64_t Allocation::gpus() const {
  std::int64_t out = 0;
  for (const Part& part : parts)
    if (!part.anchor && part.kind != PartKind::evaluation) out += part.layout.world();
  return out;
}

AllocationRead read_allocation(std::string_view text, Release release, Parser parser) {
  const Grammar* grammar = grammar_of(release, parser);
  if (grammar == nullptr)
    return {std::nullopt, problem_of(text, parser == Parser::legacy ? "AReaL 0.1.1 to 0.5.1" : "AReaL 0.3.1",
                                     fmt::format("AReaL {} has no such trainer", name_of(release)))};
  Parsed read = parse(text, *grammar);
  if (read.allocation) return {std::move(read.allocation), {}};
  const std::string accepted = ranges_of(acceptance(text)).accepted;
  if (!accepted.empty())
    read.why += fmt::format("; AReaL {} accept{} it", accepted, accepted.find_first_of(" ,") == std::string::npos ? "s" : "");
  if (read.nearest.empty()) read.nearest = respelled(text, *grammar);
  return {std::nullopt, problem_of(text, grammar->example, std::move(read.why), std::move(read.nearest))};
}

AllocationRead read_engine(std::string_view text, Release release) {
  constexpr std::string_view kExpected = "one part, such as fsdp:d4 or sglang:d4t2";
  if (release < release_named("1.0.3"))
    return {std::nullopt, problem_of(text, "allocation_mode", "strings for each engine exist from AReaL 1.0.3 on")};
  if (text.find('+') != std::string_view::npos)
    return {std::nullopt, problem_of(text, kExpected, "one engine's string holds one part: '+' is not allowed")};
  AllocationRead out = read_allocation(text, release);
  if (!out) out.problem.expected = kExpected;
  if (out && out.allocation->parts.size() != 1)
    return {std::nullopt,
            problem_of(text, kExpected, fmt::format("one engine's string holds one part, not {}", out.allocation->parts.size()))};
  return out;
}

Allocation allocation_of(std::string_view text, Release release, const Place& place, Parser parser) {
  AllocationRead read = read_allocation(text, release, parser);
  if (read) return std::move(*read.allocation);
  read.problem.place = place;
  throw InputError(std::move(read.problem));
}

Part engine_part_of(std::string_view text, Release release, const Place& place) {
  AllocationRead read = read_engine(text, release);
  if (read) return std::move(read.allocation->parts.front());
  read.problem.place = place;
  throw InputError(std::move(read.problem));
}

std::vector<Acceptance> acceptance(std::string_view text) {
  std::vector<Acceptance> out;
  std::optional<Allocation> before;
  for (const Grammar& grammar : grammars()) {
    if (grammar.parser != Parser::current) continue;
    Parsed read = parse(text, grammar);
    const Release first = release_named(grammar.first), last = release_named(grammar.last);
    if (!out.empty() && out.back().accepted == read.allocation.has_value() && out.back().why == read.why &&
        before == read.allocation) {
      out.back().last = last;
      continue;
    }
    out.push_back(
        {first, last, read.allocation.has_value(), read.why, read.allocation ? read.allocation->ignored : std::string{}});
    before = std::move(read.allocation);
  }
  return out;
}

std::string acceptance_text(std::string_view text) {
  const auto all = acceptance(text);
  const Ranges ranges = ranges_of(all);
  if (ranges.accepted.empty()) return fmt::format("accepted by no release: {}", ranges.why);
  std::string out = "accepted by " + ranges.accepted;
  if (!ranges.refused.empty()) out += fmt::format("; refused by {}: {}", ranges.refused, ranges.why);
  for (const Acceptance& one : all)
    if (!one.ignored.empty()) out += fmt::format("; {} reads over '{}'", range_text(one.first, one.last), one.ignored);
  return out;
}

}  // namespace oomplan::areal
