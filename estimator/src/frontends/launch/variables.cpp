// Variables: those of the script, of the environment, and those that the shell keeps itself.
#include <algorithm>
#include <array>
#include <charconv>

#include <fmt/format.h>

#include "frontends/launch/evaluator.hpp"
#include "frontends/launch/parser.hpp"

namespace oomplan::launch {
namespace {

/// What the shell knows and a reader does not.
constexpr std::array<std::string_view, 15> kOutside{"RANDOM",       "SRANDOM",       "SECONDS",  "EPOCHSECONDS", "EPOCHREALTIME",
                                                    "BASHPID",      "PPID",          "UID",      "EUID",         "HOSTNAME",
                                                    "BASH_VERSION", "BASH_VERSINFO", "MACHTYPE", "GROUPS",       "COLUMNS"};

Text number_text(std::size_t n) { return text_of(fmt::format("{}", n)); }

Text in_letters(Text text, char letters) {
  for (char32_t& unit : text)
    if (!is_unknown(unit)) {
      const auto c = static_cast<unsigned char>(byte_of(unit));
      unit = (unit & ~char32_t{0xFF}) | unit_of(static_cast<char>(letters == 'l' ? std::tolower(c) : std::toupper(c)));
    }
  return text;
}

}  // namespace

Text Evaluator::unset_text(const std::string& name) {
  if (!state_.sourced_in_vain.empty() && is_name(name))
    return unknown_text(Unknown::Kind::outside, name, fmt::format("{} may set it, and is not here", state_.sourced_in_vain));
  return unknown_text(Unknown::Kind::unset, name);
}

std::optional<Text> Evaluator::special(const std::string& name) {
  if (name == "#") return number_text(state_.positional.size());
  if (name == "?") {
    if (last_.unknown) return Text(1, *last_.unknown);
    return text_of(fmt::format("{}", last_.code));
  }
  if (name == "$" || name == "!") return unknown_text(Unknown::Kind::outside, "$" + name);
  if (name == "-") return text_of(fmt::format("{}{}hB", state_.errexit ? "e" : "", state_.nounset ? "u" : ""));
  if (name == "0") return text_of(sources_.front());
  if (name == "_") return last_word_;
  if (name == "LINENO") return text_of(fmt::format("{}", line_));
  if (name == "PWD") return state_.folder;
  if (name == "OSTYPE") return text_of("linux-gnu");
  if (name == "BASH") return text_of("/bin/bash");
  if (name == "SHLVL") return text_of("1");
  if (name == "FUNCNAME" && !functions_.empty()) return text_of(functions_.back());
  if (name == "BASH_SOURCE") return text_of(file_);
  if (!name.empty() && std::all_of(name.begin(), name.end(), [](char c) { return c >= '0' && c <= '9'; })) {
    std::size_t n = 0;
    std::from_chars(name.data(), name.data() + name.size(), n);
    if (n >= 1 && n <= state_.positional.size()) return state_.positional[n - 1];
    return std::nullopt;
  }
  if (std::find(kOutside.begin(), kOutside.end(), name) != kOutside.end()) return unknown_text(Unknown::Kind::outside, name);
  return std::nullopt;
}

std::optional<Text> Evaluator::value_if_set(const std::string& name) {
  if (const Variable* v = state_.find(name)) {
    if (!v->set) return std::nullopt;
    if (v->kind == Variable::Kind::scalar) return v->value;
    if (v->kind == Variable::Kind::indexed) {
      const auto first = v->elements.find(0);
      return first == v->elements.end() ? std::nullopt : std::optional(first->second);
    }
    const auto zero = std::find_if(v->named.begin(), v->named.end(), [](const auto& x) { return x.first == "0"; });
    return zero == v->named.end() ? std::nullopt : std::optional(zero->second);
  }
  if (!state_.erased.contains(name) && name != "PWD")
    if (const auto given = input_.environment.find(name); given != input_.environment.end()) return text_of(given->second);
  if (name == "IFS") return state_.erased.contains(name) ? std::nullopt : std::optional(text_of(" \t\n"));
  if (name == "OPTIND") return text_of("1");
  return special(name);
}

Text Evaluator::value_of(const std::string& name) {
  std::optional<Text> out = value_if_set(name);
  return out ? std::move(*out) : unset_text(name);
}

bool Evaluator::is_array(const std::string& name) {
  const Variable* v = state_.find(name);
  return (v != nullptr && v->kind != Variable::Kind::scalar) || name == "BASH_SOURCE" || name == "FUNCNAME";
}

Evaluator::Texts Evaluator::elements_of(const std::string& name, bool keys) {
  Texts out;
  if (name == "BASH_SOURCE" || name == "FUNCNAME") {
    std::vector<std::string> all = name == "BASH_SOURCE" ? sources_ : functions_;
    if (name == "FUNCNAME" && !all.empty()) all.insert(all.begin(), "main");
    for (std::size_t i = 0; i < all.size(); ++i) out.push_back(keys ? number_text(i) : text_of(all[all.size() - 1 - i]));
    return out;
  }
  const Variable* v = state_.find(name);
  if (v == nullptr || v->kind == Variable::Kind::scalar) {
    if (std::optional<Text> value = value_if_set(name))
      out.push_back(keys ? text_of("0") : std::move(*value));
    else if (!state_.sourced_in_vain.empty())
      out.push_back(unset_text(name));
    return out;
  }
  if (v->kind == Variable::Kind::indexed)
    for (const auto& [index, text] : v->elements) out.push_back(keys ? text_of(fmt::format("{}", index)) : text);
  else
    for (const auto& [key, text] : v->named) out.push_back(keys ? text_of(key) : text);
  return out;
}

std::int64_t Evaluator::index_for(const std::string& subscript) { return calculated(text_of(subscript)); }

std::optional<Text> Evaluator::element_if_set(const std::string& name, const Word& subscript) {
  const Text text = joined_text(subscript);
  if (const std::optional<char32_t> open = first_unknown(text)) return Text(1, *open);
  return element_if_set(name, bytes_of(text));
}

std::optional<Text> Evaluator::element_if_set(const std::string& name, const std::string& subscript) {
  const Variable* v = state_.find(name);
  if (v != nullptr && v->kind == Variable::Kind::associative) {
    const auto at = std::find_if(v->named.begin(), v->named.end(), [&](const auto& x) { return x.first == subscript; });
    return at == v->named.end() ? std::nullopt : std::optional(at->second);
  }
  std::int64_t index = index_for(subscript);
  if (v == nullptr || v->kind == Variable::Kind::scalar) {
    if (name == "BASH_SOURCE" || name == "FUNCNAME") {
      const Texts all = elements_of(name, false);
      if (index < 0) index += static_cast<std::int64_t>(all.size());
      if (index < 0 || index >= static_cast<std::int64_t>(all.size())) return std::nullopt;
      return all[static_cast<std::size_t>(index)];
    }
    std::optional<Text> whole = value_if_set(name);
    if (whole && first_unknown(*whole) && !is_unset((*whole)[0])) return Text(1, *first_unknown(*whole));
    return index == 0 || index == -1 ? whole : std::nullopt;
  }
  if (index < 0 && !v->elements.empty()) index += v->elements.rbegin()->first + 1;
  const auto at = v->elements.find(index);
  return at == v->elements.end() ? std::nullopt : std::optional(at->second);
}

Variable& Evaluator::variable_for_writing(const std::string& name) {
  if (Variable* v = state_.find(name)) return *v;
  Variable& made = state_.scopes.front()[name];
  if (!state_.erased.contains(name) && input_.environment.contains(name)) made.exported = true;
  return made;
}

void Evaluator::store(Variable& v, const std::string& name, Text value) {
  budget_.text(value.size());
  if (v.readonly) {
    note(Note::Level::warning, fmt::format("{} is readonly and keeps its value", name));
    return;
  }
  value = plain(value);
  if (v.integer) {
    try {
      value = text_of(fmt::format("{}", calculated(value)));
    } catch (const NeedsUnknown& e) {
      value = Text(1, e.unit);
    }
  }
  if (v.letters != 0) value = in_letters(std::move(value), v.letters);
  v.set = true;
  if (v.kind == Variable::Kind::indexed)
    v.elements[0] = std::move(value);
  else if (v.kind == Variable::Kind::scalar)
    v.value = std::move(value);
  if (name == "PWD") state_.folder = v.value;
}

void Evaluator::set(const std::string& name, Text value) { store(variable_for_writing(name), name, std::move(value)); }

void Evaluator::set_element(const std::string& name, const std::string& subscript, Text value, bool append) {
  Variable& v = variable_for_writing(name);
  budget_.text(value.size());
  budget_.spend(1);
  value = plain(value);
  if (v.kind == Variable::Kind::associative) {
    const auto at = std::find_if(v.named.begin(), v.named.end(), [&](const auto& x) { return x.first == subscript; });
    if (at == v.named.end())
      v.named.emplace_back(subscript, std::move(value));
    else
      at->second = append ? at->second + value : std::move(value);
    budget_.spend(static_cast<std::int64_t>(v.named.size()) / 8);
    v.set = true;
    return;
  }
  std::int64_t index = index_for(subscript);
  if (v.kind == Variable::Kind::scalar) {
    v.kind = Variable::Kind::indexed;
    if (v.set) v.elements[0] = v.value;
    v.value.clear();
  }
  if (index < 0 && !v.elements.empty()) index += v.elements.rbegin()->first + 1;
  v.set = true;
  v.elements[index] = append ? v.elements[index] + value : std::move(value);
}

void Evaluator::assign(const Assignment& a, const std::function<Variable&()>& target) {
  line_ = a.line;
  if (a.subscript) {
    const Text subscript = joined_text(*a.subscript);
    const Text value = assigned_text(a.value);
    if (const std::optional<char32_t> open = first_unknown(subscript))
      set(a.name, Text(1, *open));  // some element: all of them are unknown now
    else
      set_element(a.name, bytes_of(subscript), value, a.append);
    return;
  }
  if (a.is_array) return assign_array(a, target);
  Text value = assigned_text(a.value);
  Variable& v = target ? target() : variable_for_writing(a.name);
  if (!a.append) return store(v, a.name, std::move(value));
  if (v.kind == Variable::Kind::indexed) {
    v.elements[0] += value;
    v.set = true;
    return;
  }
  const Text before = v.set ? v.value : value_if_set(a.name).value_or(Text());
  if (v.integer) value = text_of("+") + value;
  store(v, a.name, before + value);
}

void Evaluator::assign_array(const Assignment& a, const std::function<Variable&()>& target) {
  // Elements may refer to the array itself, which keeps its value until all of them are expanded.
  std::vector<std::pair<std::optional<std::string>, Text>> made;
  for (const Element& e : a.elements) {
    if (e.subscript) {
      made.emplace_back(bytes_of(joined_text(*e.subscript)), joined_text(e.value));
      continue;
    }
    for (const Field& f : fields_of({e.value})) {
      if (std::all_of(f.text.begin(), f.text.end(), [&](char32_t u) { return is_expanded(u) && is_unset(u); }) && !f.kept) {
        as_bash(f.text);  // no element
        continue;
      }
      made.emplace_back(std::nullopt, plain(f.text));
    }
  }
  Variable& v = target ? target() : variable_for_writing(a.name);
  if (v.kind == Variable::Kind::scalar) {
    const Text before = v.value;
    v.kind = Variable::Kind::indexed;
    v.elements.clear();
    if (a.append && v.set) v.elements[0] = before;
    v.value.clear();
  } else if (!a.append) {
    v.elements.clear();
    v.named.clear();
  }
  v.set = true;
  std::int64_t next = v.elements.empty() ? 0 : v.elements.rbegin()->first + 1;
  budget_.spend(static_cast<std::int64_t>(made.size()));
  for (auto& [subscript, text] : made) {
    if (v.kind == Variable::Kind::associative) {
      const std::string key = subscript.value_or(bytes_of(text));
      std::erase_if(v.named, [&](const auto& x) { return x.first == key; });
      v.named.emplace_back(key, std::move(text));
      budget_.spend(static_cast<std::int64_t>(v.named.size()) / 8);
      continue;
    }
    if (subscript) next = index_for(*subscript);
    v.elements[next++] = std::move(text);
  }
}

void Evaluator::unset(const std::string& name) {
  for (auto scope = state_.scopes.rbegin(); scope != state_.scopes.rend(); ++scope)
    if (scope->erase(name) > 0) break;
  state_.erased.insert(name);
}

void Evaluator::export_variable(const std::string& name) {
  if (Variable* v = state_.find(name)) {
    v->exported = true;
  } else if (state_.erased.contains(name) || !input_.environment.contains(name)) {
    state_.scopes.front()[name].exported = true;  // without a value
  }
}

std::map<std::string, Text> Evaluator::exported() const {
  std::map<std::string, Text> out;
  for (const auto& scope : state_.scopes)
    for (const auto& [name, v] : scope)
      if (v.exported && v.set && v.kind == Variable::Kind::scalar)
        out[name] = v.value;
      else
        out.erase(name);
  return out;
}

}  // namespace oomplan::launch
