#include "frontends/areal/teller.hpp"

#include <algorithm>
#include <utility>

namespace oomplan::areal {

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

bool Teller::has(std::string_view path) const {
  const Node* n = at(path);
  return n != nullptr && n->kind != Node::Kind::null && n->kind != Node::Kind::missing;
}

bool Teller::flag(std::string_view path, bool otherwise) const {
  const Node* n = at(path);
  return n != nullptr && n->kind == Node::Kind::boolean ? n->boolean : otherwise;
}

std::int64_t Teller::whole(std::string_view path, std::int64_t otherwise) const {
  const Node* n = at(path);
  return n != nullptr && n->kind == Node::Kind::integer ? n->integer : otherwise;
}

double Teller::real(std::string_view path, double otherwise) const {
  const Node* n = at(path);
  if (n == nullptr) return otherwise;
  return n->kind == Node::Kind::real ? n->real : n->kind == Node::Kind::integer ? static_cast<double>(n->integer) : otherwise;
}

std::string Teller::text(std::string_view path, std::string otherwise) const {
  const Node* n = at(path);
  return n != nullptr && n->kind == Node::Kind::text ? n->text : otherwise;
}

void Teller::put(std::string key, FactValue value, ToldBy by, std::string where, Origin origin) {
  out_.facts.push_back({std::move(key), std::move(value), by, std::move(where), std::move(origin)});
}

void Teller::take(std::string key, std::string_view path, std::optional<FactValue> otherwise, std::string_view why) {
  if (const Node* n = at(path)) return made(std::move(key), value_of(*n), path);
  if (otherwise) code(std::move(key), std::move(*otherwise), why);
}

void Teller::made(std::string key, FactValue value, std::string_view path) {
  const Node* n = at(path);
  if (n == nullptr) return;
  const ToldBy by = told_by(*n);
  put(std::move(key), std::move(value), by, by == ToldBy::defaults ? n->origin.source : std::string(path), n->origin);
}

void Teller::code(std::string key, FactValue value, std::string_view where) {
  put(std::move(key), std::move(value), ToldBy::code, std::string(where),
      {Origin::Kind::derived, {}, "AReaL's code", std::string(where)});
}

void Teller::derived(std::string key, FactValue value, std::string_view where, std::string_view from) {
  const Node* n = from.empty() ? nullptr : at(from);
  Origin origin = n != nullptr ? n->origin : Origin{Origin::Kind::derived, {}, {}, std::string(where)};
  put(std::move(key), std::move(value), ToldBy::derived, std::string(where), std::move(origin));
}

const Fact* Meaning::find(std::string_view key) const {
  const auto it = std::find_if(facts.begin(), facts.end(), [&](const Fact& f) { return f.key == key; });
  return it == facts.end() ? nullptr : &*it;
}

std::string_view word(ToldBy by) {
  constexpr std::string_view kWords[] = {"explicit", "interpolated", "default", "code", "derived"};
  return kWords[static_cast<int>(by)];
}

}  // namespace oomplan::areal
