// The format of a server's keys and values: what `auto` means for a model, engine and release. Internal to inference/ and job/.
#pragma once
#include <string_view>

#include <oomplan/job.hpp>
#include <oomplan/units/dtype.hpp>

#include "catalog/architecture.hpp"
#include "catalog/facts.hpp"

namespace oomplan {

inline bool in_8_bits_or_less(DType d) { return row(d).bits <= 8; }

/// What a server of weights in `weights` computes in: their own format, or the 16 bits of a quantised model.
DType compute_format(const Architecture&, DType weights);

/// A part of a checkpoint's quantization_config with this target says what its cache is stored in.
inline constexpr std::string_view kCacheTarget = "kv_cache";

/// Of keys and values: as the job says; with `auto` what the checkpoint asks for where the release follows it (the facts
/// ..._cache_followed of models/engines), else what the model computes in. `sm`: of the GPU.
DType cache_format(const Architecture&, EngineKind, const Server&, const Facts&, std::string_view sm = "sm90");

/// The same server with the format that `auto` comes to on this GPU.
Server with_cache_format(const Architecture&, EngineKind, const Server&, const Facts&, std::string_view sm);

}  // namespace oomplan
