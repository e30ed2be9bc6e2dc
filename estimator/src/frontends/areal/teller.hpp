// Writes AReaL's facts down from a configuration's tree.
#pragma once
#include <string_view>

#include "frontends/areal/meaning.hpp"
#include "frontends/telling.hpp"

namespace oomplan::areal {

using oomplan::value_of;

class Teller : public Telling {
 public:
  Teller(const compose::Node& root, Meaning& out) : Telling(root, out.facts, "AReaL's code"), out_(out) {}

  Meaning& out() { return out_; }
  const Meaning& out() const { return out_; }
  bool since(std::string_view release) const { return out_.release >= release_named(release); }

 private:
  Meaning& out_;
};

}  // namespace oomplan::areal
