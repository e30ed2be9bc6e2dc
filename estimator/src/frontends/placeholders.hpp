// What a script leaves open, in words that a framework's reader gets: a placeholder for each, and the way back to its name.
#pragma once
#include <string>
#include <vector>

#include <oomplan/oomplan.hpp>

#include "frontends/launch/script.hpp"

namespace oomplan {

class Placeholders {
 public:
  Placeholders(const std::vector<launch::Unknown>& unknowns, std::string salt) : unknowns_(unknowns), salt_(std::move(salt)) {}
  std::string text(const launch::Text&);
  bool any() const { return !used_.empty(); }
  /// Variables that nobody set, and other unknowns that stand in the words.
  std::vector<launch::Unknown> used() const;
  /// The problems in the words of the script; why: which variable, and how to give it. False: none is about a placeholder.
  bool explain(std::vector<Problem>&) const;

 private:
  std::string name_of(std::size_t index) const;
  const std::vector<launch::Unknown>& unknowns_;
  std::string salt_;
  std::vector<std::size_t> used_;
};
bool has_placeholder(const std::string& text);
/// What holds placeholders reads as in the script; the second text is one of JSON.
std::string with_names(std::string text, const std::vector<launch::Unknown>&);
std::string json_with_names(const std::string& json, const std::vector<launch::Unknown>&);
/// How to give what is not known: "MODEL is not set; give it: MODEL=... oomplan ..., or --set MODEL=...".
std::string how_to_give(const launch::Unknown&);

}  // namespace oomplan
