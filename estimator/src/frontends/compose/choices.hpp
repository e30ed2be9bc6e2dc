// Which option every config group has: chosen by overrides of the command line, by "override group: option" in defaults lists,
// and what the lists themselves say. As the class Overrides of hydra/_internal/defaults_list.py (Hydra 1.3.2).
#pragma once
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "frontends/compose/default.hpp"
#include "frontends/compose/files.hpp"
#include "frontends/compose/override.hpp"

namespace oomplan::compose {

class Choices {
 public:
  /// Sorts the overrides into values, choices, additions and deletions of groups.
  Choices(Repository& files, const std::vector<Override>& overrides, std::vector<Problem>& problems);

  std::vector<Override> take_values() { return std::move(values_); }
  const std::vector<Default>& appended() const { return appended_; }

  /// "override group: option" in the list of `config`; the first one, and the command line before all, wins.
  void override_in_list(const std::string& config, const Default& element);
  /// Gives the element the option that was chosen for it elsewhere.
  void apply(Default& element);
  /// Whether "~group" takes the element out.
  bool takes_out(const Default& element);
  /// Remembers what is chosen; two different options of one group are a problem.
  void remember(const Default& element);
  const std::map<std::string, std::optional<std::string>>& known() const { return known_; }

  /// Tells choices and deletions that met no element.
  void tell_unused();

 private:
  struct Chosen {
    Default value;       ///< option or options
    bool typed = false;  ///< on the command line
    std::string config;  ///< or in the list of this file
    bool used = false;
  };
  struct Deletion {
    std::optional<std::string> option;
    bool used = false;
  };
  void read(Repository& files, const Override& given);

  std::vector<Problem>& problems_;
  std::vector<Override> values_;
  std::vector<Default> appended_;
  std::map<std::string, Chosen> chosen_;
  std::map<std::string, Deletion> deletions_;
  std::map<std::string, std::optional<std::string>> known_;
  std::map<std::string, std::set<std::string>> known_by_group_;
};

}  // namespace oomplan::compose
