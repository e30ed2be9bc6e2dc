#include "frontends/derivation.hpp"

#include <fmt/format.h>

#include "frontends/defaults.hpp"
#include "job/follow.hpp"
#include "job/names.hpp"

namespace oomplan {

std::string key_of(const Role& role, std::string_view knob) { return fmt::format("{}.{}", role.name, knob); }

std::int64_t Derivation::fact(const Trainer& t, std::string_view name) const {
  return static_cast<std::int64_t>(facts_.find(spelling(t.framework), name, {t.framework_version, {}, {}}).value);
}

void Derivation::problem(Place place, std::string found, Refusal refusal) {
  problem({std::move(place), std::move(found), std::move(refusal.expected), std::move(refusal.nearest), std::move(refusal.why)});
}

void Derivation::missing(const std::string& key, std::string expected, std::string why) {
  Place place{file_, 0, 0, key};
  const auto role = job().origins.find(key.substr(0, key.find('.')));
  if (role != job().origins.end() && key.find('.') != std::string::npos) {
    place = role->second.place;
    place.path = key;
  }
  problem(place, "nothing", {std::move(expected), {}, std::move(why)});
}

void Derivation::record(const std::string& key, Origin::Kind kind, std::string because, std::string source) {
  job().origins[key] = {kind, {file_, 0, 0, key}, std::move(because), std::move(source)};
}

void Derivation::derive(const std::string& key, const std::string& text, std::string because, std::string source,
                        Origin::Rule rule) {
  if (written(key)) return;
  const KnobAt at = find_knob(job(), key);
  if (at.knob == nullptr) return;
  if (at.knob->get(job(), job().role(at.role)) == text && job().origins.contains(key)) return;
  if (at.knob->set(*at.knob, job(), job().role(at.role), text).refused()) return;
  record(key, Origin::Kind::derived, std::move(because), std::move(source));
  job().origins[key].rule = rule;
}

void Derivation::derive_like_the_actor(const std::string& key, const std::string& text) {
  derive(key, text, std::string(kLikeTheActor), {}, Origin::Rule::like_the_actor);
  if (!written(key)) taken_over_.insert(key);
}

void derive_bucket(Derivation& d, const Trainer& t, std::string_view fact_name) {
  const Fact& bucket = d.facts().find(spelling(t.framework), fact_name, {t.framework_version, {}, {}});
  d.derive("sync.bucket", fmt::format("{}MiB", static_cast<std::int64_t>(bucket.value)),
           framework_text(t.framework, t.framework_version) + " default", bucket.source);
}

}  // namespace oomplan
