// AReaL's releases in order: its grammar and its configuration are known per release.
#pragma once
#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace oomplan::areal {

/// A release by its position, oldest first, so that ranges of releases are comparisons.
struct Release {
  std::uint8_t index = 0;
  auto operator<=>(const Release&) const = default;
};

/// How many releases are known: 0.1.1 to 2.0.0 and "2.0.0+", the development after 2.0.0 (read at commit cbff54d64).
extern const std::uint8_t kReleaseCount;
Release newest_release();
/// "0.3.0-lite", "1.0.4", "2.0.0+".
std::string_view name_of(Release);
/// The release whose name this is. Throws Defect for any other text: it is for our own tables.
Release release_named(std::string_view name);

/// What a user may write: "1.0.4", "v1.0.4", "1.0" (1.0.0), "main" (the newest), or a version in between, which counts as the
/// release before it. Nothing for a version before 0.1.1 or behind the newest release, and for what is no version.
std::optional<Release> find_release(std::string_view version);
/// "0.1.1, 0.1.2, ... 2.0.0+", and what the last is, for messages.
std::string releases_text();

/// Is `version` the release's own name, and not that of a release behind it?
bool names(std::string_view version, Release);

struct ReleaseRange {
  Release first, last;
};
/// "0.3.2 to 1.0.2", "1.0.3 and later", "0.3.1": a range in words.
std::string range_text(Release first, Release last);

}  // namespace oomplan::areal
