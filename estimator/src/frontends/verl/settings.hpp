// Settings of a Job made from facts, each with the place of the key that it comes from.
#pragma once
#include <string>
#include <string_view>

#include "frontends/native.hpp"
#include "frontends/verl/meaning.hpp"

namespace oomplan::verl {

class VerlSettings {
 public:
  VerlSettings(const VerlText& text, const VerlMeaning& m, NativeText& out) : text_(text), m_(m), out_(out) {}

  bool since(std::string_view release) const { return text_.release >= release_named(release); }
  /// Where the fact can be edited.
  Place place(std::string_view fact) const;
  /// "" leaves the knob to its default.
  void set(std::string key, std::string value, std::string_view fact);
  void put(std::string key, std::string value, Origin origin);
  /// A value of a key of verl's.
  void set_at(std::string key, std::string value, std::string_view path);
  /// The fact's value as it is; null and missing facts set nothing.
  void copy(std::string key, std::string_view fact);
  void refuse(std::string_view fact, std::string what);
  void refuse_key(std::string_view path, std::string what);
  /// A value that verl itself does not run with.
  void fails(std::string_view path, std::string expected, std::string why);
  /// A value that verl itself asks for.
  void lacking(std::string_view fact, std::string expected);

 private:
  const VerlText& text_;
  const VerlMeaning& m_;
  NativeText& out_;
};

/// "bfloat16", "torch.bfloat16", "bf16": bf16.
std::string format_named(std::string_view);
/// "[parameters, optimizer]".
std::string offloaded(bool parameters, bool optimizer);

}  // namespace oomplan::verl
