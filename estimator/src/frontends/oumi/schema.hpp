// What Oumi's configurations look like in a release: classes, fields, types, defaults (models/frameworks/oumi.json, written by
// oumi_schema.py beside it from the framework's dataclasses).
#pragma once
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "frontends/structured/classes.hpp"
#include "frontends/structured/released.hpp"

namespace oomplan::oumi {

/// A release by its position, oldest first.
struct Release {
  std::size_t index = 0;
  auto operator<=>(const Release&) const = default;
};
Release newest_release();
/// "0.8"; "0.8+" is the development after it (d8ed0777).
const std::string& name_of(Release);
/// A release's own name, "main" (the newest), or a version in between, which counts as the release before it. Nothing for others.
std::optional<Release> find_release(std::string_view version);
/// "0.1.3, 0.1.9, ... and 0.8+", for messages.
std::string releases_text();

/// The view of one release.
class Classes final : public structured::Classes {
 public:
  explicit Classes(Release);
  bool has_class(std::string_view name) const override { return view_.has_class(name); }
  std::vector<const structured::Field*> fields(std::string_view name) const override { return view_.fields(name); }
  Origin origin_of(const structured::Field&) const override;
  std::string reader() const override;  ///< "Oumi 0.8"
  structured::Unknown unknown(std::string_view root, std::string_view path) const override;

 private:
  Release release_;
  structured::View view_;
};

}  // namespace oomplan::oumi
