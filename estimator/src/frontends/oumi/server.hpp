// Oumi's engine VLLM, a server of one process with vLLM's LLM over all GPUs (src/oumi/inference/vllm_inference_engine.py), as a
// role that serves.
#pragma once
#include <string>
#include <string_view>

#include "frontends/oumi/job.hpp"
#include "frontends/oumi/settings.hpp"
#include "frontends/telling.hpp"

namespace oomplan::oumi {

/// What a job's maker knows already.
struct ServerGiven {
  const OumiText& text;
  const Beside& beside;
  std::string at;   ///< where the model stands: inference_path()
  std::string key;  ///< of the engine
  std::int64_t gpus = 1;
  std::string_view vllm;  ///< release
};
/// Settings of the role "server".
void put_server(const ServerGiven&, const Telling&, OumiSettings&, NativeText& out, std::vector<Note>& notes);

/// Does the file ask lm-evaluation-harness to score texts? Its other backends ask Oumi's engine.
bool scores_texts(const OumiText&);

}  // namespace oomplan::oumi
