#include "frontends/oumi/schema.hpp"

#include <algorithm>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <oomplan/units/errors.hpp>

#include "catalog/embedded.hpp"
#include "catalog/facts.hpp"
#include "units/enums.hpp"

namespace oomplan::oumi {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kDevelopment = "+";  // behind the last release's name

struct Data {
  std::vector<std::string> releases;
  structured::ReleasedClasses classes;
};

Data read() {
  const Json json = Json::parse(embedded_text("frameworks/oumi.json"));
  Data out;
  out.releases = json.at("releases").get<std::vector<std::string>>();
  const auto position = [&](const std::string& name) {
    const auto found = std::find(out.releases.begin(), out.releases.end(), name);
    if (found == out.releases.end()) throw Defect(fmt::format("models/frameworks/oumi.json: the release '{}'", name));
    return static_cast<std::size_t>(found - out.releases.begin());
  };
  out.classes = structured::read_classes(json.at("classes"), position, out.releases.size() - 1);
  return out;
}

const Data& data() {
  static const Data data = [] {
    try {
      return read();
    } catch (const Json::exception& error) {
      throw Defect(fmt::format("models/frameworks/oumi.json: {}", error.what()));
    }
  }();
  return data;
}

/// Releases that know a path, as words: "0.4.0 to 0.6.0", "0.7 and later".
std::string known_in(std::string_view root, std::string_view path) {
  const auto& all = data().releases;
  std::size_t first = all.size(), last = 0;
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (structured::View(data().classes, i).walk(root, path).field == nullptr) continue;
    first = std::min(first, i);
    last = i;
  }
  if (first == all.size()) return {};
  if (last + 1 == all.size()) return fmt::format("{} and later", all[first]);
  return first == last ? all[first] : fmt::format("{} to {}", all[first], all[last]);
}

}  // namespace

Release newest_release() { return {data().releases.size() - 1}; }
const std::string& name_of(Release release) { return data().releases[release.index]; }

std::optional<Release> find_release(std::string_view version) {
  if (version.starts_with('v')) version.remove_prefix(1);
  const auto& all = data().releases;
  if (version == "main" || version == all.back()) return newest_release();
  if (version.empty() || version.find_first_not_of("0123456789.") != std::string_view::npos) return std::nullopt;
  std::optional<Release> out;
  for (std::size_t i = 0; i < all.size(); ++i)
    if (!all[i].ends_with(kDevelopment) && compare_versions(all[i], version) <= 0) out = Release{i};
  const auto behind = [&](std::size_t i) { return compare_versions(all[i], version) < 0; };
  if (out && out->index + 2 >= all.size() && behind(out->index)) return std::nullopt;  // later than the last release
  return out;
}

std::string releases_text() { return list_of(data().releases); }

Classes::Classes(Release release) : release_(release), view_(data().classes, release.index) {}

Origin Classes::origin_of(const structured::Field& field) const {
  return {Origin::Kind::default_, {}, reader() + " default", fmt::format("src/oumi/core/configs: {}", field.owner)};
}

std::string Classes::reader() const { return fmt::format("Oumi {}", name_of(release_)); }

structured::Unknown Classes::unknown(std::string_view root, std::string_view path) const {
  const structured::Walked read = view_.walk(root, path);
  structured::Unknown out;
  out.why = fmt::format("{} has no {}", reader(), path);
  if (const std::string known = known_in(root, path); !known.empty()) {
    out.why += ": known in " + known;
    return out;  // the key is meant, and of another release
  }
  out.nearest = view_.nearest(path, read);
  const auto parts = structured::parts_of(path);
  if (out.nearest.empty() && read.known + 1 == parts.size()) out.nearest = view_.elsewhere(root, parts[0], parts[read.known]);
  return out;
}

}  // namespace oomplan::oumi
