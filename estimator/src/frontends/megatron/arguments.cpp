#include "frontends/megatron/arguments.hpp"

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>

#include <fmt/format.h>
#include <oomplan/units/errors.hpp>

#include "frontends/megatron/flag_table.hpp"
#include "frontends/megatron/value_limits.hpp"
#include "units/enums.hpp"

namespace oomplan::megatron {
namespace {

using Json = nlohmann::json;

std::optional<std::int64_t> whole_of(std::string_view text) {
  std::int64_t value = 0;
  if (text.starts_with('+')) text.remove_prefix(1);
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || text.empty()) return std::nullopt;
  return value;
}

std::optional<double> number_of(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || text.empty()) return std::nullopt;
  return value;
}

/// argparse takes a word in front of which a dash stands as a value when it is a number.
bool is_flag(std::string_view word) { return word.size() > 1 && word[0] == '-' && !number_of(word).has_value(); }

std::string kind_of(const Flag& flag) {
  if (!flag.choices.empty()) return list_of(flag.choices);
  switch (flag.value) {
    case FlagValue::whole:
      return "a whole number";
    case FlagValue::number:
      return "a number";
    case FlagValue::pattern:
      return "a whole number, or a list such as ([0]*3+[1]*58)";
    default:
      return "a value";
  }
}

/// One value; nullopt when it is none of the flag's.
std::optional<Json> value_of(const Flag& flag, const std::string& text) {
  if (!flag.choices.empty() && std::find(flag.choices.begin(), flag.choices.end(), text) == flag.choices.end())
    return std::nullopt;
  switch (flag.value) {
    case FlagValue::whole:
      if (const auto n = whole_of(text)) return Json(*n);
      return std::nullopt;
    case FlagValue::number:
      if (const auto n = number_of(text)) return Json(*n);
      return std::nullopt;
    case FlagValue::pattern:
      return pattern_of(text);
    case FlagValue::truth:
      return Json(!text.empty());
    default:
      return Json(text);
  }
}

class WordReader {
 public:
  WordReader(std::span<const std::string> words, Complaints& complaints) : words_(words), complaints_(complaints) {}

  Arguments run() {
    for (std::size_t i = 0; i < words_.size();) i = word(i);
    return std::move(out_);
  }

 private:
  std::size_t word(std::size_t i) {
    const std::string& text = words_[i];
    if (!is_flag(text)) {
      complaints_.add("", fmt::format("'{}'", text), "a flag", "Megatron's parser takes no other arguments");
      return i + 1;
    }
    const std::string written = text.substr(0, text.find('='));
    std::optional<std::string> attached;
    if (written.size() < text.size()) attached = text.substr(written.size() + 1);
    std::vector<std::string> behind;
    for (std::size_t k = i + 1; k < words_.size() && !is_flag(words_[k]); ++k) behind.push_back(words_[k]);
    const Flag* const flag = find(written);
    if (flag == nullptr) return i + 1 + (attached ? 0 : behind.size());
    if (!takes_value(*flag)) {
      if (attached) complaints_.add(written, fmt::format("'{}'", *attached), "nothing", "the flag is a switch");
      const bool value = flag->value == FlagValue::on || (flag->value == FlagValue::toggle && !is_negative(*flag, written));
      out_.set(flag->name, value, written);
      return i + 1;
    }
    std::size_t most = flag->many.empty() ? 1 : behind.size();
    if (const auto exact = whole_of(flag->many)) most = static_cast<std::size_t>(*exact);
    behind.resize(std::min(most, behind.size()));
    const std::vector<std::string> values = attached ? std::vector{*attached} : behind;
    take(*flag, written, values);
    return i + 1 + (attached ? 0 : values.size());
  }

  /// A toggle's second spelling.
  bool is_negative(const Flag& flag, const std::string& written) const {
    return flag.spellings.size() > 1 && written == flag.spellings[1];
  }

  const Flag* find(const std::string& written) {
    if (const Flag* const exact = find_flag(written)) return exact;
    std::string hyphens = written;
    std::replace(hyphens.begin(), hyphens.end(), '_', '-');
    if (const Flag* const other = find_flag(hyphens)) return odd(written, *other, hyphens);
    const Flag* only = nullptr;
    std::string long_form;
    int ways = 0;
    if (hyphens.starts_with("--") && hyphens.size() > 4)
      for (const Flag& flag : flags())
        for (const auto& s : flag.spellings)
          if (s.starts_with(hyphens)) only = &flag, long_form = s, ++ways;
    if (ways == 1) return odd(written, *only, long_form);
    unknown(written, hyphens, ways);
    return nullptr;
  }
  const Flag* odd(const std::string& written, const Flag& flag, const std::string& meant) {
    complaints_.note(Note::Level::warning, written,
                     fmt::format("read as {}; Megatron's own parser takes flags only as they are spelt in full", meant));
    return &flag;
  }

