#include "frontends/compose/choices.hpp"

#include <fmt/format.h>

#include "units/enums.hpp"

namespace oomplan::compose {
namespace {

using Kind = Node::Kind;

std::vector<std::string> option_names(const Override& given) {
  std::vector<std::string> out;
  if (!given.value) return out;
  if (given.value->kind == Kind::text) out.push_back(given.value->text);
  for (const auto& item : given.value->items)
    if (item.kind == Kind::text) out.push_back(item.text);
  return out;
}

}  // namespace

Choices::Choices(Repository& files, const std::vector<Override>& overrides, std::vector<Problem>& problems)
    : problems_(problems) {
  for (const auto& given : overrides) read(files, given);
}

void Choices::read(Repository& files, const Override& given) {
  const bool map = given.value && given.value->kind == Kind::map;
  if (map || !files.has_group(given.key, option_names(given))) {
    values_.push_back(given);
    return;
  }
  const Place place{"command line", 0, 0, given.group_key()};
  const auto refuse = [&](std::string found, std::string expected, std::string why) {
    problems_.push_back({place, std::move(found), std::move(expected), {}, std::move(why)});
  };
  const Node none;
  const Node& value = given.value ? *given.value : none;
  const bool name = value.kind == Kind::text || value.kind == Kind::missing || value.kind == Kind::interpolation;
  if (given.kind == Override::Kind::force)
    return refuse(fmt::format("'{}'", given.typed), fmt::format("+{}=option", given.group_key()),
                  fmt::format("'{}' is a config group, and Hydra does not add groups by ++", given.key));
  if (given.kind == Override::Kind::remove) {
    if (value.kind != Kind::null && !name) return refuse(describe(value), "the option of a config group", {});
    deletions_[given.group_key()] = {name ? std::optional(value.text) : std::nullopt, false};
    return;
  }
  if (!name && value.kind != Kind::list)
    return refuse(describe(value), "the name of an option, or a list of them", fmt::format("'{}' is a config group", given.key));
  Default element;
  element.group = true;
  element.path = given.key;
  element.package = given.package;
  element.place = place;
  element.several = value.kind == Kind::list;
  if (element.several)
    element.options = option_names(given);
  else
    element.option = value.text;
  element.appended = given.kind == Override::Kind::add;
  if (element.appended)
    appended_.push_back(std::move(element));
  else
    chosen_[given.group_key()] = {std::move(element), true, {}, false};
}

void Choices::override_in_list(const std::string& config, const Default& element) {
  chosen_.try_emplace(element.override_key(), Chosen{element, false, config, false});
}

void Choices::apply(Default& element) {
  if (!element.group) return;
  const auto it = chosen_.find(element.override_key());
  if (it == chosen_.end()) return;
  element.option = it->second.value.option;
  element.options = it->second.value.options;
  element.several = it->second.value.several;
  element.place = it->second.value.place;
  it->second.used = true;
}

bool Choices::takes_out(const Default& element) {
  if (!element.group) return false;
  const auto it = deletions_.find(element.override_key());
  if (it == deletions_.end() || (it->second.option && it->second.option != element.name())) return false;
  it->second.used = true;
  return true;
}

void Choices::remember(const Default& element) {
  if (!element.group) return;
  const std::string key = element.override_key();
  const auto [it, fresh] = known_.emplace(key, element.name());
  known_by_group_[element.group_path()].insert(key);
  if (fresh || it->second == element.name()) return;
  problems_.push_back(
      {element.place,
       fmt::format("{}: {}", key, element.name().value_or("null")),
       "one option of a group",
       {},
       fmt::format("Hydra finds several values for {}; 'override {}: {}' replaces one", key, key, it->second.value_or("null"))});
}

void Choices::tell_unused() {
  for (const auto& [key, chosen] : chosen_) {
    if (chosen.used || key.starts_with("hydra/")) continue;
    const auto it = known_by_group_.find(key.substr(0, key.find('@')));
    const std::vector<std::string> near =
        it == known_by_group_.end() ? std::vector<std::string>{} : std::vector<std::string>(it->second.begin(), it->second.end());
    std::string why = near.empty() ? fmt::format("no defaults list names the group '{}'", key)
                                   : fmt::format("Hydra could not override '{}'; the defaults lists have {}", key, list_of(near));
    if (chosen.typed) why += fmt::format("; +{}={} adds it", key, chosen.value.option.value_or("[...]"));
    problems_.push_back({chosen.value.place, fmt::format("'{}'", key), "a group of the defaults list",
                         near.size() == 1 ? near[0] : "", std::move(why)});
  }
  for (const auto& [key, deletion] : deletions_)
    if (!deletion.used)
      problems_.push_back({{"command line", 0, 0, key},
                           fmt::format("'~{}{}'", key, deletion.option ? "=" + *deletion.option : ""),
                           "a group of the defaults list",
                           {},
                           "Hydra could not delete it: no match in the defaults list"});
}

}  // namespace oomplan::compose
