#include "catalog/facts.hpp"

#include <algorithm>
#include <charconv>
#include <optional>
#include <set>

#include <fmt/format.h>
#include <oomplan/units/errors.hpp>

#include "catalog/engine_releases.hpp"

namespace oomplan {
namespace {

/// The numbers that a version opens with: "0.5.10.post1" gives 0, 5, 10. A number that is too long counts as the largest.
std::vector<std::int64_t> version_numbers(std::string_view text) {
  std::vector<std::int64_t> out;
  if (!text.empty() && (text[0] == 'v' || text[0] == 'V')) text.remove_prefix(1);
  while (!text.empty()) {
    std::int64_t number = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (error == std::errc::invalid_argument || number < 0) break;
    out.push_back(error == std::errc{} ? number : INT64_MAX);
    text.remove_prefix(static_cast<std::size_t>(end - text.data()));
    if (text.empty() || text[0] != '.') break;
    text.remove_prefix(1);
  }
  return out;
}

struct Comparison {
  std::string_view op, bound;
};

constexpr std::string_view kOperators[] = {"<=", ">=", "==", "!=", "<", ">"};

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  return text;
}

/// ">=2,<8" as comparisons; a piece without an operator is an equality.
std::vector<Comparison> comparisons(std::string_view text) {
  std::vector<Comparison> out;
  while (true) {
    const std::size_t comma = text.find(',');
    const std::string_view piece = trimmed(text.substr(0, comma));
    Comparison one{"==", piece};
    for (const std::string_view op : kOperators) {
      if (!piece.starts_with(op)) continue;
      one = {op, trimmed(piece.substr(op.size()))};
      break;
    }
    out.push_back(one);
    if (comma == std::string_view::npos) return out;
    text.remove_prefix(comma + 1);
  }
}

bool holds(int order, std::string_view op) {
  if (op == "<") return order < 0;
  if (op == "<=") return order <= 0;
  if (op == ">") return order > 0;
  if (op == ">=") return order >= 0;
  if (op == "!=") return order != 0;
  return order == 0;
}

std::optional<double> number_in(std::string_view text) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return number;
}

bool version_like(std::string_view text) {
  return std::count(text.begin(), text.end(), '.') >= 2 && version_numbers(text).size() >= 2;
}

bool condition_holds(std::string_view value, const Comparison& wanted) {
  if (version_like(value) || version_like(wanted.bound)) return holds(compare_versions(value, wanted.bound), wanted.op);
  const auto left = number_in(value), right = number_in(wanted.bound);
  if (left && right) return holds(*left < *right ? -1 : (*left > *right ? 1 : 0), wanted.op);
  if (wanted.op == "!=") return value != wanted.bound;
  return wanted.op == "==" && value == wanted.bound;
}

bool matches(const Fact& row, const FactQuery& query) {
  if (!version_matches(query.version, row.versions)) return false;
  if (!row.gpus.empty() && std::find(row.gpus.begin(), row.gpus.end(), query.sm) == row.gpus.end()) return false;
  for (const auto& [key, condition] : row.when) {
    const auto given = query.conditions.find(key);
    if (given == query.conditions.end()) return false;
    for (const Comparison& one : comparisons(condition))
      if (!condition_holds(given->second, one)) return false;
  }
  return true;
}

std::string described(std::string_view engine, std::string_view fact, const FactQuery& query) {
  std::string out = fmt::format("{} of {}{}{}", fact, engine, query.version.empty() ? "" : " ", query.version);
  if (!query.sm.empty()) out += " on " + query.sm;
  const char* separator = " with ";
  for (const auto& [key, value] : query.conditions) {
    out += fmt::format("{}{}={}", separator, key, value);
    separator = ", ";
  }
  return out;
}

[[noreturn]] void no_row(const Facts& facts, std::string_view engine, std::string_view fact, const FactQuery& query) {
  std::vector<std::string> engines, names;
  for (const Fact& row : facts.rows()) {
    engines.push_back(row.engine);
    if (row.engine == engine) names.push_back(row.fact);
  }
  Problem problem{{"models/engines", 0, 0, ""}, "no value for " + described(engine, fact, query), "", "", ""};
  if (names.empty()) {
    problem.nearest = nearest(engine, engines);
    problem.why = "the engine is not known";
  } else if (std::find(names.begin(), names.end(), fact) == names.end()) {
    problem.nearest = nearest(fact, names);
    problem.why = "the fact is not known";
  } else {
    const auto versions = facts.known_versions(engine);
    if (!versions.empty()) problem.why = "known versions: " + list_of(versions);
  }
  throw InputError(std::move(problem));
}

}  // namespace

int compare_versions(std::string_view a, std::string_view b) {
  auto left = version_numbers(a), right = version_numbers(b);
  const std::size_t length = std::max(left.size(), right.size());
  left.resize(length, 0);
  right.resize(length, 0);
  return left < right ? -1 : (right < left ? 1 : 0);
}

bool is_version_range(std::string_view text) {
  if (text.empty()) return true;
  const auto all = comparisons(text);
  return std::all_of(all.begin(), all.end(), [](const Comparison& one) { return !version_numbers(one.bound).empty(); });
}

bool is_condition(std::string_view text) {
  const auto all = comparisons(text);
  return std::all_of(all.begin(), all.end(), [](const Comparison& one) {
    const bool ordered = one.op != "==" && one.op != "!=";
    return !one.bound.empty() && (!ordered || number_in(one.bound) || !version_numbers(one.bound).empty());
  });
}

bool version_matches(std::string_view version, std::string_view range) {
  if (range.empty()) return true;
  if (version_numbers(version).empty()) return false;
  const auto all = comparisons(range);
  return std::all_of(all.begin(), all.end(),
                     [&](const Comparison& one) { return holds(compare_versions(version, one.bound), one.op); });
}

const Fact& Facts::find(std::string_view engine, std::string_view fact, const FactQuery& query) const {
  const Fact* found = nullptr;
  for (const Fact& row : rows_) {
    if (row.engine != engine || row.fact != fact || !matches(row, query)) continue;
    if (found != nullptr) throw Defect("two values for " + described(engine, fact, query));
    found = &row;
  }
  if (found == nullptr) no_row(*this, engine, fact, query);
  return *found;
}

std::vector<std::string> Facts::known_versions(std::string_view engine) const {
  const auto older = [](const std::string& a, const std::string& b) { return compare_versions(a, b) < 0; };
  std::set<std::string, decltype(older)> out(older);
  for (const Fact& row : rows_) {
    if (row.engine != engine || row.versions.empty()) continue;
    for (const Comparison& one : comparisons(row.versions))
      if (one.op != "<" && one.op != ">" && one.op != "!=") out.emplace(one.bound);
  }
  return {out.begin(), out.end()};
}

std::string Facts::answering(std::string_view engine, std::string_view version) const {
  return answering_version(*this, engine, version).version;
}

}  // namespace oomplan
