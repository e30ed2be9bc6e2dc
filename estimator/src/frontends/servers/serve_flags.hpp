// Flags of `vllm serve` and `python -m sglang.launch_server` that decide about memory, as rows, and those that do not.
//
// Sources: vllm/engine/arg_utils.py, 0.19 and August 2026; sglang/srt/server_args.py, 0.5.10 and 0.5.18.
#pragma once
#include <cstdint>
#include <span>
#include <string_view>

#include <oomplan/job.hpp>

namespace oomplan {

/// What stands behind a flag and what it becomes.
enum class FlagMeans : std::uint8_t {
  text,    ///< the knob's value as it is
  tokens,  ///< a count that may be written 32k (thousands) or 32K (1024s); -1 and auto: the engine's own
  bytes,   ///< the same, of bytes
  gib,     ///< a number of GiB, with or without decimals
  tensor,  ///< degrees of the layout
  pipeline,
  data,
  expert,
  all_experts,  ///< a switch: as many expert ranks as a server has
  attention,    ///< a switch: the replicas are groups of data-parallel attention
  dense,        ///< 1: dense blocks are whole on every rank
  copies,       ///< of experts; 0: none
  exchange,     ///< how ranks exchange the experts' tokens
  on,           ///< a switch: the knob is true
  buffers,      ///< recurrent states with buffers of their own, or not
  sleeps,       ///< a switch: the server sleeps between phases
  dtype,        ///< of what is not quantised
  kv_dtype,
  shares,      ///< a switch: responses to one prompt share its pages
  shares_not,  ///< a switch: they do not
  sizes,       ///< several batches, for which graphs are captured
  compilation,
  level,         ///< of optimisation
  modalities,    ///< JSON: how many images and videos a prompt may have
  json,          ///< must be JSON, memory does not depend on it
  quantization,  ///< converts a checkpoint in 16 bits; of another it only names what that says itself
  speculative,   ///< vLLM's JSON
  drafts,        ///< SGLang's algorithm
  draft,         ///< SGLang's checkpoint of a draft
  lora,          ///< a switch: room for adapters
  one,           ///< refused unless 1
  none,          ///< refused unless 0 or empty
  never,         ///< a switch that is refused
  model,
  ignored,  ///< takes a value, which memory does not depend on
  ignored_several,
  ignored_switch,
};

struct FlagRow {
  std::string_view flags;  ///< spellings without dashes, joined by '|', the usual one first
  FlagMeans means;
  std::string_view key;  ///< of our knob; of a refused flag what it is
};

std::span<const FlagRow> serve_flags(EngineKind);
/// Does the flag take no value? Several?
bool is_switch(FlagMeans);
bool takes_several(FlagMeans);

}  // namespace oomplan