  /// A spelling next to a known one is a slip, which Megatron refuses too; anything else may be a flag of a fork.
  void unknown(const std::string& written, const std::string& hyphens, int ways) {
    std::vector<std::string> names;
    for (const Flag& flag : flags())
      for (const auto& s : flag.spellings) names.push_back(s);
    const std::string near = nearest(hyphens, names);
    if (ways > 1)
      complaints_.add(written, "an abbreviation of several flags", "a flag spelt in full", "", near);
    else if (!near.empty())
      complaints_.add(written, "an unknown flag", fmt::format("a flag of Megatron {}", kVersion),
                      "Megatron's parser ends the run at flags that it does not know", near);
    else
      complaints_.note(
          Note::Level::warning, written,
          fmt::format("not a flag of Megatron {}, whose parser would refuse it: taken as without effect on memory", kVersion));
  }

  void take(const Flag& flag, const std::string& written, const std::vector<std::string>& values) {
    out_.set(flag.name, *flag.otherwise, written);  // where the value is wrong, nothing else is said about it
    const auto exact = whole_of(flag.many);
    if (values.empty() && flag.many != "*") return complaints_.add(written, "nothing behind it", kind_of(flag), "");
    if (exact && values.size() != static_cast<std::size_t>(*exact))
      return complaints_.add(written, fmt::format("{} values", values.size()), fmt::format("{} values", *exact), "");
    Json list = Json::array();
    for (const auto& text : values) {
      auto value = value_of(flag, text);
      if (value && !within_limits(flag, *value))
        return complaints_.add(written, fmt::format("'{}'", text), limits_text(flag), "");
      if (!value) return complaints_.add(written, fmt::format("'{}'", text), kind_of(flag), "", nearest(text, flag.choices));
      list.push_back(std::move(*value));
    }
    out_.set(flag.name, flag.many.empty() ? list.front() : list, written);
  }

  std::span<const std::string> words_;
  Complaints& complaints_;
  Arguments out_;
};

}  // namespace

void Complaints::add(std::string where, std::string found, std::string expected, std::string why, std::string near) {
  problems.push_back({{file, 0, 0, std::move(where)}, std::move(found), std::move(expected), std::move(near), std::move(why)});
}
void Complaints::note(Note::Level level, const std::string& where, std::string text) {
  notes.push_back({level, {file, 0, 0, where}, std::move(text)});
}

bool Arguments::given(std::string_view name) const { return given_.find(name) != given_.end(); }
std::string Arguments::place(std::string_view name) const {
  const auto found = given_.find(name);
  return found == given_.end() ? spelling_of(name) : found->second.written;
}
const Json& Arguments::value(std::string_view name) const {
  const auto found = given_.find(name);
  if (found != given_.end()) return *found->second.value;
  const Flag* const flag = flag_named(name);
  if (flag == nullptr) throw Defect("no argument of Megatron: " + std::string(name));
  return *flag->otherwise;
}
bool Arguments::on(std::string_view name) const {
  const Json& v = value(name);
  if (v.is_boolean()) return v.get<bool>();
  if (v.is_number()) return v.get<double>() != 0;
  return v.is_string() ? !v.get<std::string>().empty() : !v.empty();
}
std::optional<std::int64_t> Arguments::whole(std::string_view name) const {
  const Json& v = value(name);
  return v.is_number_integer() ? std::optional(v.get<std::int64_t>()) : std::nullopt;
}
double Arguments::number(std::string_view name) const {
  const Json& v = value(name);
  return v.is_number() ? v.get<double>() : 0;
}
std::string Arguments::text(std::string_view name) const {
  const Json& v = value(name);
  return v.is_string() ? v.get<std::string>() : std::string();
}
std::vector<std::string> Arguments::items(std::string_view name) const {
  std::vector<std::string> out;
  const Json& v = value(name);
  const auto add = [&](const Json& item) { out.push_back(item.is_string() ? item.get<std::string>() : item.dump()); };
  if (v.is_array())
    for (const auto& item : v) add(item);
  else if (!v.is_null())
    add(v);
  return out;
}
bool Arguments::has(std::string_view name) const { return !value(name).is_null(); }
void Arguments::set(const std::string& name, const Json& value, std::string written) {
  given_[name] = {std::make_shared<const Json>(value), std::move(written)};
}

Arguments read_words(std::span<const std::string> words, Complaints& complaints) { return WordReader(words, complaints).run(); }

}  // namespace oomplan::megatron
