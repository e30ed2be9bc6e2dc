#include "catalog/engine_releases.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <set>

#include <fmt/format.h>

namespace oomplan {
namespace {

// PyPI, November 2026. Releases with .postN count as those without.
constexpr std::string_view kVllmReleases =
    " 0.5.0 0.5.1 0.5.2 0.5.3 0.5.4 0.5.5 0.6.0 0.6.1 0.6.2 0.6.3 0.6.4 0.6.5 0.6.6 0.7.0 0.7.1 0.7.2 0.7.3 0.8.0 0.8.1 0.8.2 "
    "0.8.3 "
    "0.8.4 0.8.5 0.9.0 0.9.0.1 0.9.1 0.9.2 0.10.0 0.10.1 0.10.1.1 0.10.2 0.11.0 0.11.1 0.11.2 0.12.0 0.13.0 0.14.0 0.14.1 0.15.0 "
    "0.15.1 0.16.0 0.17.0 0.17.1 0.18.0 0.18.1 0.19.0 0.19.1 0.20.0 0.20.1 0.20.2 0.21.0 0.22.0 0.22.1 0.23.0 0.24.0 0.25.0 "
    "0.25.1 "
    "0.26.0 0.27.0 0.27.1 0.28.0 0.29.0 0.30.0 0.31.0 0.32.0 0.33.0 ";
constexpr std::string_view kSglangReleases =
    " 0.4.1 0.4.2 0.4.3 0.4.4 0.4.5 0.4.6 0.4.7 0.4.8 0.4.9 0.4.10 0.5.1 0.5.2 0.5.3 0.5.4 0.5.5 0.5.6 0.5.7 0.5.8 0.5.9 0.5.10 "
    "0.5.11 "
    "0.5.12 0.5.13 0.5.14 0.5.15 0.5.16 0.5.17 0.5.18 0.5.19 0.5.20 0.5.21 0.5.22 0.5.23 ";

std::string_view releases(std::string_view engine) {
  return engine == "vllm" ? kVllmReleases : engine == "sglang" ? kSglangReleases : std::string_view();
}

/// Does one row say how the cache's memory follows from the card's in this version?
bool described(const Facts& facts, std::string_view engine, std::string_view version) {
  return std::any_of(facts.rows().begin(), facts.rows().end(), [&](const Fact& row) {
    return row.engine == engine && row.fact == "budget_rule" && version_matches(version, row.versions);
  });
}

}  // namespace

AskedVersion asked_version(std::string_view text) {
  AskedVersion out;
  std::string word;
  for (const char c : text) word += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  for (const std::string_view before : {"vllm", "sglang"})
    if (word.starts_with(before)) word.erase(0, before.size());
  word.erase(0, std::min(word.find_first_not_of(" ="), word.size()));
  constexpr std::array<std::string_view, 6> kNames{"nightly", "latest", "newest", "main", "master", "dev"};
  if (std::find(kNames.begin(), kNames.end(), word) != kNames.end()) {
    out.name = out.valid = true;
    return out;
  }
  if (word.starts_with('v')) word.erase(0, 1);
  word = word.substr(0, word.find('+'));  // of a local build
  const auto end = std::min(word.find_first_not_of("0123456789."), word.size());
  out.numbers = word.substr(0, end);
  std::string rest = word.substr(end);
  while (out.numbers.ends_with('.')) out.numbers.pop_back();
  if (out.numbers.empty() || out.numbers.find("..") != std::string::npos || out.numbers.front() == '.') return out;
  while (!rest.empty() && (rest.back() == '.' || std::isdigit(static_cast<unsigned char>(rest.back())) != 0)) rest.pop_back();
  constexpr std::array<std::string_view, 6> kBefore{"rc", "a", "b", "dev", ".dev", "rc.dev"};
  const bool several = rest.starts_with("rc") && rest.ends_with("dev");  // 0.15.2rc1.dev93
  out.before_release = several || std::find(kBefore.begin(), kBefore.end(), rest) != kBefore.end();
  out.valid = rest.empty() || rest == "post" || out.before_release || rest.starts_with("post");
  return out;
}

std::vector<std::string> known_releases(const Facts& facts, std::string_view engine) {
  const auto older = [](const std::string& a, const std::string& b) { return compare_versions(a, b) < 0; };
  std::set<std::string, decltype(older)> out(older);
  const std::string_view all = releases(engine);
  for (std::size_t from = 1; from < all.size();) {
    const std::size_t end = all.find(' ', from);
    const std::string one(all.substr(from, end - from));
    if (described(facts, engine, one)) out.insert(one);
    from = end + 1;
  }
  for (const std::string& named : facts.known_versions(engine))
    if (described(facts, engine, named)) out.insert(named);
  return {out.begin(), out.end()};
}

AnsweringVersion answering_version(const Facts& facts, std::string_view engine, std::string_view text) {
  const std::string plain = " " + std::string(text);  // nearly always a release, as it is called
  const std::string_view all = releases(engine);
  if ((all.find(plain + " ") != std::string_view::npos || all.find(plain + ".0 ") != std::string_view::npos) &&
      described(facts, engine, text))
    return {std::string(text), {}};
  const AskedVersion asked = asked_version(text);
  if (!asked.valid) return {};
  const auto known = known_releases(facts, engine);
  if (known.empty()) return {asked.numbers, {}};
  if (asked.name)
    return {known.back(),
            fmt::format("{} '{}' is no release: answered as {}, the newest that is known", engine, text, known.back())};
  std::string nearest;
  for (const std::string& one : known) {
    const int order = compare_versions(one, asked.numbers);
    if (order == 0 && !asked.before_release) return {asked.numbers, {}};
    if (order < 0) nearest = one;
  }
  if (nearest.empty()) return {};
  const bool newer = compare_versions(asked.numbers, known.back()) > 0;
  const std::string_view shown =
      text.substr(text.starts_with(engine) ? std::min(text.find_first_of("0123456789"), text.size()) : 0);
  return {nearest, fmt::format("{} {} has not been read: answered as {}, the {} that is known", engine, shown, nearest,
                               newer ? "newest" : "nearest older one")};
}

}  // namespace oomplan
