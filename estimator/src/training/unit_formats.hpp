// In which formats FSDP computes with a parameter and reduces its gradient: those that its policy names, or its own.
//
// torch 2.13: torch/distributed/fsdp/_fully_shard/_fsdp_param.py init_dtype_attrs, _fsdp_collectives.py foreach_reduce;
// torch/distributed/fsdp/_flat_param.py _init_param_reduce_dtypes.
#pragma once
#include <oomplan/job.hpp>

namespace oomplan {

struct UnitFormats {
  DType compute = DType::bf16, reduce = DType::fp32;
};

/// Of what is stored in `storage`.
constexpr UnitFormats unit_formats(const Trainer& t, DType storage) {
  const DType compute = t.cast_parameters ? t.compute : storage;
  return {compute, t.cast_gradients ? t.reduce : compute};
}

}  // namespace oomplan
