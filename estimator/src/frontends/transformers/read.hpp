// Reads what a trainer of TRL or Transformers is given: a command of flags, a YAML or JSON file of the same arguments (TRL's
// --config, TrainingArguments.to_dict()), or both, and what starts it on how many GPUs.
//
//     words + file --read--> values over the release's defaults --meaning--> facts --job--> roles and settings of a Job
//
// Files that arguments name are read into the tree in their place: root.at("deepspeed.zero_optimization.stage"),
// root.at("fsdp_config.version"); what accelerate is told stands below "accelerate".
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <oomplan/oomplan.hpp>

#include "frontends/compose/node.hpp"
#include "frontends/transformers/accelerate.hpp"
#include "frontends/transformers/schema.hpp"

namespace oomplan::transformers {

/// The processes of a run. 0: nobody says.
struct World {
  std::int64_t nodes = 0, per_node = 0;
  bool distributed = false;  ///< a process a GPU; otherwise one process
  Place place;
  std::int64_t gpus() const { return nodes * per_node; }
};

struct HfText {
  Release release;
  bool release_stated = false;
  const TrainerRow* trainer = nullptr;
  bool cli = false;       ///< `trl sft`: its own script, which takes no other arguments
  bool has_file = false;  ///< a file of arguments is the text
  compose::Node given;    ///< of the file and the words
  compose::Node root;     ///< over the release's defaults
  Launcher launcher;
  World world;
  std::string gpu;                ///< kind, in our spelling; "": nobody says
  std::vector<Problem> problems;  ///< the trainer would not start
  std::vector<Note> notes;

  bool trl() const { return trainer->config != "TrainingArguments"; }
  bool says(std::string_view path) const { return given.at(path) != nullptr; }
};

/// Is a file with these keys at its left edge one of arguments?
bool is_arguments(const std::vector<std::string>& keys);
/// The keys at the top of a JSON object in a text; empty: it is none.
std::vector<std::string> keys_of_json(std::string_view text);

/// Throws InputError when the text is no YAML or no release is meant; everything else is collected in `problems`.
HfText read_arguments_of(const Source&);

}  // namespace oomplan::transformers
