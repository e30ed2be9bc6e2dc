// Every parameter tensor of a model: the checkpoint's own name, its shape, and the axis along which engines may split it.
//
// Counts equal the real checkpoint's to the last parameter. Equal tensors that differ only in a layer or an expert number are
// one row with a count, so that a 671B model is a few dozen rows.
#pragma once
#include <string>
#include <vector>

#include "catalog/architecture.hpp"

namespace oomplan {

enum class ParameterPart : std::uint8_t {
  embedding,
  head,
  positions,
  mixer,
  feed_forward,
  router,
  experts,
  shared_experts,
  norm,
  mtp,
  tower,
  other
};
/// What a tensor of the checkpoint is to the one who trains all of it. Only what is learned has gradients and optimizer states.
enum class ParameterKind : std::uint8_t {
  learned,
  still,   ///< a parameter that wants no gradient
  buffer,  ///< no parameter: sharding engines leave it whole on every rank
  table,   ///< a buffer that follows from the config
};
/// What tensor parallelism cuts: rows = output features (column parallel), columns = input features (row parallel), whichever
/// axis of the shape that is; none = replicated.
enum class SplitAxis : std::uint8_t { none, rows, columns, kv_rows, vocabulary };

struct Parameter {
  std::string name;                 ///< "model.layers.{l}.self_attn.q_proj.weight"; {l} and {e} stand for layer and expert number
  std::vector<std::int64_t> shape;  ///< [out, in] for matrices, also where the checkpoint stores them transposed (GPT-2)
  ParameterPart part = ParameterPart::other;
  SplitAxis split = SplitAxis::none;
  ParameterKind kind = ParameterKind::learned;
  std::int64_t run = -1;          ///< index into Architecture::runs; -1: outside of the layers
  std::int64_t copies = 1;        ///< experts of this shape within one layer (1 for everything else)
  std::int64_t layers = 1;        ///< layers of the run that have it
  DType dtype = DType::bf16;      ///< as stored in the checkpoint when that differs from Architecture::dtype
  std::int64_t elements() const;  ///< of one tensor
  std::int64_t total() const;     ///< elements * copies * layers
};

/// All parameters in the checkpoint's order: embedding, layers, final norm, head (absent when tied), then mtp and tower.
std::vector<Parameter> parameters(const Architecture&);

struct ParameterCounts {
  std::int64_t language = 0;  ///< the language model, a tied head counted once, without mtp and tower
  std::int64_t active = 0;    ///< of `language`, used by one token
  std::int64_t trained = 0;   ///< of `language`: parameters that want a gradient
  std::int64_t buffers = 0;   ///< of `language`: stored in the checkpoint, and no parameters
  std::int64_t tower = 0, mtp = 0;
  std::int64_t mtp_copies = 0;  ///< copies of embedding and head stored beside the mtp blocks; not in `mtp`
  std::int64_t embedding = 0, head = 0, layers = 0, experts = 0;
};
ParameterCounts count(const Architecture&);

}  // namespace oomplan
