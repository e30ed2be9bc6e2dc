// Which of its two engines a vLLM server runs, where a release has both.
//
// vLLM 0.8 to 0.10 goes back to its first engine (V0) for what the second one (V1) lacks; 0.7 and before have no other that is
// described, later releases only the second (vllm/engine/arg_utils.py _is_v1_supported_oracle, 0.8.0 to 0.10.2).
#pragma once
#include <string>
#include <string_view>

#include <oomplan/job.hpp>

namespace oomplan {

/// Is it one of the releases that have both engines, 0.8.0 to 0.10.1? No version is the newest.
bool has_both_engines(std::string_view version);

/// Why a server of such a release runs the first one, in words; "" it does not. `sm`: of its GPUs.
std::string_view goes_back_for(EngineKind, const Server&, std::string_view sm);

/// The same as a sentence for the user.
std::string first_engine_remark(EngineKind, const Server&, std::string_view sm);

/// Does it run vLLM's first engine, in whatever release?
bool runs_first_engine(EngineKind, const Server&, std::string_view sm);

/// The release whose facts answer for this server. The first engine's are those of 0.7.3 also later: its profile run, sampler
/// and share of the card are the same code in 0.8.0 to 0.10.1 (vllm/worker/worker.py, worker/model_runner.py, utils.py
/// memory_profiling, compared).
std::string facts_version(EngineKind, const Server&, std::string_view sm);

/// Do these values of VLLM_USE_V1 and VLLM_ATTENTION_BACKEND ("": not set) ask for the first engine in a release that has both?
bool asks_for_first_engine(std::string_view use_v1, std::string_view backend, std::string_view version);

}  // namespace oomplan
