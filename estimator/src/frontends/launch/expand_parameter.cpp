// ${...} becomes text (Bash Reference Manual 5.2, 3.5.3).
#include <algorithm>
#include <cctype>

#include <fmt/format.h>

#include "frontends/launch/evaluator.hpp"
#include "frontends/launch/parser.hpp"
#include "frontends/launch/pattern.hpp"
#include "frontends/launch/quote.hpp"

namespace oomplan::launch {
namespace {

using Operator = Parameter::Operator;

Text number_text(std::size_t n) { return text_of(fmt::format("{}", n)); }

}  // namespace

/// The value, through ${!name} where it is asked for; nullopt: not set.
std::optional<Text> Evaluator::parameter_value(const Parameter& p) {
  std::string name = p.name;
  if (p.indirect) {
    const std::optional<Text> target = p.subscript ? element_if_set(name, *p.subscript) : value_if_set(name);
    if (!target) return std::nullopt;
    if (const std::optional<char32_t> open = first_unknown(*target)) return Text(1, *open);
    name = bytes_of(*target);
    if (const std::size_t bracket = name.find('['); bracket != std::string::npos && name.ends_with(']'))
      return element_if_set(name.substr(0, bracket), name.substr(bracket + 1, name.size() - bracket - 2));
    return value_if_set(name);
  }
  return p.subscript ? element_if_set(name, *p.subscript) : value_if_set(name);
}

Evaluator::Texts Evaluator::parameter_list(const Parameter& p) {
  if (p.op == Operator::names) {
    Texts out;
    std::map<std::string, bool> found;
    for (const auto& [name, value] : input_.environment) found[name] = !state_.erased.contains(name);
    for (const auto& scope : state_.scopes)
      for (const auto& [name, v] : scope) found[name] = v.set;
    for (const auto& [name, is_set] : found)
      if (is_set && name.starts_with(p.name)) out.push_back(text_of(name));
    return out;
  }
  const bool positional = p.name == "@" || p.name == "*";
  Texts out = positional ? state_.positional : elements_of(p.name, p.op == Operator::keys);
  if (p.op == Operator::none || p.op == Operator::keys || p.op == Operator::otherwise || p.op == Operator::alternative ||
      p.op == Operator::assign || p.op == Operator::require)
    return out;
  if (p.op == Operator::substring) {
    if (positional) out.insert(out.begin(), text_of(sources_.front()));
    std::int64_t from = calculated(joined_text(p.operand));
    const auto size = static_cast<std::int64_t>(out.size());
    const Variable* v = positional ? nullptr : state_.find(p.name);
    const bool indexed = v != nullptr && v->kind == Variable::Kind::indexed && !v->elements.empty();
    if (from < 0) from += indexed ? v->elements.rbegin()->first + 1 : size;
    if (from < 0) return {};
    if (indexed) from = std::distance(v->elements.begin(), v->elements.lower_bound(from));  // offsets are subscripts there
    const std::int64_t count = p.second ? calculated(joined_text(*p.second)) : size;
    if (count < 0 || from >= size) return {};
    return {out.begin() + from, out.begin() + std::min(size, count > size ? size : from + count)};
  }
  for (Text& text : out) text = changed(p, std::move(text));
  return out;
}

void Evaluator::add_parameter(const Parameter& p, std::vector<Field>& fields, bool quoted, bool split) {
  if (p.op == Operator::wrong) {
    note(Note::Level::warning, fmt::format("{}: bad substitution, where bash ends the script", p.written));
    return end_script(1);
  }
  if (p.indirect && p.op == Operator::none) {  // name='array[@]'
    const std::string target = bytes_of(value_if_set(p.name).value_or(Text()));
    if (target.ends_with("[@]") || target.ends_with("[*]") || target == "@" || target == "*") {
      Parameter whole;
      whole.name = target.size() == 1 ? target : target.substr(0, target.size() - 3);
      whole.all = target[target.size() == 1 ? 0 : target.size() - 2];
      return add_list(parameter_list(whole), whole.all, fields, quoted, split);
    }
    if (quoted) fields.back().kept = true;
  }
  const bool list = p.all != 0 && p.op != Operator::length;
  const auto is_there = [&]() -> bool {
    if (list) {
      const Texts all = parameter_list(p);
      return !all.empty() && !(p.also_empty && all.size() == 1 && as_bash(all[0]).empty());
    }
    const std::optional<Text> value = parameter_value(p);
    if (!value) {
      rests_on_.push_back(p.name);
      return false;
    }
    return !p.also_empty || !as_bash(*value).empty() || is_open(*value, unknowns_);
  };
  switch (p.op) {
    case Operator::otherwise:
      if (!is_there()) return add_pieces(p.operand.pieces, fields, quoted, !quoted);
      break;
    case Operator::alternative:
      if (is_there()) add_pieces(p.operand.pieces, fields, quoted, !quoted);
      return;
    case Operator::assign:
      if (!is_there()) {
        const Text value = joined_text(p.operand);
        if (p.subscript)
          set_element(p.name, bytes_of(joined_text(*p.subscript)), value, false);
        else
          set(p.name, value);
        return add_text(fields, value, quoted, true);
      }
      break;
    case Operator::require:
      if (!is_there()) {
        std::string why = bytes_of(joined_text(p.operand));
        return add_text(fields,
                        unknown_text(Unknown::Kind::unset, p.name, why.empty() ? "the script requires it" : std::move(why)),
                        quoted, true);
      }
      break;
    default:
      break;
  }
  if (list) return add_list(parameter_list(p), p.all, fields, quoted, split);
  add_text(fields, parameter_text(p), quoted, true);
}

Text Evaluator::parameter_text(const Parameter& p) {
  if (p.op == Operator::length) {
    if (p.all != 0)
      return number_text(p.name == "@" || p.name == "*" ? state_.positional.size() : elements_of(p.name, false).size());
    const Text value = as_bash(parameter_value(p).value_or(Text()));
    if (const std::optional<char32_t> open = first_unknown(value)) return Text(1, *open);
    return number_text(value.size());
  }
  std::optional<Text> value = parameter_value(p);
  if (!value) {
    // an element that an array does not have is empty; a name that nobody set is asked for
    if (p.subscript && is_array(p.name) && state_.sourced_in_vain.empty()) return {};
    if (const Variable* v = state_.find(p.name); v != nullptr && v->kind != Variable::Kind::scalar && !p.indirect) return {};
    return unset_text(p.name);
  }
  return changed(p, std::move(*value));
}

Text Evaluator::changed(const Parameter& p, Text value) {
  switch (p.op) {
    case Operator::substring:
      return substring(p, value);
    case Operator::transform:
      return transformed(p, value);
    case Operator::cut_front:
    case Operator::cut_front_most:
    case Operator::cut_back:
    case Operator::cut_back_most: {
      const Text pattern = pattern_text(p.operand);
      if (const std::optional<char32_t> open = first_unknown(value)) return Text(1, *open);
      if (const std::optional<char32_t> open = first_unknown(pattern)) return is_unset(*open) ? value : Text(1, *open);
      const bool front = p.op == Operator::cut_front || p.op == Operator::cut_front_most;
      const bool most = p.op == Operator::cut_front_most || p.op == Operator::cut_back_most;
      const auto n = front ? matched_front(value, pattern, most, budget_) : matched_back(value, pattern, most, budget_);
      if (!n) return value;
      return front ? value.substr(*n) : value.substr(0, value.size() - *n);
    }
    case Operator::replace:
    case Operator::replace_all:
    case Operator::replace_front:
    case Operator::replace_back:
      return replaced(p, value);
    case Operator::upper:
    case Operator::upper_first:
    case Operator::lower:
    case Operator::lower_first:
      return letters(p, value);
    default:
      return value;
  }
}

/// In a replacement & is what was matched (bash 5.2).
Text Evaluator::with_match(const Parameter& p, const Text& by, const Text& match) const {
  Text out;
  for (std::size_t i = 0; i < by.size(); ++i) {
    const bool quoted = !p.in_quotes && is_quoted(by[i]);
    if (p.in_quotes && byte_of(by[i]) == '\\' && i + 1 < by.size() && byte_of(by[i + 1]) == '&')
      out += by[++i];
    else if (byte_of(by[i]) == '&' && !quoted)
      out += match;
    else
      out += by[i];
  }
  return plain(out);
}

Text Evaluator::replaced(const Parameter& p, const Text& value) {
  const Text pattern = pattern_text(p.operand);
  const Text by = p.second ? pattern_text(*p.second) : Text();
  if (pattern.empty() && p.op != Operator::replace_front && p.op != Operator::replace_back) return value;
  if (const std::optional<char32_t> open = first_unknown(value)) return Text(1, *open);
  if (const std::optional<char32_t> open = first_unknown(pattern)) return is_unset(*open) ? value : Text(1, *open);
  if (p.op == Operator::replace_back) {
    const auto n = matched_back(value, pattern, true, budget_);
    return n ? value.substr(0, value.size() - *n) + with_match(p, by, value.substr(value.size() - *n)) : value;
  }
  Text out;
  for (std::size_t at = 0; at <= value.size();) {
    const auto n = matched_front(value.substr(at), pattern, true, budget_);
    budget_.spend(static_cast<std::int64_t>(value.size() / 16) + 1);
    const bool found = n && (*n > 0 || p.op == Operator::replace_front);
    if (found) {
      out += with_match(p, by, value.substr(at, *n));
      budget_.text(out.size());
      at += *n;
      if (p.op != Operator::replace_all) return out + value.substr(at);
      if (*n > 0) continue;
    }
    if (p.op == Operator::replace_front || at >= value.size()) return out + value.substr(at);
    out += value[at++];
  }
  return out;
}

Text Evaluator::substring(const Parameter& p, const Text& value) {
  std::int64_t from = 0, count = 0;
  try {
    from = calculated(joined_text(p.operand));
    count = p.second ? calculated(joined_text(*p.second)) : 0;
  } catch (const NeedsUnknown& e) {
    return Text(1, e.unit);
  }
  if (const std::optional<char32_t> open = first_unknown(value)) return Text(1, *open);
  const auto size = static_cast<std::int64_t>(value.size());
  if (from < 0) from += size;
  if (from < 0 || from > size) return {};
  std::int64_t to = size;
  if (p.second) to = count < 0 ? size + count : count > size ? size : from + count;
  to = std::min(to, size);
  return to <= from ? Text() : value.substr(static_cast<std::size_t>(from), static_cast<std::size_t>(to - from));
}

Text Evaluator::letters(const Parameter& p, const Text& value) {
  const Text pattern = pattern_text(p.operand);
  Text out = value;
  const bool first = p.op == Operator::upper_first || p.op == Operator::lower_first;
  const bool upper = p.op == Operator::upper || p.op == Operator::upper_first;
  if (const std::optional<char32_t> open = first_unknown(value)) return is_unset(*open) ? value : Text(1, *open);
  for (std::size_t i = 0; i < out.size() && (!first || i == 0); ++i) {
    if (!pattern.empty() && matches(out.substr(i, 1), pattern, budget_) != Match::yes) continue;
    const auto c = static_cast<unsigned char>(byte_of(out[i]));
    out[i] = unit_of(static_cast<char>(upper ? std::toupper(c) : std::tolower(c)));
  }
  return out;
}

Text Evaluator::transformed(const Parameter& p, const Text& value) {
  const std::string how = bytes_of(joined_text(p.operand));
  if (const std::optional<char32_t> open = first_unknown(value)) return Text(1, *open);
  if (how == "Q") return text_of(quoted_word(bytes_of(value)));
  Parameter same = p;
  same.operand = {};
  same.op = how == "U" ? Operator::upper : how == "u" ? Operator::upper_first : how == "L" ? Operator::lower : Operator::none;
  if (same.op != Operator::none) return letters(same, value);
  return unknown_text(Unknown::Kind::outside, p.written);
}

}  // namespace oomplan::launch
