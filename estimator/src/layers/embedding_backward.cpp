#include "layers/embedding_backward.hpp"

#include <oomplan/units/bytes.hpp>

namespace oomplan {
namespace {

constexpr std::int64_t kUnsorted = 3072;    // num_indices <= 3072
constexpr std::int64_t kRowsOfThread = 10;  // NROWS_PER_THREAD

Tensor of_rows(Eager& g, const char* name, Shape rows, std::int64_t columns, DType dtype) {
  rows.push_back(Dim(columns));
  return g.make(name, std::move(rows), dtype, Category::workspace);
}

}  // namespace

EmbeddingSort embedding_sort(std::int64_t tokens, std::int64_t words) {
  if (tokens <= kUnsorted) return EmbeddingSort::none;
  return tokens <= words ? EmbeddingSort::by_token : EmbeddingSort::by_word;
}

Tensor embedding_gradient(Eager& g, const std::string& name, const Shape& table, DType dtype, const Shape& rows,
                          EmbeddingSort sort) {
  if (sort == EmbeddingSort::none) return g.make(name, table, dtype, Category::gradients);
  const std::int64_t width = table.back().coefficient;
  const Tensor sorted = of_rows(g, "embedding_backward.sorted", rows, 2, DType::int64);  // and where each came from
  Tensor out = g.make(name, table, dtype, Category::gradients);
  const Tensor segments = of_rows(g, "embedding_backward.segments", rows, 1, DType::int64);  // where a word's tokens begin
  // how many tens a word has and where they begin among all, and where each ten begins among the tokens
  if (sort == EmbeddingSort::by_token) {
    const Tensor tens = of_rows(g, "embedding_backward.tens", rows, 3, DType::int64);
    const Tensor sums = of_rows(g, "embedding_backward.sums", rows, width + ceil_div(width, kRowsOfThread), DType::fp32);
    return out;
  }
  const Shape words{table.front()};
  const Tensor tens = of_rows(g, "embedding_backward.tens", words, 3, DType::int64);
  const Tensor sums = of_rows(g, "embedding_backward.sums", words, width, DType::fp32);
  const Tensor rest = of_rows(g, "embedding_backward.sums", rows, ceil_div(width, kRowsOfThread), DType::fp32);
  return out;
}

}  // namespace oomplan
