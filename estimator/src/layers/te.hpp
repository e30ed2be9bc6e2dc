// Operators of Transformer Engine as Megatron-core calls them: what each allocates, saves for backward and holds while it runs.
//
// Read in NVIDIA/TransformerEngine
// transformer_engine/pytorch/{module/layernorm_linear,module/linear,attention/dot_product_attention} (2.9) and megatron-core
// 0.16.1 (megatron/core/extensions/transformer_engine.py). Weights are not tensors here: their gradients are added to the flat
// fp32 buffer inside of the matrix product, or (without that fusion) live as long as the product's node runs.
//
// Legend: B sequences, S tokens of one that this rank holds between a layer's halves, t ranks of tensor parallelism. Under
// sequence parallelism a half sees t S tokens, otherwise S. h hidden, a query heads, g key/value heads, k width of a head.
#pragma once
#include <string>

#include "catalog/architecture.hpp"
#include "layers/decoder.hpp"

namespace oomplan {

/// How the modules run.
struct TeOptions {
  std::int64_t tensor = 1;
  bool sequence_parallel = false;
  bool fused_gradients = true;  ///< weight gradients are added up inside of the product
  bool several_sequences = false;
  TeAttention attention = TeAttention::fused;
  bool attention_dropout = false;
  std::int64_t context = 1;
  ContextExchange exchange = ContextExchange::p2p;
  Fp8Recipe fp8 = Fp8Recipe::none;
  bool fp8_transposes = true;  ///< a tensor that is needed along its other side is kept transposed
  bool fp8_on_blackwell = false;
  std::int64_t rows = 0;  ///< of a vision tower: its patches, which no rank has a part of; 0: tokens are asked for
  bool operator==(const TeOptions&) const = default;
  /// Tokens of a sequence inside of a layer's halves.
  Dim whole() const { return rows > 0 ? Dim(rows) : Dim(sequence_parallel ? tensor : 1) * axis::S; }
};

/// A weight of which autograd gets a gradient (without gradient accumulation fusion): it lives until the node that made it is
/// done.
Tensor te_weight(Eager&);

/// RMSNorm or LayerNorm; saves its input and one or two fp32 numbers a row.
Tensor te_norm(Eager&, const Tensor& x, NormKind, const std::string& name);
/// A linear layer [.., in] -> [.., out] whose output is split over the ranks; under sequence parallelism its input is gathered
/// for the product, and again in backward. `out`: columns of this rank. `keeps_original`: with products in 8 bits the input is
/// kept as it came all the same (save_original_input).
Tensor te_column_linear(Eager&, const Tensor& x, std::int64_t out, const TeOptions&, const std::string& name,
                        bool keeps_original = false);
/// The norm and the layer in one module, which saves the norm's input and output.
Tensor te_norm_column_linear(Eager&, const Tensor& x, NormKind, std::int64_t out, const TeOptions&, const std::string& name);
/// A linear layer whose input is split over the ranks: partial sums are reduced, under sequence parallelism scattered too.
Tensor te_row_linear(Eager&, const Tensor& x, std::int64_t out, const TeOptions&, const std::string& name,
                     bool keeps_original = false);
/// A linear layer that every rank computes alike (the down-projections of latent attention).
Tensor te_duplicated_linear(Eager&, const Tensor& x, std::int64_t out, const TeOptions&, const std::string& name,
                            bool keeps_original = false);
/// megatron-core keeps inputs as they came where another node keeps them anyway, but for delayed scaling
/// (megatron/core/transformer/{attention,moe/shared_experts}.py, 0.16.1).
inline bool keeps_shared_input(const TeOptions& o) { return o.fp8 != Fp8Recipe::none && o.fp8 != Fp8Recipe::delayed; }

/// Which arguments of the attention are views of a joint projection: kernels that want blocks copy them.
struct AttentionViews {
  bool key = false, value = false;
  bool joint = false;  ///< all three are, head by head, which cuDNN's kernels take as it is
  bool query = false;
};
/// DotProductAttention over [S, B, heads, k]. Arguments stay with the caller: its names hold them. Dropout is inside of the
/// kernels.
Tensor te_attention(Eager&, const Tensor& query, const Tensor& key, const Tensor& value, AttentionViews, const TeOptions&);
/// Rotary positions in one kernel, which saves the table alone. x may be a view.
Tensor te_rotary(Eager&, const Tensor& x, const std::string& name);
/// .contiguous() of a view: a copy.
Tensor te_contiguous(Eager&, const Tensor& view, const std::string& name);

}  // namespace oomplan
