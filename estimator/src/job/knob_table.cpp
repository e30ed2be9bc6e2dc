#include "job/knob_table.hpp"

#include <algorithm>

#include <fmt/ranges.h>

namespace oomplan::knob {

NameAndVersion split_version(std::string_view text) {
  const auto space = text.find(' ');
  if (space == std::string_view::npos) return {text, {}};
  const auto rest = text.find_first_not_of(' ', space);
  return {text.substr(0, space), rest == std::string_view::npos ? std::string_view{} : text.substr(rest)};
}
bool is_version(std::string_view v) {
  if (v.empty() || v.size() > 40 || v.front() < '0' || v.front() > '9') return false;
  for (const char c : v)
    if (!((c >= '0' && c <= '9') || c == '.' || (c >= 'a' && c <= 'z') || c == '+' || c == '-')) return false;
  return true;
}

namespace {

std::string_view trimmed(std::string_view text) {
  while (text.starts_with(' ')) text.remove_prefix(1);
  while (text.ends_with(' ')) text.remove_suffix(1);
  return text;
}

std::string get_targets(const Job&, const Role* r) {
  const auto& targets = r->server.lora.targets;
  return fmt::format("[{}]", targets.empty() ? "all-linear" : fmt::format("{}", fmt::join(targets, ", ")));
}
/// "[q_proj, v_proj]", "q_proj", "all-linear".
Refusal set_targets(const Knob& k, Job&, Role* r, std::string_view text) {
  std::vector<std::string> targets;
  bool all = false;
  for (const std::string_view item : items_of(text)) {
    if (std::find(k.choices.begin(), k.choices.end(), item) == k.choices.end()) return refuse_choice(k, item);
    if (item == "all-linear")
      all = true;
    else if (std::find(targets.begin(), targets.end(), item) == targets.end())
      targets.emplace_back(item);
  }
  if (all == !targets.empty()) return {"all-linear, or a list of modules such as [q_proj, v_proj]", {}, {}};
  r->server.lora.targets = std::move(targets);
  return {};
}

}  // namespace

std::vector<std::string_view> items_of(std::string_view text) {
  if (text.starts_with('[') && text.ends_with(']')) text = text.substr(1, text.size() - 2);
  text = trimmed(text);
  std::vector<std::string_view> out;
  if (text.empty() || text == "none") return out;
  for (std::size_t at = 0; at <= text.size();) {
    const auto comma = std::min(text.find(',', at), text.size());
    out.push_back(trimmed(text.substr(at, comma - at)));
    at = comma + 1;
  }
  return out;
}

Access slot_targets_access() { return {get_targets, set_targets}; }

}  // namespace oomplan::knob
