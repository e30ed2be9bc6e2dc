// PyTorch's flash-attention cuts the keys of few queries into parts, so that every multiprocessor has work, and joins them.
#pragma once
#include <cstdint>

#include "catalog/architecture.hpp"
#include "layers/shape.hpp"

namespace oomplan {

/// What decides how many parts there are; without multiprocessors all keys are one.
struct SplitKeys {
  std::int64_t multiprocessors = 0;
  std::int64_t sequences = 0, tokens = 0;  ///< of the micro-batch; of one sequence
  bool operator==(const SplitKeys&) const = default;

  /// Into how many parts the keys of causal attention over [B, heads, S, head_dim] are cut; 1: they are not, and nothing is made.
  /// Of 2.11, aten/src/ATen/native/transformers/cuda/flash_attn/flash_api.cpp set_params_splitkv, num_splits_heuristic.
  std::int64_t parts(const Shape& queries) const;
};

/// Those of a pass, or none where no layer has so few queries: tapes are shared among all that have none.
SplitKeys split_keys(const Architecture&, std::int64_t multiprocessors, std::int64_t ranks, const TokenCounts&);

}  // namespace oomplan
