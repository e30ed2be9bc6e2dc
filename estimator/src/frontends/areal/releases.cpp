#include "frontends/areal/releases.hpp"

#include <algorithm>
#include <array>
#include <vector>

#include <fmt/format.h>
#include <oomplan/units/errors.hpp>

#include "catalog/facts.hpp"
#include "units/enums.hpp"

namespace oomplan::areal {
namespace {

/// Tags of github.com/areal-project/AReaL, oldest first, by date.
constexpr std::array<std::string_view, 27> kTags{"0.1.1",
                                                 "0.1.2",
                                                 "0.2.0",
                                                 "0.3.0",
                                                 "0.3.0-lite",
                                                 "0.3.0-lite.post1",
                                                 "0.3.0-lite.post2",
                                                 "0.3.1",
                                                 "0.3.2",
                                                 "0.3.3",
                                                 "0.3.4",
                                                 "0.3.4.post1",
                                                 "0.4.0",
                                                 "0.4.1",
                                                 "0.5.0",
                                                 "0.5.1",
                                                 "0.5.2",
                                                 "0.5.3",
                                                 "1.0.0.rc1",
                                                 "1.0.0",
                                                 "1.0.0.post1",
                                                 "1.0.1",
                                                 "1.0.2",
                                                 "1.0.3",
                                                 "1.0.4",
                                                 "2.0.0",
                                                 "2.0.0+"};

Release at(std::size_t index) { return {static_cast<std::uint8_t>(index)}; }

bool starts_as_version(std::string_view text) { return !text.empty() && text[0] >= '0' && text[0] <= '9'; }

/// "1.0" and "2" name what "1.0.0" and "2.0.0" name.
std::string with_three_numbers(std::string_view text) {
  std::string out(text);
  if (out.find_first_not_of("0123456789.") != std::string::npos) return out;
  for (auto dots = std::count(out.begin(), out.end(), '.'); dots < 2; ++dots) out += ".0";
  return out;
}

}  // namespace

const std::uint8_t kReleaseCount = kTags.size();

Release newest_release() { return at(kTags.size() - 1); }

std::string_view name_of(Release release) { return kTags.at(release.index); }

Release release_named(std::string_view name) {
  const auto found = std::find(kTags.begin(), kTags.end(), name);
  if (found == kTags.end()) throw Defect(fmt::format("no release of AReaL is called '{}'", name));
  return at(static_cast<std::size_t>(found - kTags.begin()));
}

std::optional<Release> find_release(std::string_view version) {
  if (version == "main" || version == "latest") return newest_release();
  if (version.starts_with('v') || version.starts_with('V')) version.remove_prefix(1);
  if (version.size() > 40 || !starts_as_version(version)) return std::nullopt;
  const std::string wanted = with_three_numbers(version);
  if (const auto found = std::find(kTags.begin(), kTags.end(), wanted); found != kTags.end())
    return at(static_cast<std::size_t>(found - kTags.begin()));
  if (compare_versions(wanted, kTags[kTags.size() - 2]) > 0) return std::nullopt;  // the last is no tag
  for (std::size_t i = kTags.size(); i-- > 0;)
    if (compare_versions(kTags[i], wanted) <= 0) return at(i);
  return std::nullopt;
}

bool names(std::string_view version, Release release) {
  if (version == "main" || version == "latest") return true;
  if (version.starts_with('v') || version.starts_with('V')) version.remove_prefix(1);
  return with_three_numbers(version) == name_of(release);
}

std::string releases_text() {
  return fmt::format("{}; 2.0.0 is the newest release known, and 2.0.0+ the development behind it, of August 2026 (cbff54d64)",
                     fmt::join(kTags, ", "));
}

std::string range_text(Release first, Release last) {
  if (last == newest_release()) return first == last ? std::string(name_of(first)) : fmt::format("{} and later", name_of(first));
  if (first == last) return std::string(name_of(first));
  return fmt::format("{} to {}", name_of(first), name_of(last));
}

}  // namespace oomplan::areal
