// Reads what Oumi is given: a YAML file of it with arguments behind (OmegaConf.merge of the class, the file and the command line,
// src/oumi/core/configs/base_config.py: from_yaml_and_arg_list), and who runs it on how many GPUs.
//
//     file + arguments --read--> values over the release's defaults --meaning--> facts --job--> roles and settings of a Job
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <oomplan/oomplan.hpp>

#include "frontends/compose/node.hpp"
#include "frontends/oumi/schema.hpp"

namespace oomplan::oumi {

/// What a file is for, as its keys say.
enum class FileKind : std::uint8_t { training, inference, evaluation, judge, synthesis };

/// The processes of a run. 0: nobody says.
struct World {
  std::int64_t nodes = 0, per_node = 0;
  bool distributed = false;  ///< by torchrun or accelerate; otherwise one process
  Place nodes_place, place;  ///< of who says it
  std::int64_t gpus() const { return nodes * per_node; }
};

struct OumiText {
  Release release;
  bool release_stated = false;
  FileKind kind = FileKind::training;
  compose::Node given;  ///< of the file and what stands behind it
  compose::Node root;   ///< over the release's defaults
  World world;
  std::string gpu;                ///< kind, in our spelling; "": nobody says
  std::vector<Problem> problems;  ///< Oumi would not start
  std::vector<Note> notes;

  /// Does the file or the command line say it?
  bool says(std::string_view path) const { return given.at(path) != nullptr; }
};

/// Where a file of this kind has its model and engine: "", or "inference_config." of judges and of synthesis.
std::string_view inference_path(FileKind);
/// The class of a file of this kind.
std::string_view class_of(FileKind);
/// Nothing: it is no configuration of Oumi's, or one of its jobs.
std::optional<FileKind> kind_of(const std::vector<std::string>& keys, std::string_view text);

/// Throws InputError when the text is no YAML or the release is none of Oumi's; everything else is collected in `problems`.
OumiText read_oumi(const Source&);

}  // namespace oomplan::oumi
