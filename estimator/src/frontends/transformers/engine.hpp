// What runs the model: one process, DDP, FSDP or DeepSpeed, as TrainingArguments or accelerate's file say it, and in which
// formats.
//
// A value is told with the key that gives it ("" where a default of the code does), so that a change can be written there.
#pragma once
#include <cstdint>
#include <string>

#include "frontends/transformers/read.hpp"

namespace oomplan::transformers {

struct Said {
  std::string value, path;
  bool on() const { return value == "true"; }
};

struct Fsdp {
  std::int64_t version = 1;
  std::string home;        ///< below which its keys stand: "fsdp_config", "accelerate.fsdp_config"
  Said strategy;           ///< FSDP1: FULL_SHARD, SHARD_GRAD_OP, NO_SHARD, HYBRID_SHARD, HYBRID_SHARD_ZERO2
  Said reshard;            ///< FSDP2: reshard_after_forward
  Said backward, forward;  ///< FSDP1: BACKWARD_PRE, BACKWARD_POST or NO_PREFETCH; forward_prefetch
  Said original, offload;  ///< use_orig_params, parameters on the host
  Said wrap, checkpoints;  ///< TRANSFORMER_BASED_WRAP, SIZE_BASED_WRAP or NO_WRAP; layers are checkpointed by accelerate
  Said layers;             ///< classes that are units, with commas between; "": the model's own _no_split_modules
  bool offload_checkpoints = false;
};

struct Engine {
  Said name;   ///< single, ddp, fsdp1, fsdp2 or deepspeed
  Said mixed;  ///< no, bf16 or fp16
  Fsdp fsdp;
};
Engine engine_of(const HfText&);

/// The value at a path as text, lower case for truth values; "" where there is none.
std::string text_at(const compose::Node& root, std::string_view path);
/// gradient_checkpointing, or the name that it has from Transformers 5.24 on.
std::string checkpointing_key(const HfText&);

}  // namespace oomplan::transformers
