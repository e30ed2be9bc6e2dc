#include "frontends/launch/state.hpp"

#include <algorithm>
#include <utility>

namespace oomplan::launch {

const Variable* State::find(const std::string& name) const {
  for (auto scope = scopes.rbegin(); scope != scopes.rend(); ++scope)
    if (const auto at = scope->find(name); at != scope->end()) return &at->second;
  return nullptr;
}

Variable* State::find(const std::string& name) { return const_cast<Variable*>(std::as_const(*this).find(name)); }

std::int64_t State::steps_of_a_copy() const {
  std::size_t parts = 2 * functions.size() + positional.size() + erased.size(), units = 0;
  for (const auto& scope : scopes)
    for (const auto& [name, variable] : scope) {
      parts += 4 + variable.elements.size() + 2 * variable.named.size();  // nodes, keys and texts
      units += variable.value.size();
      for (const auto& [index, text] : variable.elements) units += text.size();
      for (const auto& [key, text] : variable.named) units += text.size();
    }
  for (const Text& text : positional) units += text.size();
  return 20 + static_cast<std::int64_t>(2 * parts + units / 64);  // dear: a loop that copies what it lets grow is to end soon
}

State joined(const State& a, const State& b, const std::function<Text(const std::string& name)>& unknown) {
  State out = a;
  for (std::size_t i = 0; i < out.scopes.size() && i < b.scopes.size(); ++i) {
    auto& mine = out.scopes[i];
    const auto& other = b.scopes[i];
    for (auto& [name, variable] : mine)
      if (const auto at = other.find(name); at == other.end() || at->second != variable) {
        const bool exported = variable.exported;
        variable = {};
        variable.set = true, variable.exported = exported, variable.value = unknown(name);
      }
    for (const auto& [name, variable] : other)
      if (!mine.contains(name)) {
        Variable& made = mine[name];
        made.set = true, made.exported = variable.exported, made.value = unknown(name);
      }
  }
  out.functions.insert(b.functions.begin(), b.functions.end());
  if (a.positional != b.positional) out.positional = {unknown("@")};
  if (a.folder != b.folder) out.folder = unknown("PWD");
  out.erased.insert(b.erased.begin(), b.erased.end());
  if (out.sourced_in_vain.empty()) out.sourced_in_vain = b.sourced_in_vain;
  return out;
}

}  // namespace oomplan::launch
