// Settings that say which modules of a model have adapters: peft's target_modules, exclude_modules, layers_to_transform,
// layers_pattern and modules_to_save.
#include <algorithm>

#include <fmt/ranges.h>

#include "job/knob_table.hpp"

namespace oomplan {
namespace {

using namespace knob;

constexpr std::size_t kLongestText = 2000;
constexpr std::size_t kMostItems = 10'000;

bool is_list(std::string_view text) { return text.starts_with('[') && text.ends_with(']'); }

/// A part of a name: no blank, no sign of an expression.
bool is_name(std::string_view text) {
  return !text.empty() && text.front() != '.' && text.back() != '.' && std::all_of(text.begin(), text.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '.' || c == '-';
  });
}
bool says_all(std::string_view text) {
  constexpr std::string_view kAll = "all-linear";
  return std::equal(text.begin(), text.end(), kAll.begin(), kAll.end(),
                    [](char a, char b) { return (a >= 'A' && a <= 'Z' ? static_cast<char>(a - 'A' + 'a') : a) == b; });
}

Refusal names_of(std::string_view text, std::vector<std::string>& out) {
  const std::vector<std::string_view> items = items_of(text);
  if (items.size() > kMostItems) return {"at most 10000 names", {}, {}};
  for (const std::string_view item : items) {
    if (!is_name(item)) return {"names of modules, or their ends, such as [q_proj, v_proj]", {}, {}};
    if (std::find(out.begin(), out.end(), item) == out.end()) out.emplace_back(item);
  }
  return {};
}
/// A list, or an expression for whole names.
Refusal names_or_expression(std::string_view text, std::vector<std::string>& names, std::string& expression) {
  const bool listed = text.find(',') != std::string_view::npos && is_name(text.substr(0, text.find(',')));
  if (is_list(text) || text == "none" || listed) return names_of(text, names);
  const bool printed = std::all_of(text.begin(), text.end(), [](char c) { return c >= ' ' && c <= '~'; });
  if (text.empty() || !printed || (text.front() == '[' && text.find(']') == std::string_view::npos))
    return {"a list of names such as [q_proj, v_proj], or an expression", {}, {}};
  if (text.size() > kLongestText) return {"an expression of at most 2000 characters", {}, {}};
  expression = text;
  return {};
}
std::string joined(const std::vector<std::string>& names) { return fmt::format("[{}]", fmt::join(names, ", ")); }

std::string get_targets(const Job&, const Role* r) {
  const Lora& l = r->trainer.lora;
  if (!l.targets_matching.empty()) return l.targets_matching;
  if (l.targets_by_type) return "default";
  return l.targets.empty() ? "[all-linear]" : joined(l.targets);
}
Refusal set_targets(const Knob&, Job&, Role* r, std::string_view text) {
  Lora made = r->trainer.lora;
  made.targets.clear();
  made.targets_matching.clear();
  made.targets_by_type = text == "default";
  if (!made.targets_by_type && !says_all(text)) {
    if (Refusal why = names_or_expression(text, made.targets, made.targets_matching); why.refused()) return why;
    const bool all = std::find(made.targets.begin(), made.targets.end(), "all-linear") != made.targets.end();
    if ((all && made.targets.size() > 1) || (made.targets.empty() && made.targets_matching.empty()))
      return {"all-linear, or a list of modules such as [q_proj, v_proj]", {}, {}};
    if (all) made.targets.clear();
  }
  r->trainer.lora = std::move(made);
  return {};
}

std::string get_exclude(const Job&, const Role* r) {
  const Lora& l = r->trainer.lora;
  return l.exclude_matching.empty() ? joined(l.exclude) : l.exclude_matching;
}
Refusal set_exclude(const Knob&, Job&, Role* r, std::string_view text) {
  std::vector<std::string> names;
  std::string expression;
  if (Refusal why = names_or_expression(text, names, expression); why.refused()) return why;
  r->trainer.lora.exclude = std::move(names);
  r->trainer.lora.exclude_matching = std::move(expression);
  return {};
}

std::string get_layers(const Job&, const Role* r) {
  const auto& layers = r->trainer.lora.layers;
  return layers.empty() ? std::string("all") : fmt::format("[{}]", fmt::join(layers, ", "));
}
Refusal set_layers(const Knob&, Job&, Role* r, std::string_view text) {
  std::vector<std::int64_t> layers;
  if (text != "all")
    for (const std::string_view item : items_of(text)) {
      const bool digits =
          !item.empty() && item.size() < 7 && std::all_of(item.begin(), item.end(), [](char c) { return c >= '0' && c <= '9'; });
      if (!digits || layers.size() >= kMostItems) return {"numbers of layers such as [0, 1], or all", {}, {}};
      layers.push_back(std::stoll(std::string(item)));
    }
  r->trainer.lora.layers = std::move(layers);
  return {};
}

template <auto M>
Access names_access() {
  return {[](const Job&, const Role* r) { return joined(r->trainer.lora.*M); },
          [](const Knob&, Job&, Role* r, std::string_view text) {
            std::vector<std::string> names;
            Refusal why = names_of(text, names);
            if (!why.refused()) r->trainer.lora.*M = std::move(names);
            return why;
          }};
}

}  // namespace

std::vector<Knob> adapter_rows() {
  using enum KnobType;
  using enum Effect;
  const auto learner = KnobOf::learns;
  return {
      row("lora.targets", learner, items, {get_targets, set_targets}, semantics,
          "modules with adapters, peft's target_modules: a list of names or their ends ([q_proj, v_proj]), an expression that a "
          "whole name must match, all-linear (all but the output layer), or default (peft's own for the model_type). Beside "
          "other models than transformers': that framework's words"),
      row("lora.exclude", learner, items, {get_exclude, set_exclude}, semantics,
          "peft's exclude_modules: a list of names or their ends, or an expression for whole names"),
      row("lora.layers", learner, items, {get_layers, set_layers}, semantics,
          "peft's layers_to_transform, beside a list of targets: numbers of layers such as [0, 1], or all"),
      row("lora.layers_pattern", learner, items, names_access<&Lora::layers_pattern>(), semantics,
          "peft's layers_pattern: what stands in front of a layer's number in names of modules, such as [layers]"),
      row("lora.modules_to_save", learner, items, names_access<&Lora::modules_to_save>(), semantics,
          "peft's modules_to_save: modules of which a copy is trained beside the frozen one: embedding and output layer"),
  };
}

}  // namespace oomplan
