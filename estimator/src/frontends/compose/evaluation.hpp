// Evaluates the interpolations of one text, seen from one place of the tree.
#pragma once
#include <string>
#include <vector>

#include "frontends/compose/lookup.hpp"

namespace oomplan::compose {

class Evaluation {
 public:
  /// `node` is where the text stands; relative keys start at its container.
  Evaluation(Lookup& lookup, const Node& node) : lookup_(lookup), node_(node) {}

  /// One link alone keeps the type of its value; everything else becomes text.
  Found text(const Text& pieces);

 private:
  Found link(const Interpolation& link);
  Found key_of(const Text& words);
  Found path(const std::string& key);
  Found relative(std::string key, bool stop_at_missing);
  Found argument(const Argument& argument);
  Found container_argument(const Argument& argument);
  Found resolver(const std::string& name, const std::vector<Node>& arguments);
  Found environment(const std::vector<Node>& arguments);
  Found select(const std::vector<Node>& arguments);
  Found decode(const std::vector<Node>& arguments);
  Found create(const std::vector<Node>& arguments);
  Found deprecated(const std::vector<Node>& arguments);
  Found dictionary(const std::vector<Node>& arguments, bool keys);

  Found value(Node node);
  static Found broken(std::string why);
  const Node& container() const;

  Lookup& lookup_;
  const Node& node_;
};

}  // namespace oomplan::compose
