// A real command line of a generation server, read as a job: `vllm serve org/model -tp 2 --max-model-len=32k`, `python -m
// sglang.launch_server --model-path org/model --tp 2`.
//
// Nothing is started. Flags that memory depends on become settings of a job whose places are the flags themselves, so that what
// is wrong is told by the user's own words. Flags that are not known are told with the nearest one that is.
#pragma once
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include <oomplan/oomplan.hpp>

#include "catalog/catalog.hpp"

namespace oomplan {

struct ServeCommand {
  Reading reading;                           ///< a job of one role, "server"
  std::vector<std::string> words;            ///< as given, variables in front included
  std::map<std::string, std::size_t> place;  ///< of our key's flag in `words`
  EngineKind engine = EngineKind::vllm;
};

/// `words`: variables (NAME=value), the program and its arguments. `version` of the engine; "": the newest that is known. `gpu`:
/// kind of the GPUs. Throws InputError with all that is wrong or not supported yet.
ServeCommand read_serve_command(const std::vector<std::string>& words, std::string_view version, std::string_view gpu,
                                const Catalog&);

/// The words with `key` (a knob of the server) set to `value`: the flag's value in place, or the flag behind them. Empty when
/// the engine has no flag for it.
std::vector<std::string> with_flag(const ServeCommand&, std::string_view key, std::string_view value);

}  // namespace oomplan
