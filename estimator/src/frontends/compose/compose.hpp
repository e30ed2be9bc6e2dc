// A job's configuration as Hydra 1.3 and OmegaConf 2.3 compose it, from YAML files and the arguments behind a launch command.
// What is supported and what is refused: docs/compose.md.
//
//     Composed c = compose({"examples/math", "grpo", {"actor.optimizer.lr=1e-6"}, "", {}, files, environment});
//     Resolved r = resolve(c.root, environment);
//     const Node* lr = r.root.at("actor.optimizer.lr");   // lr->real, lr->origin.place, lr->via
//
// Between the two steps a front end puts the defaults of the framework's own classes under the tree (merge_over), because
// interpolations see them: OmegaConf.merge(structured, composed) in AReaL. Nothing is executed; no file is opened but through
// `files`, no environment read but `environment`. All problems are told at once; nothing is thrown for bad input.
#pragma once
#include <string>
#include <vector>

#include "frontends/compose/files.hpp"
#include "frontends/compose/override.hpp"
#include "frontends/compose/resolve.hpp"

namespace oomplan::compose {

struct Request {
  std::string folder;                  ///< of the primary config
  std::string config;                  ///< its name, without ".yaml"
  std::vector<std::string> overrides;  ///< as typed: "actor.optimizer.lr=1e-6"
  std::string working_folder;          ///< where relative paths of hydra.searchpath begin
  std::vector<std::string> search;     ///< further folders, looked into after the primary one and before hydra.searchpath
  Files files;
  Environment environment;
  DocumentStore* documents = nullptr;  ///< of whoever composes the same files more than once
};

struct Composed {
  Node root;                                   ///< a map; interpolations are not resolved
  std::vector<Problem> problems;               ///< the framework would not start
  std::vector<Problem> warnings;               ///< it would, but something is not as written
  std::map<std::string, std::string> choices;  ///< option of every config group
  std::vector<std::string> files;              ///< opened, in order
  std::vector<std::string> set_aside;          ///< overrides of Hydra's own node (hydra.run.dir=...), which change no memory
};
/// `hydra.compose(config_name, overrides)` with version_base=None.
Composed compose(const Request&);

/// One file and "key=value" arguments as OmegaConf reads them without Hydra: OmegaConf.merge(load(file),
/// from_dotlist(arguments)).
Composed load_with_dotlist(const std::string& text, const std::string& file, const std::vector<std::string>& arguments,
                           const Environment& environment);

/// OmegaConf.merge(under, over), with problems added: what a front end does with the defaults of the framework's classes.
Node merge_over(Node under, const Node& over, const Environment& environment, std::vector<Problem>& problems);

}  // namespace oomplan::compose
