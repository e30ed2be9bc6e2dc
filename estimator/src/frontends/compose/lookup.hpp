// Follows interpolations in a tree that stays as it is. The tree must outlive the Lookup and not change meanwhile.
#pragma once
#include <deque>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "frontends/compose/grammar.hpp"
#include "frontends/compose/resolve.hpp"

namespace oomplan::compose {

/// What an expression leads to.
struct Found {
  enum class Kind : std::uint8_t { value, absent, missing, unknown, broken, no_container };
  Kind kind = Kind::absent;
  const Node* node = nullptr;  ///< of a value: never an interpolation; belongs to the tree or to the Lookup
  std::string why;             ///< of what is unknown or broken
  std::vector<Link> via;
  bool linked = false;       ///< missing: at the end of an interpolation, not at the key itself
  std::string nearest = {};  ///< of what is absent: the key that was perhaps meant
};

class Lookup {
 public:
  Lookup(const Node& root, const Environment& environment);

  /// A node of the tree, with the interpolation that it may be followed.
  Found follow(const Node& node);
  /// A dotted key below `container`; `stop_at_missing`: "???" on the way is missing, otherwise no container.
  Found select(const Node& container, const std::string& key, bool stop_at_missing);
  /// A copy without interpolations. Cycles, depth and size are bounded; what fails is told in problems().
  Node build(const Found& found);

  std::vector<Problem>& problems() { return problems_; }
  /// Dotted; empty for the root and for what is not of the tree.
  std::string path_of(const Node& node);

 private:
  friend class Evaluation;
  struct Building {
    int levels = 0;
    std::vector<const Node*> open;
  };
  using Parents = std::unordered_map<const Node*, const Node*>;
  /// The container of every node but the root.
  const Parents& parents();
  void index(const Node& node);
  Found follow_link(const Node& node);
  Node build(const Node& node, Building& building);
  Node child(const Node& node, Building& building);
  Node fail(const Node& node, Node::Kind kind, const std::string& why, bool tell, std::string nearest = {});
  const Node* keep(Node node);
  /// Counts what is made; throws InputError when it is too much.
  void charge(std::size_t bytes);

  const Node& root_;
  const Environment& environment_;
  Parents parents_;  ///< filled when it is first asked for
  std::unordered_map<const Node*, Found> done_;
  std::unordered_set<const Node*> open_, told_;
  std::deque<Node> made_;
  std::vector<Problem> problems_;
  std::int64_t built_ = 0;
  std::size_t bytes_ = 0;
  int depth_ = 0;
  int levels_ = 0;  ///< of everything that is being built: interpolations may build what has interpolations in it
};

}  // namespace oomplan::compose
