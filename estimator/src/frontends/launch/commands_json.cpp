#include "frontends/launch/commands_json.hpp"

#include <algorithm>
#include <string_view>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "frontends/launch/parser.hpp"
#include "frontends/launch/quote.hpp"
#include "units/json_text.hpp"
#include "units/utf8.hpp"

namespace oomplan::launch {
namespace {

using Json = nlohmann::ordered_json;

const char* kind_name(Unknown::Kind kind) {
  switch (kind) {
    case Unknown::Kind::unset:
      return "unset";
    case Unknown::Kind::outside:
      return "outside";
    case Unknown::Kind::either:
      return "either";
  }
  return "";
}

Json word_json(const Text& text, const std::vector<Unknown>& unknowns) {
  if (is_known(text)) return bytes_of(text);
  Json parts = Json::array();
  std::string known;
  for (const char32_t unit : text) {
    if (!is_unknown(unit)) {
      known += byte_of(unit);
      continue;
    }
    if (!known.empty()) parts.push_back(std::exchange(known, {}));
    const Unknown& u = unknowns[index_of(unit)];
    parts.push_back({{kind_name(u.kind), u.name}});
  }
  if (!known.empty()) parts.push_back(known);
  return parts;
}

/// A word may have several lines, and nothing else that a terminal acts on.
std::string safe_lines(std::string_view text) {
  std::string out;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    out += printable(text.substr(at, end - at));
    if (end < text.size()) out += '\n';
    at = end + 1;
  }
  return out;
}

}  // namespace

std::string shown_text(const Text& text, const std::vector<Unknown>& unknowns) {
  std::string out;
  for (const char32_t unit : text) {
    if (!is_unknown(unit)) {
      out += byte_of(unit);
      continue;
    }
    const std::string& name = unknowns[index_of(unit)].name;
    out += is_name(name) ? fmt::format("${{{}}}", name) : name;
  }
  return out;
}

std::string commands_json(const ScriptReading& reading) {
  Json out;
  out["schema"] = "oomplan.commands/1";
  out["oomplan_version"] = OOMPLAN_VERSION;
  out["commands"] = Json::array();
  for (const Started& s : reading.started) {
    Json words = Json::array();
    for (const StartedWord& w : s.words)
      if (!w.vanishes) words.push_back(word_json(w.text, reading.unknowns));
    Json command{{"words", std::move(words)}, {"file", s.file}, {"line", s.line}};
    if (!s.condition.empty()) command["condition"] = s.condition;
    if (s.background) command["background"] = true;
    if (!s.outer.empty()) command["inside_of"] = word_json(s.outer.front().text, reading.unknowns);
    out["commands"].push_back(std::move(command));
  }
  out["notes"] = Json::array();
  for (const Note& n : reading.notes) out["notes"].push_back({{"file", n.place.file}, {"line", n.place.line}, {"text", n.text}});
  out["unset"] = Json::array();
  for (const Unknown& u : reading.unknowns)
    if (u.kind == Unknown::Kind::unset) out["unset"].push_back(u.name);
  if (reading.ended_at)
    out["ends"] = {
        {"line", reading.ended_at->line}, {"status", reading.status}, {"said", reading.said}, {"rests_on", reading.rests_on}};
  if (reading.broken) out["broken"] = to_text(*reading.broken);
  return json_text(out);
}

std::string commands_text(const ScriptReading& reading) {
  std::string out;
  for (const Started& s : reading.started) {
    std::vector<std::string> words;
    for (const StartedWord& w : s.words)
      if (!w.vanishes) words.push_back(shown_text(w.text, reading.unknowns));
    out += fmt::format("{}:{}{}{}\n  {}\n", s.file, s.line, s.background ? ", in the background" : "",
                       s.condition.empty() ? "" : ", if " + s.condition, command_text(words));
  }
  return safe_lines(out);
}

}  // namespace oomplan::launch
