#include "frontends/oumi/verl.hpp"

#include <algorithm>
#include <array>
#include <memory>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "frontends/compose/edit.hpp"
#include "frontends/keys_of_lines.hpp"
#include "frontends/native.hpp"
#include "frontends/oumi/meaning.hpp"
#include "frontends/oumi/read.hpp"
#include "frontends/oumi/rules.hpp"
#include "frontends/oumi/spell.hpp"
#include "units/json_text.hpp"

namespace oomplan::oumi {
namespace {

using compose::Node;

constexpr std::string_view kBelow = "training.verl_config_overrides";

/// What pyproject.toml of a release and the ones behind it installs, the newest that it takes; the defaults that Oumi brings are
/// those of that verl but for names and loggers.
struct VerlRow {
  std::string_view since, verl;
};
constexpr std::array<VerlRow, 4> kVerl{{{"0.1.3", "0.3.0"}, {"0.2.0", "0.4.0"}, {"0.4.0", "0.5.0"}, {"0.8", "0.7.0"}}};

/// Keys of Oumi that it writes into verl's configuration.
struct FilledRow {
  std::string_view oumi, verl;
};
constexpr std::array<FilledRow, 5> kKeys{{
    {"training.grpo.max_completion_length", "data.max_response_length"},
    {"model.model_name", "actor_rollout_ref.model.path"},
    {"training.enable_gradient_checkpointing", "actor_rollout_ref.model.enable_gradient_checkpointing"},
    {"training.grpo.temperature", "actor_rollout_ref.rollout.temperature"},
    {"training.grpo.vllm_gpu_memory_utilization", "actor_rollout_ref.rollout.gpu_memory_utilization"},
}};
constexpr std::string_view kServers = "training.grpo.use_vllm", kRollout = "actor_rollout_ref.rollout.name";

nlohmann::ordered_json json_of(const Node& n) {
  switch (n.kind) {
    case Node::Kind::boolean:
      return n.boolean;
    case Node::Kind::integer:
      return n.integer;
    case Node::Kind::real:
      return n.real;
    case Node::Kind::list: {
      auto out = nlohmann::ordered_json::array();
      for (const Node& item : n.items) out.push_back(json_of(item));
      return out;
    }
    case Node::Kind::map: {
      auto out = nlohmann::ordered_json::object();
      for (const auto& entry : n.entries) out[entry.key] = json_of(entry.value);
      return out;
    }
    case Node::Kind::missing:
      return "???";
    case Node::Kind::null:
      return nullptr;
    default:
      return n.text;
  }
}

/// The key in a tree of maps, made where it is not there.
nlohmann::ordered_json& at(nlohmann::ordered_json& root, std::string_view path) {
  nlohmann::ordered_json* here = &root;
  for (const std::string& key : compose::split_key(path)) here = &(*here)[key];
  return *here;
}

/// Maps are merged, anything else is replaced, as OmegaConf.merge does.
void merge(nlohmann::ordered_json& into, const nlohmann::ordered_json& from) {
  for (const auto& [key, value] : from.items())
    if (value.is_object() && into.contains(key) && into[key].is_object())
      merge(into[key], value);
    else
      into[key] = value;
}

nlohmann::ordered_json configuration(const OumiText& text) {
  nlohmann::ordered_json out;
  at(out, "algorithm.adv_estimator") = "grpo";
  for (const FilledRow& row : kKeys)
    if (const Node* n = text.root.at(row.oumi)) at(out, row.verl) = json_of(*n);
  const Node* served = text.root.at(kServers);
  at(out, kRollout) = served != nullptr && served->boolean ? "vllm" : "hf";
  const Node* own = text.root.at(kBelow);
  if (own != nullptr && own->kind == Node::Kind::map) merge(out, json_of(*own));
  return out;
}

/// Of a key of verl's: below the overrides, or at the key of Oumi that fills it in.
Place place_in(const OumiText& text, const std::string& key) {
  const auto found = [&](const std::string& path) -> std::optional<Place> {
    const Node* n = text.given.at(path);
    if (n == nullptr) return std::nullopt;
    Place place = n->origin.place;
    place.path = path;
    return place;
  };
  const std::string below = fmt::format("{}.{}", kBelow, key);
  if (const auto place = found(below)) return *place;
  for (const FilledRow& row : kKeys)
    if (row.verl == key) return found(std::string(row.oumi)).value_or(Place{{}, 0, 0, std::string(row.oumi)});
  if (key == kRollout) return found(std::string(kServers)).value_or(Place{{}, 0, 0, std::string(kServers)});
  return {{}, 0, 0, below};
}

std::string verl_with(Release release) {
  std::string_view out = kVerl.front().verl;
  for (const VerlRow& row : kVerl)
    if (release >= *find_release(row.since)) out = row.verl;
  return std::string(out);
}

}  // namespace

bool starts_verl(const Source& source) {
  if (source.text.find("VERL_GRPO") == std::string::npos &&
      std::none_of(source.overrides.begin(), source.overrides.end(),
                   [](const std::string& word) { return word.find("VERL_GRPO") != std::string::npos; }))
    return false;
  const OumiText text = read_oumi(source);
  return text.kind == FileKind::training && meaning_of(text).trainer == "VERL_GRPO";
}

HandedOn verl_of(const Source& source) {
  const auto text = std::make_shared<const OumiText>(read_oumi(source));
  std::vector<Problem> problems = text->problems;
  for (Problem& p : refusals_of(*text, meaning_of(*text))) problems.push_back(std::move(p));
  for (Problem& p : problems)
    if (p.place.file.empty()) p.place.file = source.name;
  stop_at(std::move(problems));
  HandedOn out;
  out.source = source;
  out.source.text = "";
  const nlohmann::ordered_json said = configuration(*text);
  for (const auto& [key, value] : said.items()) out.source.text += fmt::format("{}: {}\n", key, json_text(value, -1));
  out.source.dialect = "verl";
  out.source.overrides.clear();
  out.source.framework_version = verl_with(text->release);
  out.below = kBelow;
  out.place_of = [text, file = source.name](const std::string& key) {
    Place place = place_in(*text, key);
    if (place.file.empty()) place.file = file;
    return place;
  };
  out.argument = [](const std::string& path, const FactValue& value) { return argument_of({path, value}); };
  out.notes = text->notes;
  if (text->world.gpus() > 0)
    out.notes.push_back({Note::Level::info,
                         {source.name, 0, 0, fmt::format("{}.trainer.n_gpus_per_node", kBelow)},
                         "verl takes as many GPUs as its trainer.nnodes and trainer.n_gpus_per_node say"});
  out.notes.push_back({Note::Level::info,
                       {source.name, 0, 0, "training.trainer_type"},
                       fmt::format("Oumi starts verl {}; its keys stand below {}", out.source.framework_version, kBelow)});
  return out;
}

}  // namespace oomplan::oumi
