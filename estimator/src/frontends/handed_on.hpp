// A file of one framework that starts the trainer of another: what it says is read in the other's words, and changes are written
// where the file keeps them, below a key of its own.
#pragma once
#include <functional>
#include <memory>
#include <string>

#include "frontends/words.hpp"

namespace oomplan {

struct HandedOn {
  Source source;      ///< the other's configuration, with its dialect
  std::string below;  ///< the file's key below which the other's keys stand: "training.verl_config_overrides"
  std::function<Place(const std::string& key)> place_of;                           ///< where the file says a key of the other's
  std::function<std::string(const std::string& path, const FactValue&)> argument;  ///< as the file's command line has it
  std::vector<Note> notes = {};
};

/// The words of `file`. Throws InputError, with places of the file.
std::unique_ptr<TextWords> words_handed_on(const Source& file, HandedOn (*make)(const Source&), const Catalog&);

}  // namespace oomplan
