// Settings of a Job, each with the place of the key of Oumi's that it comes from.
#pragma once
#include <string>
#include <string_view>

#include "frontends/native.hpp"
#include "frontends/oumi/read.hpp"

namespace oomplan::oumi {

class OumiSettings {
 public:
  OumiSettings(const OumiText& text, NativeText& out) : text_(text), out_(out) {}

  /// Where the value of a key can be edited.
  Origin origin(std::string_view path) const;
  Place place(std::string_view path) const { return origin(path).place; }
  /// Of what no key says.
  static Origin by_code(std::string source);
  void put(std::string key, std::string value, Origin origin);
  /// From now on what is put for "trainer" is this role's.
  void call_trainer(std::string role) { trainer_ = std::move(role); }
  /// The key's value as it is.
  void copy(std::string key, std::string_view path);
  void flag(std::string key, std::string_view path);
  void refuse(std::string_view path, std::string what);
  /// What needs no GPU of this job.
  void elsewhere(std::string_view path, std::string why);

 private:
  const OumiText& text_;
  NativeText& out_;
  std::string trainer_ = "trainer";
};

}  // namespace oomplan::oumi
