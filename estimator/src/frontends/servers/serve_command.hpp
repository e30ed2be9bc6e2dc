// A real command line of a generation server, read as a job: `vllm serve org/model -tp 2 --max-model-len=32k`, `python -m
// sglang.launch_server --model-path org/model --tp 2`.
//
// Nothing is started. Flags that memory depends on become settings of a job whose places are the flags themselves, so that what
// is wrong is told by the user's own words. Flags that are not known are told with the nearest one that is.
#pragma once
#include <functional>
#include <map>
#include <optional>
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

/// What stands beside the command: what it cannot say.
struct ServeOptions {
  std::string version = {};  ///< of the engine; "": the newest that is known
  std::string gpu = {};      ///< kind of the GPUs; "": H100-80GB
  // in service: what is asked of all replicas together; 0: unstated
  std::int64_t requests = 0, prompt = 0, response = 0;
  std::int64_t samples = 0;  ///< responses to one prompt
  /// Text of the file that --config names; nullopt: there is none. Empty: no file is opened.
  std::function<std::optional<std::string>(const std::string& path)> open = {};
};

/// `words`: variables (NAME=value), the program and its arguments. Throws InputError with all that is wrong, contradicts itself
/// or is not supported yet.
ServeCommand read_serve_command(const std::vector<std::string>& words, const ServeOptions&, const Catalog&);

/// The words with `key` (a knob of the server, or tensor, pipeline, data, expert, all_experts) set to `value`: the flag's value
/// in place, or the flag behind them. Empty when the engine has no flag for it.
std::vector<std::string> with_flag(const ServeCommand&, std::string_view key, std::string_view value);
/// The words without the switches of these keys. What stood behind them moves.
std::vector<std::string> without_switches(const ServeCommand&, const std::vector<std::string>& keys);

}  // namespace oomplan
