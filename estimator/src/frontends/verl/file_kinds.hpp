// What a file of verl is: a job, by the module that would compose it, or a part of one.
#pragma once
#include <optional>
#include <string>
#include <string_view>

#include <oomplan/oomplan.hpp>

namespace oomplan::verl {

struct FileKind {
  std::string_view module;  ///< "verl.trainer.main_ppo"; empty: no job
  std::string_view what;    ///< of no job: "a file of one of verl's config groups, ..."
};
/// By its place in verl's repository where that is a config group's, else by keys at the left edge and by the name of a
/// configuration in its defaults list. nullopt: it is none of verl's.
std::optional<FileKind> kind_of_file(const Source&);

/// The part of a path that begins in verl's repository, "verl/trainer/config/..."; "": none.
std::string path_in_repository(const std::string& given);

}  // namespace oomplan::verl
