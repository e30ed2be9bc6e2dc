// A job that somebody describes by a few words, for every door that takes one: the source in a framework's words, and what was
// assumed.
#pragma once
#include <optional>
#include <string>

#include <oomplan/oomplan.hpp>

#include "frontends/start.hpp"

namespace oomplan {

struct Described {
  std::optional<Source> source;  ///< in a framework's words; nothing: the job is one of our own job file
  Job job;
  std::string told;  ///< "grpo of Qwen/Qwen2.5-7B by areal 2.0.0; assumed: 1,024 tokens a prompt"
};

/// `framework` "": AReaL, of one GPU our own job file. Throws InputError.
Described described(const std::string& framework, const StartAsked&, const Catalog&);

/// The same of a JSON object: {"model": "qwen-7b", "gpus": 8, "gpu": "H100-80GB", "nodes": 1, "framework": "areal", "release":
/// "2.0.0", "algorithm": "grpo", "prompt_tokens": 1024, "response_tokens": 8192, "samples": 8, "batch": 128, "lora": 16,
/// "reference": true}; all but model and gpus may be left out. Throws InputError with all that is wrong.
Described described(const std::string& json, const Catalog&);

}  // namespace oomplan
