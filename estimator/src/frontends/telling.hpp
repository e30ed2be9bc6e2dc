// What a framework's configuration means, fact by fact, before any of it is estimated. Every fact says who told it: the file, a
// link, the release's default, the framework's code.
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>
#include <oomplan/oomplan.hpp>

#include "frontends/compose/node.hpp"
#include "frontends/fact_value.hpp"

namespace oomplan {

/// Who tells a fact. `stated`: a literal of the file or the command line; `defaults`: the release's own configuration; `code`: no
/// key says it; `derived`: arithmetic on other facts.
enum class ToldBy : std::uint8_t { stated, interpolated, defaults, code, derived };
std::string_view word(ToldBy);

struct ToldFact {
  std::string key;  ///< "roles.actor.layout.dp"
  FactValue value;
  ToldBy by = ToldBy::code;
  std::string where;  ///< the key of the file, the place of the default, or the source that decides
  Origin origin;      ///< where the value can be edited; kind default_ or derived when nowhere
};
/// nullptr: none of that key.
const ToldFact* find_fact(const std::vector<ToldFact>&, std::string_view key);
/// Nested by the parts of the keys, each {"v": value, "o": who told it, "w": where}.
nlohmann::ordered_json facts_object(const std::vector<ToldFact>&);

/// A value of the tree as JSON; null for what is null, missing or not known.
FactValue value_of(const compose::Node&);

/// Writes facts down from a configuration's tree.
class Telling {
 public:
  /// `code`: who decides where no key does, "AReaL's code".
  Telling(const compose::Node& root, std::vector<ToldFact>& out, std::string_view code) : root_(root), facts_(out), code_(code) {}

  /// nullptr: the release has no such key.
  const compose::Node* at(std::string_view path) const { return root_.at(path); }
  bool knows(std::string_view path) const { return at(path) != nullptr; }
  /// Present and neither null nor missing.
  bool has(std::string_view path) const;
  bool flag(std::string_view path, bool otherwise = false) const;
  std::int64_t whole(std::string_view path, std::int64_t otherwise) const;
  double real(std::string_view path, double otherwise) const;
  std::string text(std::string_view path, std::string otherwise = {}) const;

  /// The value at `path` as it stands; `otherwise` by code when the release has no such key.
  void take(std::string key, std::string_view path, std::optional<FactValue> otherwise = std::nullopt,
            std::string_view why = "not in this version");
  /// A value made from the one at `path`, and told by the same.
  void made(std::string key, FactValue value, std::string_view path);
  void code(std::string key, FactValue value, std::string_view where);
  /// `from`: the key on which it rests most, for edits.
  void derived(std::string key, FactValue value, std::string_view where, std::string_view from = {});

 private:
  void put(std::string key, FactValue value, ToldBy by, std::string where, Origin origin);
  const compose::Node& root_;
  std::vector<ToldFact>& facts_;
  std::string_view code_;
};

}  // namespace oomplan
