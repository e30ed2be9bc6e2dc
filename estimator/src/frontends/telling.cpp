#include "frontends/telling.hpp"

#include <algorithm>
#include <utility>

#include <nlohmann/json.hpp>

namespace oomplan {

using compose::Node;

FactValue value_of(const Node& n) {
  switch (n.kind) {
    case Node::Kind::boolean:
      return n.boolean;
    case Node::Kind::integer:
      return n.integer;
    case Node::Kind::real:
      return n.real;
    case Node::Kind::text:
      return n.text;
    case Node::Kind::list: {
      FactValue out = FactValue::list();
      for (const auto& item : n.items) out.push_back(value_of(item));
      return out;
    }
    case Node::Kind::map: {
      FactValue out = FactValue::map();
      for (const auto& entry : n.entries) out[entry.key] = value_of(entry.value);
      return out;
    }
    default:
      return nullptr;
  }
}

namespace {

ToldBy told_by(const Node& n) {
  if (!n.via.empty()) return ToldBy::interpolated;
  return n.origin.kind == Origin::Kind::default_ ? ToldBy::defaults : ToldBy::stated;
}

}  // namespace

bool Telling::has(std::string_view path) const {
  const Node* n = at(path);
  return n != nullptr && n->kind != Node::Kind::null && n->kind != Node::Kind::missing;
}

bool Telling::flag(std::string_view path, bool otherwise) const {
  const Node* n = at(path);
  return n != nullptr && n->kind == Node::Kind::boolean ? n->boolean : otherwise;
}

std::int64_t Telling::whole(std::string_view path, std::int64_t otherwise) const {
  const Node* n = at(path);
  return n != nullptr && n->kind == Node::Kind::integer ? n->integer : otherwise;
}

double Telling::real(std::string_view path, double otherwise) const {
  const Node* n = at(path);
  if (n == nullptr) return otherwise;
  return n->kind == Node::Kind::real ? n->real : n->kind == Node::Kind::integer ? static_cast<double>(n->integer) : otherwise;
}

std::string Telling::text(std::string_view path, std::string otherwise) const {
  const Node* n = at(path);
  return n != nullptr && n->kind == Node::Kind::text ? n->text : otherwise;
}

void Telling::put(std::string key, FactValue value, ToldBy by, std::string where, Origin origin) {
  facts_.push_back({std::move(key), std::move(value), by, std::move(where), std::move(origin)});
}

void Telling::take(std::string key, std::string_view path, std::optional<FactValue> otherwise, std::string_view why) {
  if (const Node* n = at(path)) return made(std::move(key), value_of(*n), path);
  if (otherwise) code(std::move(key), std::move(*otherwise), why);
}

void Telling::made(std::string key, FactValue value, std::string_view path) {
  const Node* n = at(path);
  if (n == nullptr) return;
  const ToldBy by = told_by(*n);
  put(std::move(key), std::move(value), by, by == ToldBy::defaults ? n->origin.source : std::string(path), n->origin);
}

void Telling::code(std::string key, FactValue value, std::string_view where) {
  put(std::move(key), std::move(value), ToldBy::code, std::string(where),
      {Origin::Kind::derived, {}, std::string(code_), std::string(where)});
}

void Telling::derived(std::string key, FactValue value, std::string_view where, std::string_view from) {
  const Node* n = from.empty() ? nullptr : at(from);
  Origin origin = n != nullptr ? n->origin : Origin{Origin::Kind::derived, {}, {}, std::string(where)};
  put(std::move(key), std::move(value), ToldBy::derived, std::string(where), std::move(origin));
}

std::string_view word(ToldBy by) {
  constexpr std::string_view kWords[] = {"explicit", "interpolated", "default", "code", "derived"};
  return kWords[static_cast<int>(by)];
}

const ToldFact* find_fact(const std::vector<ToldFact>& facts, std::string_view key) {
  const auto it = std::find_if(facts.begin(), facts.end(), [&](const ToldFact& f) { return f.key == key; });
  return it == facts.end() ? nullptr : &*it;
}

namespace {

using Json = nlohmann::ordered_json;

Json json_of(const FactValue& v) {
  switch (v.kind()) {
    case FactValue::Kind::null:
      return nullptr;
    case FactValue::Kind::boolean:
      return v.boolean();
    case FactValue::Kind::integer:
      return v.integer();
    case FactValue::Kind::real:
      return v.real();
    case FactValue::Kind::text:
      return v.text();
    case FactValue::Kind::list: {
      Json out = Json::array();
      for (const auto& item : v.items()) out.push_back(json_of(item));
      return out;
    }
    case FactValue::Kind::map: {
      Json out = Json::object();
      for (std::size_t i = 0; i < v.keys().size(); ++i) out[v.keys()[i]] = json_of(v.items()[i]);
      return out;
    }
  }
  return nullptr;
}

}  // namespace

nlohmann::ordered_json facts_object(const std::vector<ToldFact>& facts) {
  Json out = Json::object();
  for (const auto& fact : facts) {
    Json* node = &out;
    std::size_t begin = 0;
    for (std::size_t dot = fact.key.find('.'); dot != std::string::npos; dot = fact.key.find('.', begin)) {
      node = &(*node)[fact.key.substr(begin, dot - begin)];
      begin = dot + 1;
    }
    (*node)[fact.key.substr(begin)] = {{"v", json_of(fact.value)}, {"o", word(fact.by)}, {"w", fact.where}};
  }
  return out;
}

}  // namespace oomplan
