// Writes facts down from a configuration's tree.
#pragma once
#include <optional>
#include <string>
#include <string_view>

#include "frontends/areal/meaning.hpp"

namespace oomplan::areal {

/// A value of the tree as JSON; null for what is null, missing or not known.
FactValue value_of(const compose::Node&);

class Teller {
 public:
  Teller(const compose::Node& root, Meaning& out) : root_(root), out_(out) {}

  Meaning& out() { return out_; }
  const Meaning& out() const { return out_; }
  bool since(std::string_view release) const { return out_.release >= release_named(release); }
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
  Meaning& out_;
};

}  // namespace oomplan::areal
