// What a script leaves open stands as a placeholder in the words that a framework's reader gets. Where reading fails at one, or
// the job depends on it, the variable is asked for by its name.
#include <algorithm>
#include <charconv>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "frontends/launch/parser.hpp"
#include "frontends/placeholders.hpp"
#include "units/json_text.hpp"

namespace oomplan {

using launch::Unknown;
using Json = nlohmann::ordered_json;

std::string Placeholders::name_of(std::size_t index) const { return fmt::format("unknown{}value{}", salt_, index); }

std::string Placeholders::text(const launch::Text& given) {
  std::string out;
  for (const char32_t unit : given) {
    if (!launch::is_unknown(unit)) {
      out += launch::byte_of(unit);
      continue;
    }
    const std::size_t index = launch::index_of(unit);
    if (std::find(used_.begin(), used_.end(), index) == used_.end()) used_.push_back(index);
    out += name_of(index);
  }
  return out;
}

std::vector<Unknown> Placeholders::used() const {
  std::vector<Unknown> out;
  for (const std::size_t index : used_) out.push_back(unknowns_[index]);
  return out;
}

namespace {

/// "${FOLDER}/names.sh may set it, and is not here": what is to be given is FOLDER.
std::string first_variable(const std::string& text) {
  const std::size_t begin = text.find("${"), end = text.find('}', begin);
  if (begin != 0 || end == std::string::npos) return {};
  const std::string name = text.substr(2, end - 2);
  return launch::is_name(name) ? name : std::string();
}

}  // namespace

std::string how_to_give(const Unknown& u) {
  const std::string where = u.line > 0 && u.file != "command line" ? fmt::format(" ({}:{})", u.file, u.line) : "";
  const bool variable = launch::is_name(u.name);
  const std::string folder = u.kind == Unknown::Kind::outside ? first_variable(u.why) : "";
  const std::string give = variable ? fmt::format("{0}=... oomplan ..., or --set {0}=...", folder.empty() ? u.name : folder) : "";
  if (u.kind == Unknown::Kind::outside && !variable) return fmt::format("`{}`{} is known only where it runs", u.name, where);
  if (u.kind == Unknown::Kind::outside)
    return fmt::format("{}{} is not known: {}; give it: {}", u.name, where, u.why.empty() ? "the shell sets it" : u.why, give);
  if (u.kind == Unknown::Kind::either)
    return fmt::format("{}{} depends on `{}`, which only the machine knows", u.name, where, u.why);
  if (!variable) return fmt::format("argument {} of the script{} is not given: oomplan ... {} ARGUMENTS", u.name, where, u.file);
  return fmt::format("{}{} is not set{}; give it: {}", u.name, where, u.why.empty() ? "" : " (" + u.why + ")", give);
}

namespace {

/// ${NAME}, $1, or the command whose output it is.
std::string as_written(const std::string& name) {
  if (launch::is_name(name)) return fmt::format("${{{}}}", name);
  return !name.empty() && name.find_first_not_of("0123456789") == std::string::npos ? "$" + name : name;
}

constexpr std::string_view kMark = "unknownvalue";

void name_in(Json& value, const std::vector<Unknown>& unknowns) {
  if (value.is_structured())
    for (Json& one : value) name_in(one, unknowns);
  if (value.is_string()) value = with_names(value.get<std::string>(), unknowns);
}

}  // namespace

bool has_placeholder(const std::string& text) { return text.find(kMark) != std::string::npos; }

std::string with_names(std::string text, const std::vector<Unknown>& unknowns) {
  for (std::size_t at = text.find(kMark); at != std::string::npos; at = text.find(kMark, at + 1)) {
    std::size_t index = 0;
    const char* const digits = text.data() + at + kMark.size();
    const auto [end, error] = std::from_chars(digits, text.data() + text.size(), index);
    if (error != std::errc{} || index >= unknowns.size()) continue;
    text.replace(at, static_cast<std::size_t>(end - text.data()) - at, as_written(unknowns[index].name));
  }
  return text;
}

std::string json_with_names(const std::string& json, const std::vector<Unknown>& unknowns) {
  Json all = Json::parse(json);
  name_in(all, unknowns);
  return json_text(all);
}

bool Placeholders::explain(std::vector<Problem>& problems) const {
  bool any = false;
  for (Problem& problem : problems) {
    std::string why;
    for (const std::size_t index : used_) {
      const std::string mark = name_of(index), shown = as_written(unknowns_[index].name);
      bool here = false;
      for (std::string* text : {&problem.found, &problem.expected, &problem.why, &problem.place.path, &problem.place.file})
        for (std::size_t at = text->find(mark); at != std::string::npos; at = text->find(mark, at + shown.size())) {
          text->replace(at, mark.size(), shown);
          here = true;
        }
      if (here) why += (why.empty() ? "" : "; ") + how_to_give(unknowns_[index]);
    }
    if (why.empty()) continue;
    any = true;
    problem.nearest.clear();
    if (problem.kind != ProblemKind::not_supported) problem.why = why;  // another value would not help
  }
  return any;
}

}  // namespace oomplan
