// What the two forms of torch_chunk_gated_delta_rule have in common.
#pragma once
#include <string>

#include "layers/attention.hpp"
#include "layers/fla.hpp"

namespace oomplan {

/// Tokens that it takes at a time.
inline constexpr std::int64_t kDeltaChunk = fla::kChunk;

/// Of one mixer: heads of keys and values, their dims, values' heads for each of keys'.
struct DeltaSizes {
  Dim key_heads, key_dim, value_heads, value_dim, keys, values;
  bool grouped, several_key_heads, several_value_heads;
  Dim tokens = axis::S;  ///< of a row
  explicit DeltaSizes(const Mixer& m)
      : key_heads(m.linear_key_heads),
        key_dim(m.linear_key_dim),
        value_heads(m.linear_value_heads),
        value_dim(m.linear_value_dim),
        keys(m.linear_key_heads * m.linear_key_dim),
        values(m.linear_value_heads * m.linear_value_dim),
        grouped(m.linear_value_heads != m.linear_key_heads),
        several_key_heads(m.linear_key_heads > 1),
        several_value_heads(m.linear_value_heads > 1) {}
  Dim both() const { return Dim(2 * keys.coefficient + values.coefficient); }
};

/// a @ b, in 16 bits under autocast.
Tensor delta_product(Eager&, Tensor a, Tensor b, Shape out, const std::string& name);

/// What comes into the rule: by tokens, queries and keys for all heads of values.
struct DeltaInput {
  Tensor query, key, value, decay, beta;
};
/// torch_chunk_gated_delta_rule of transformers 4.57 to 5.10: the system of a chunk is solved row by row, and every row's copies
/// are kept (models/qwen3_5/modeling_qwen3_5.py, 5.10.4). The result is by tokens, in `dtype`.
Tensor run_delta_by_rows(Eager&, const DeltaSizes&, const DeltaInput&, std::int64_t tokens, DType dtype);

}  // namespace oomplan
