// What torch.sum over rows takes on a GPU beside its result.
#pragma once
#include <cstdint>

#include <oomplan/units/bytes.hpp>

namespace oomplan {

/// Sum over the first axis of a tensor [rows, columns] in up to 32 bits: where a few blocks would have too much to add, the rows
/// are divided among more of them, which meet in a buffer of fp32 numbers in global memory (pytorch/pytorch
/// aten/src/ATen/native/cuda/Reduce.cuh, setReduceConfig and global_memory_size, 2.4 to 2.13). 0: there is none.
/// `resident_threads`: of all multiprocessors.
Bytes row_sum_buffer(std::int64_t rows, std::int64_t columns, std::int64_t resident_threads);

}  // namespace oomplan
