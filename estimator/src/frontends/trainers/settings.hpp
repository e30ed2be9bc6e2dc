// Settings of a Job, each with the place of the key of a configuration's tree that it comes from.
#pragma once
#include <string>
#include <string_view>

#include "frontends/compose/node.hpp"
#include "frontends/native.hpp"

namespace oomplan::trainers {

class TreeSettings {
 public:
  /// `code`: who decides where no key does, "TRL's code". REQUIRES: the tree and the text outlive this.
  TreeSettings(const compose::Node& root, NativeText& out, std::string code) : root_(root), out_(out), code_(std::move(code)) {}

  /// Where the value of a key can be edited; of the code where the tree has no such key.
  Origin origin(std::string_view path) const;
  /// From now on what is put for "trainer" is this role's.
  void call_trainer(std::string role) { trainer_ = std::move(role); }
  Place place(std::string_view path) const { return origin(path).place; }
  /// Of what no key says.
  Origin by_code(std::string source) const;
  /// Nothing is put for an empty value.
  void put(std::string key, std::string value, Origin origin);
  void put(std::string key, std::string value, std::string_view path) { put(std::move(key), std::move(value), origin(path)); }
  void refuse(std::string_view path, std::string what);

 private:
  const compose::Node& root_;
  NativeText& out_;
  std::string code_, trainer_ = "trainer";
};

}  // namespace oomplan::trainers
