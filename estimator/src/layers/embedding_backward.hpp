// The gradient of an embedding's table, with what CUDA's kernel makes inside of itself.
#pragma once
#include "layers/eager.hpp"

namespace oomplan {

/// How the rows of the gradient are added up. Up to 3072 tokens one kernel does it in place. More are sorted, and the tokens of
/// each word are summed in fp32 by tens: there are as many tens as tokens / 10 and words that may occur, which are all tokens or
/// all words of the table (pytorch/pytorch aten/src/ATen/native/cuda/Embedding.cu embedding_dense_backward_cuda,
/// EmbeddingBackwardKernel.cu embedding_backward_cuda_kernel, 2.0 to 2.13; measured on an A100 by linkedin/Liger-Kernel
/// benchmark/data/all_benchmark_data.csv, embedding of release 0.2.1: what `huggingface` has above `liger` at 16 sizes).
enum class EmbeddingSort : std::uint8_t {
  none,      ///< few tokens, or buffers inside of kernels are not counted
  by_token,  ///< more than 3072, and no more than there are words
  by_word,   ///< more tokens than words
};
EmbeddingSort embedding_sort(std::int64_t tokens, std::int64_t words);

/// [words, width] in `dtype`, of indices [rows]. What is made inside goes again: 8 bytes (6.1 tokens) and 4.4 tokens * width
/// bytes by token, to less than 4 bytes a token.
Tensor embedding_gradient(Eager&, const std::string& name, const Shape& table, DType dtype, const Shape& rows, EmbeddingSort);

}  // namespace oomplan
