// Low-rank adapters beside Megatron-core's linear layers, as Megatron-Bridge has them.
//
// NVIDIA-NeMo/Megatron-Bridge 600d069b8 (2026-08-11), src/megatron/bridge/peft/{lora,lora_layers,utils}.py:
// ParallelLinearAdapter, LoRALinear; megatron-core's ColumnParallelLinear and RowParallelLinear
// (megatron/core/tensor_parallel/layers.py); Transformer Engine 2.17.1, pytorch/module/{layernorm_linear,linear}.py, for what
// modules with frozen weights keep.
//
// Legend as in te.hpp; r rank.
#pragma once
#include <cstdint>
#include <string>

#include <oomplan/job.hpp>

#include "layers/te.hpp"

namespace oomplan {

/// Which layers have adapters. Everything else is frozen.
struct MegatronAdapters {
  std::int64_t rank = 0;  ///< 0: none, and everything is trained
  bool qkv = false, proj = false, fc1 = false, fc2 = false;
  bool in_proj = false, out_proj = false;  ///< of linear attention
  bool tower = false;                      ///< a vision tower's modules of these names have adapters, too
  bool masked_gates = false;               ///< gates of what in_proj's adapter gives are set to zero in place
  bool regathers = false;                  ///< sequence_parallel_input_regather
  bool frozen = false;                     ///< without adapters: mergers of a vision tower alone are trained
  explicit operator bool() const { return rank > 0 || frozen; }
  bool operator==(const MegatronAdapters&) const = default;
};
MegatronAdapters megatron_adapters(const Trainer&);

/// ParallelLinearAdapter.forward beside a column-parallel layer: x is gathered, or this rank's part that is gathered for its
/// products. `columns`: of this rank.
Tensor column_adapter(Eager&, Tensor x, std::int64_t columns, const TeOptions&, const MegatronAdapters&, const std::string& name);
/// ... beside a row-parallel one. `columns`: of the result.
Tensor row_adapter(Eager&, Tensor x, std::int64_t columns, const TeOptions&, const MegatronAdapters&, const std::string& name);

/// Norm and column-parallel layer in one module whose weights are frozen, and the adapter beside them. `columns`: of this rank.
Tensor adapted_norm_column(Eager&, const Tensor& x, NormKind, std::int64_t columns, const TeOptions&, const MegatronAdapters&,
                           const std::string& name);
/// The pair that all experts of a rank share, on their rows, beside a grouped product of theirs. Nothing of it is split.
Tensor adapted_experts(Eager&, const Tensor& base, const Tensor& x, const TeOptions&, const MegatronAdapters&,
                       const std::string& name);
/// A column-parallel layer without a norm whose weights are frozen, and the adapter beside it, which gathers its input again.
/// `columns`: of this rank.
Tensor adapted_column(Eager&, const Tensor& x, std::int64_t columns, const TeOptions&, const MegatronAdapters&,
                      const std::string& name);
/// A row-parallel layer whose weights are frozen, and the adapter beside it. `columns`: of the result.
Tensor adapted_row(Eager&, const Tensor& x, std::int64_t columns, const TeOptions&, const MegatronAdapters&,
                   const std::string& name);

}  // namespace oomplan
