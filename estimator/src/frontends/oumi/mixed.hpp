// Formats of Oumi's trainers beside that of the model: what accelerate computes, reduces and keeps in.
#pragma once
#include "frontends/oumi/meaning.hpp"
#include "frontends/oumi/settings.hpp"

namespace oomplan::oumi {

/// training.mixed_precision_dtype, which wins (transformers/training_args.py __post_init__), or fsdp.mixed_precision, which under
/// FSDP is accelerate's ACCELERATE_MIXED_PRECISION (src/oumi/core/distributed.py get_accelerate_env_vars).
struct Mixed {
  std::string format;    ///< bf16 or fp16; "": none
  std::string_view key;  ///< that says so
};
Mixed mixed_precision(const Telling&, const OumiMeaning&);

/// REQUIRES: `mixed` has a format. `stored`: that of the model.
void put_mixed_precision(OumiSettings&, const Mixed& mixed, const std::string& stored, const OumiMeaning&, bool adapters);

}  // namespace oomplan::oumi
