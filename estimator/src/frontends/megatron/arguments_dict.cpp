// Megatron's arguments from a dict, and the lists that they may hold.
#include <algorithm>
#include <cctype>

#include <fmt/format.h>

#include "frontends/megatron/arguments.hpp"
#include "frontends/megatron/flag_table.hpp"
#include "frontends/megatron/value_limits.hpp"
#include "units/enums.hpp"
#include "units/json_text.hpp"

#include <nlohmann/json.hpp>

namespace oomplan::megatron {
namespace {

using Json = nlohmann::json;

/// What the flag's own type would have made of a value, or nothing.
bool belongs(const Flag& flag, const Json& value) {
  if (!flag.choices.empty() && value.is_string() &&
      std::find(flag.choices.begin(), flag.choices.end(), value.get<std::string>()) == flag.choices.end())
    return false;
  switch (flag.value) {
    case FlagValue::whole:
      return value.is_number_integer();
    case FlagValue::number:
      return value.is_number();
    case FlagValue::pattern:
      return value.is_number_integer() || value.is_array();
    case FlagValue::text:
      return value.is_string();
    default:
      return value.is_boolean();
  }
}

/// A Python list of whole numbers: sums and multiples of bracketed ones.
class ListReader {
 public:
  ListReader(std::string_view text, std::size_t most) : text_(text), most_(most) {}

  std::optional<Json> run() {
    auto list = sum();
    if (!list || !text_.empty()) return std::nullopt;
    return Json(*list);
  }

 private:
  using List = std::optional<std::vector<std::int64_t>>;

  bool take(char c) {
    if (!text_.starts_with(c)) return false;
    text_.remove_prefix(1);
    return true;
  }
  std::optional<std::int64_t> number() {
    std::size_t n = 0;
    while (n < text_.size() && std::isdigit(static_cast<unsigned char>(text_[n])) != 0) ++n;
    if (n == 0 || n > 9) return std::nullopt;
    const std::int64_t value = std::stoll(std::string(text_.substr(0, n)));
    text_.remove_prefix(n);
    return value;
  }
  List sum() {
    if (++depth_ > 64) return std::nullopt;
    List out = product();
    while (out && take('+')) {
      const List more = product();
      if (!more) return std::nullopt;
      out->insert(out->end(), more->begin(), more->end());
      if (out->size() > most_) return std::nullopt;
    }
    --depth_;
    return out;
  }
  List product() {
    List out = atom();
    while (out && take('*')) {
      const auto times = number();
      if (!times || out->size() * static_cast<std::size_t>(*times) > most_) return std::nullopt;
      const std::vector<std::int64_t> once = *out;
      out->clear();
      if (once.empty()) continue;  // however often
      for (std::int64_t i = 0; i < *times; ++i) out->insert(out->end(), once.begin(), once.end());
    }
    return out;
  }
  List atom() {
    if (take('(')) {
      List inside = sum();
      return inside && take(')') ? inside : std::nullopt;
    }
    if (!take('[')) return std::nullopt;
    std::vector<std::int64_t> out;
    while (!take(']')) {
      const auto n = number();
      if (!n) return std::nullopt;
      out.push_back(*n);
      if (!take(',') && !text_.starts_with(']')) return std::nullopt;
    }
    return out;
  }

  std::string_view text_;
  std::size_t most_;
  int depth_ = 0;
};

}  // namespace

std::optional<Json> pattern_of(std::string_view text, std::size_t most) {
  std::string dense(text);
  std::erase_if(dense, [](unsigned char c) { return std::isspace(c) != 0; });
  if (dense.find('[') != std::string::npos) return ListReader(dense, most).run();
  if (dense.empty() || dense.size() > 9 ||
      !std::all_of(dense.begin(), dense.end(), [](unsigned char c) { return std::isdigit(c) != 0; }))
    return std::nullopt;
  return Json(std::stoll(dense));
}

Arguments read_dict(const Json& arguments, Complaints& complaints) {
  Arguments out;
  if (!arguments.is_object()) {
    complaints.add("", "no map", "Megatron's arguments by name", "");
    return out;
  }
  for (const auto& [key, given] : arguments.items()) {
    std::string name = key;
    std::replace(name.begin(), name.end(), '-', '_');
    const Flag* const flag = flag_named(name);
    if (flag == nullptr) {
      std::vector<std::string> names;
      for (const Flag& f : flags()) names.push_back(f.name);
      const std::string near = nearest(name, names);
      complaints.note(Note::Level::warning, key,
                      fmt::format("not an argument of Megatron {}: taken as without effect on memory{}", kVersion,
                                  near.empty() ? "" : fmt::format("; did you mean {}?", near)));
      continue;
    }
    if (given.is_null()) continue;
    Json value = given;
    if (flag->value == FlagValue::pattern && value.is_string()) value = pattern_of(value.get<std::string>()).value_or(Json());
    const bool list = value.is_array() && !flag->many.empty();
    const bool right = list ? std::all_of(value.begin(), value.end(), [&](const Json& item) { return belongs(*flag, item); })
                            : belongs(*flag, value);
    const bool bounded =
        !right || (list ? std::all_of(value.begin(), value.end(), [&](const Json& item) { return within_limits(*flag, item); })
                        : within_limits(*flag, value));
    if (!bounded)
      complaints.add(key, json_text(given, -1), limits_text(*flag), "");
    else if (right)
      out.set(name, !flag->many.empty() && !list ? Json::array({value}) : value, key);
    else
      complaints.add(key, json_text(given, -1), flag->choices.empty() ? "a value of the argument's type" : list_of(flag->choices),
                     "");
  }
  return out;
}

}  // namespace oomplan::megatron
