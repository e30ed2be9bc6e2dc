// Buffers inside of CUDA's kernels: the gradient of an embedding as measured on a GPU, the memory-efficient attention worked out
// by hand from its source.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string>

#include "layers/attention_tiles.hpp"
#include "layers/embedding_backward.hpp"
#include "layers/tape.hpp"
#include "tiny_llama.hpp"
#include "training/plan.hpp"

namespace oomplan {
namespace {

std::map<std::string, Bytes> workspaces(const Eager& g) {
  std::map<std::string, Bytes> out;
  for (const Storage& s : g.storages)
    if (s.category == Category::workspace) out[s.name] += bytes_of(elements(s.shape).coefficient, s.dtype);
  return out;
}

TEST_CASE("an embedding's gradient makes inside what an A100 measured") {
  // linkedin/Liger-Kernel benchmark/data/all_benchmark_data.csv, September 2024: 16384 tokens in fp32, PyTorch's embedding less
  // Liger's, which adds up in place
  struct Row {
    std::int64_t width, words;
    double mib;
  };
  constexpr Row rows[] = {{768, 2048, 11.234375},       {768, 4096, 17.28125},        {768, 8192, 29.375},
                          {768, 16384, 53.5625},        {768, 131072, 53.5625},       {4096, 1024, 42.005859375},
                          {4096, 2048, 58.029296875},   {4096, 4096, 90.076171875},   {4096, 8192, 154.169921875},
                          {4096, 16384, 282.357421875}, {4096, 131072, 282.357421875}};
  constexpr std::int64_t sequences = 8, tokens = 2048;
  for (const Row& row : rows) {
    CAPTURE(row.width);
    CAPTURE(row.words);
    Eager g;
    const EmbeddingSort sort = embedding_sort(sequences * tokens, row.words);
    const Tensor gradient = embedding_gradient(g, "gradient", {row.words, row.width}, DType::fp32, {sequences, tokens}, sort);
    Bytes inside = 0;
    for (const auto& [name, bytes] : workspaces(g)) inside += bytes;
    constexpr double kMebibyte = 1 << 20, kFourPerToken = 4.0 * sequences * tokens / kMebibyte;
    CHECK(std::abs(static_cast<double>(inside) / kMebibyte - row.mib) < kFourPerToken);
  }
}

TEST_CASE("a few tokens' gradients are added up in place") {
  CHECK(embedding_sort(3072, 32000) == EmbeddingSort::none);
  CHECK(embedding_sort(3073, 32000) == EmbeddingSort::by_token);
  CHECK(embedding_sort(32000, 32000) == EmbeddingSort::by_token);
  CHECK(embedding_sort(32001, 32000) == EmbeddingSort::by_word);
  TrainingCase c = tiny_llama(4096, 0);
  const auto inside = [&](bool internals) {
    const PassOptions options = train_pass(c.trainer, c.engine, *c.architecture, false, 4096, internals);
    const auto tape = make_tape(*c.architecture, options);
    return std::any_of(tape->sites.begin(), tape->sites.end(),
                       [](const auto& site) { return site.name == "embedding_backward.sums"; });
  };
  CHECK(inside(true));
  CHECK_FALSE(inside(false));
}

/// Of two sequences of 1000 tokens and four heads.
std::map<std::string, Bytes> efficient_backward(std::int64_t width, DType dtype, std::string_view sm) {
  Eager g;
  const Tensor q = g.make("q", {axis::B, 4, axis::S, width}, dtype);
  make_efficient_forward(g, q, q);
  make_efficient_backward(g, q, q, q, dtype, {.memory = shared_memory(sm), .sequences = 2, .tokens = 1000});
  std::map<std::string, Bytes> out;
  const TokenCounts counts{.b = 2, .s = 1000};
  for (const Storage& s : g.storages)
    if (s.name != "q") out[s.name] = bytes_of(elements(s.shape).value(counts), s.dtype);
  return out;
}

TEST_CASE("memory-efficient attention sums queries' gradients in fp32, in whole tiles") {
  constexpr Bytes rows = 8 * 1024;  // two sequences, four heads, 1000 tokens in tiles of 64 or 128
  const std::map<std::string, Bytes> wide{{"attention.delta", 8 * 1000 * 4}, {"attention.dq_accum", rows * 128 * 4}};
  CHECK(efficient_backward(128, DType::bf16, "sm90") == wide);
  CHECK(efficient_backward(80, DType::bf16, "sm80") == wide);  // a tile of 128 columns holds the head
  const std::map<std::string, Bytes> narrow{{"attention.delta", 8 * 1000 * 4}, {"attention.dq_accum", rows * 64 * 4}};
  CHECK(efficient_backward(64, DType::bf16, "sm90") == narrow);
  CHECK(efficient_backward(32, DType::fp16, "sm75") == narrow);
}

TEST_CASE("memory-efficient attention sums the keys' and values' too where a tile does not hold a head") {
  // tiles of 64 x 64: 16 of them for the keys, which 200 / 8 heads allow
  const auto small = efficient_backward(128, DType::bf16, "sm89");
  CHECK(small.at("attention.dq_accum") == 8 * 1024 * 128 * 4);
  CHECK(small.at("attention.dkv_accum") == 8 * 16 * 64 * (128 + 128) * 4);
  CHECK(efficient_backward(96, DType::bf16, "sm89").count("attention.dkv_accum") == 0);  // a kernel of its own
  CHECK(efficient_backward(96, DType::bf16, "sm120").count("attention.dkv_accum") == 1);
  const auto wide = efficient_backward(256, DType::bf16, "sm90");
  CHECK(wide.at("attention.dkv_accum") == 8 * 16 * 64 * (256 + 256) * 4);
  CHECK(wide.at("attention.out_accum") == 8 * 1000 * 256 * 4);  // in the forward pass
}

TEST_CASE("memory-efficient attention in fp32 multiplies gradient and result beforehand") {
  const std::map<std::string, Bytes> got = efficient_backward(64, DType::fp32, "sm90");
  const std::map<std::string, Bytes> want{{"attention.delta", 8 * 1000 * 4},
                                          {"attention.delta_product", 8 * 1000 * 64 * 4},
                                          {"attention.delta_sum", 8 * 1000 * 4},
                                          {"attention.dq_accum", 8 * 1024 * 64 * 4}};
  CHECK(got == want);
}

TEST_CASE("a softmax of bf16 in fp32 stands beside a copy of its input") {
  constexpr std::int64_t tokens = 512;
  constexpr Bytes scores = 2 * tokens * tokens;  // of two heads
  TrainingCase c = tiny_llama(tokens, 0);
  c.trainer.kernels = Kernels::hf_eager;
  const auto copy_of = [&](bool internals) {
    const auto tape = make_tape(*c.architecture, train_pass(c.trainer, c.engine, *c.architecture, false, tokens, internals));
    const PassCounts counts = pass_counts(c.trainer, tokens, c.trainer.head, *c.architecture);
    Bytes out = 0;
    for (const auto& site : tape->sites)
      if (site.name == "layer.self_attn.attention.probabilities.input_fp32") out = site.bytes.value(counts.counts);
    return out;
  };
  CHECK(copy_of(true) == 4 * scores);
  CHECK(copy_of(false) == 0);  // executed steps stood in one kernel for both
  c.trainer.storage = c.trainer.compute = c.trainer.reduce = DType::fp16;
  CHECK(copy_of(true) == 0);  // of fp16 there is one kernel
}

TEST_CASE("tapes are shared where rows fill whole tiles") {
  TrainingCase c = tiny_llama(1000, 0);
  c.trainer.kernels = Kernels::hf_sdpa;
  const auto tiles = [&](std::int64_t tokens) {
    c.trainer.sequence_tokens = tokens;
    return train_pass(c.trainer, c.engine, *c.architecture, false, tokens, true).kernels.attention_tiles;
  };
  CHECK(tiles(1000).tokens == 1000);
  CHECK(tiles(1024) == AttentionTiles{});
  CHECK(tiles(4096) == AttentionTiles{});
}

}  // namespace
}  // namespace oomplan
