#include "frontends/transformers/schema.hpp"

#include <algorithm>
#include <array>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <oomplan/units/errors.hpp>

#include "catalog/embedded.hpp"
#include "catalog/facts.hpp"
#include "units/enums.hpp"

namespace oomplan::transformers {
namespace {

using Json = nlohmann::ordered_json;

/// Of a row with `described` false nothing is estimated yet.
constexpr std::array<TrainerRow, 8> kTrainers{{{"sft", "SFTConfig", "ScriptArguments", "sft", true},
                                               {"dpo", "DPOConfig", "ScriptArguments", "dpo", true},
                                               {"grpo", "GRPOConfig", "GRPOScriptArguments", "rl", true},
                                               {"kto", "KTOConfig", "ScriptArguments", "kto", true},
                                               {"reward", "RewardConfig", "ScriptArguments", "reward", true},
                                               {"rloo", "RLOOConfig", "RLOOScriptArguments", "rl", false},
                                               {"hf", "TrainingArguments", "RunClmArguments", "sft", true},
                                               {"run_clm", "TrainingArguments", "RunClmArguments", "sft", true}}};

struct Data {
  std::vector<std::string> trl, transformers;
  structured::ReleasedClasses classes;
};

Data read() {
  const Json json = Json::parse(embedded_text("frameworks/transformers.json"));
  Data out;
  out.trl = json.at("releases").get<std::vector<std::string>>();
  out.transformers = json.at("transformers").get<std::vector<std::string>>();
  const auto position = [&](const std::string& name) {
    const auto found = std::find(out.trl.begin(), out.trl.end(), name);
    if (found == out.trl.end()) throw Defect(fmt::format("models/frameworks/transformers.json: the release '{}'", name));
    return static_cast<std::size_t>(found - out.trl.begin());
  };
  out.classes = structured::read_classes(json.at("classes"), position, out.trl.size() - 1);
  return out;
}

const Data& data() {
  static const Data data = [] {
    try {
      return read();
    } catch (const Json::exception& error) {
      throw Defect(fmt::format("models/frameworks/transformers.json: {}", error.what()));
    }
  }();
  return data;
}

std::string_view plain(std::string_view version) {
  if (version.ends_with('+')) version.remove_suffix(1);
  return version;
}

/// The last release that is no later than the version; nothing where it is older than all.
std::optional<Release> last_until(const std::vector<std::string>& all, std::string_view version) {
  std::optional<Release> out;
  for (std::size_t i = 0; i < all.size(); ++i)
    if (compare_versions(plain(all[i]), version) <= 0) out = Release{i};
  return out;
}

std::vector<std::string_view> classes_of(const TrainerRow& trainer) {
  if (trainer.name == "run_clm") return {trainer.config, trainer.script};
  return {trainer.config, trainer.script, "ModelConfig", "DatasetMixtureConfig"};
}

}  // namespace

const TrainerRow* find_trainer(std::string_view name) {
  const auto row = std::find_if(kTrainers.begin(), kTrainers.end(), [&](const TrainerRow& r) { return r.name == name; });
  return row == kTrainers.end() ? nullptr : &*row;
}

std::string trainers_text() {
  std::vector<std::string> out;
  for (const TrainerRow& row : kTrainers) out.emplace_back(row.name);
  return list_of(out);
}

std::size_t count_of_releases() { return data().trl.size(); }
const std::string& trl_of(Release release) { return data().trl[release.index]; }
const std::string& transformers_of(Release release) { return data().transformers[release.index]; }
bool trl_from(Release release, std::string_view version) { return compare_versions(plain(trl_of(release)), version) >= 0; }
bool transformers_from(Release release, std::string_view version) {
  return compare_versions(transformers_of(release), version) >= 0;
}

std::optional<Release> find_release(std::string_view version) {
  const Data& all = data();
  bool trl = false, hf = false;
  if (version.starts_with("trl ")) trl = true, version.remove_prefix(4);
  if (version.starts_with("transformers ")) hf = true, version.remove_prefix(13);
  if (version.starts_with('v')) version.remove_prefix(1);
  if (!hf && (version == "main" || version == all.trl.back())) return Release{all.trl.size() - 1};
  if (version.empty() || version.find_first_not_of("0123456789.") != std::string_view::npos) return std::nullopt;
  if (!trl && !hf) hf = compare_versions(version, "4") >= 0;  // TRL has not come so far
  if (trl && compare_versions(version, "4") >= 0) return std::nullopt;
  return last_until(hf ? all.transformers : all.trl, version);
}

std::string releases_text() {
  const Data& all = data();
  return fmt::format("a release of TRL from {} or of Transformers from {} on", all.trl.front(), all.transformers.front());
}

bool has_trainer(Release release, const TrainerRow& trainer) {
  return structured::View(data().classes, release.index).has_class(trainer.config);
}

Classes::Classes(Release release, const TrainerRow& trainer)
    : release_(release), trainer_(trainer), view_(data().classes, release.index) {}

std::vector<const structured::Field*> Classes::fields(std::string_view name) const {
  if (name != trainer_.name) return view_.fields(name);
  std::vector<const structured::Field*> out;
  for (const std::string_view one : classes_of(trainer_))
    for (const structured::Field* field : view_.fields(one)) {
      const bool there = std::any_of(out.begin(), out.end(), [&](const auto* other) { return other->key == field->key; });
      if (!there) out.push_back(field);
    }
  return out;
}

const structured::Field* Classes::field(std::string_view key) const {
  for (const std::string_view one : classes_of(trainer_))
    if (const structured::Field* found = view_.field(one, key)) return found;
  return nullptr;
}

std::vector<std::string> Classes::keys() const {
  std::vector<std::string> out;
  for (const structured::Field* field : fields(trainer_.name)) out.push_back(field->key);
  return out;
}

Origin Classes::origin_of(const structured::Field& field) const {
  return {Origin::Kind::default_, {}, reader() + " default", field.owner};
}

std::string Classes::reader() const {
  if (trainer_.config == "TrainingArguments") return fmt::format("Transformers {}", transformers_of(release_));
  return fmt::format("TRL {}", plain(trl_of(release_)));
}

/// Releases that know a key, as words: "0.12.2 to 0.19.1".
std::string Classes::known_in(std::string_view key) const {
  const bool hf = trainer_.config == "TrainingArguments";
  const auto name = [&](std::size_t i) { return std::string(plain(hf ? data().transformers[i] : data().trl[i])); };
  std::size_t first = count_of_releases(), last = 0;
  for (std::size_t i = 0; i < count_of_releases(); ++i)
    if (Classes(Release{i}, trainer_).field(key) != nullptr) first = std::min(first, i), last = i;
  if (first == count_of_releases()) return {};
  if (last + 1 == count_of_releases()) return fmt::format("{} and later", name(first));
  return name(first) == name(last) ? name(first) : fmt::format("{} to {}", name(first), name(last));
}

structured::Unknown Classes::unknown(std::string_view, std::string_view path) const {
  structured::Unknown out;
  out.maybe_own = true;
  out.why = fmt::format("{} has no {}", reader(), path);
  if (const std::string known = known_in(path); !known.empty()) {
    out.why += ": known in " + known;
    out.maybe_own = false;
    return out;
  }
  out.nearest = nearest(path, keys());
  return out;
}

}  // namespace oomplan::transformers
