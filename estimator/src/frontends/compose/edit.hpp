// Changes of a tree as OmegaConf makes them: a file merged over another, a key set, added or deleted.
//
// In struct mode, which Hydra sets before it applies overrides, a key that is not there cannot be set. What OmegaConf refuses is
// told as a problem.
#pragma once
#include <string>
#include <vector>

#include "frontends/compose/resolve.hpp"

namespace oomplan::compose {

class Editor {
 public:
  Editor(Node& root, const Environment& environment, std::vector<Problem>& problems)
      : root_(root), environment_(environment), problems_(problems) {}

  /// Maps are merged, lists replaced, `???` changes nothing; merged over an interpolation that leads to a map, its copy is
  /// changed.
  void merge(const Node& from);
  enum class Mode { set, add };  ///< add: keys need not exist
  /// Sets the value of a dotted key; maps and lists are merged into what is there if `merged`.
  bool update(const std::string& key, Node value, Mode mode, bool merged);
  bool remove(const std::string& key);

  /// With struct mode keys of `merge` must exist, too.
  void set_struct(bool on) { struct_ = on; }

 private:
  void merge_map(Node& into, const Node& from, const std::string& path, bool open);
  void merge_entry(Node& into, const Entry& entry, const std::string& path, bool open);
  void copy_target(Node& interpolation);
  void tell(const Node& at, std::string path, std::string found, std::string expected, std::string why);
  /// `rest`: what was typed behind the key that is not there.
  void tell_unknown(const Node& where, const Node& at, const std::string& path, const std::string& key,
                    const std::string& rest = {});
  Node* step(Node& from, const std::string& key, const std::string& path, const std::string& rest, const Node& value, bool open);

  Node& root_;
  const Environment& environment_;
  std::vector<Problem>& problems_;
  bool struct_ = false;
  int targets_ = 0;
};

}  // namespace oomplan::compose
