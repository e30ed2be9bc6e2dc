// Sources: sglang/srt/layers/attention/flashinfer_backend.py (FlashInferAttnBackend, FlashInferMultiStepDraftBackend),
// srt/server_args.py (_generate_cuda_graph_batch_sizes), srt/speculative/eagle_draft{,_extend}_cuda_graph_runner.py and
// draft_utils.py, 0.5.12.
#include "inference/flashinfer.hpp"

#include <algorithm>
#include <cstdint>
#include <span>

namespace oomplan {
namespace {

struct Sizes {
  std::int64_t first, last, by;
};
constexpr std::int64_t kAny = INT64_MAX;
constexpr Sizes kPlain[] = {{1, 2, 1}, {4, 12, 4}, {16, 256, 8}, {272, 496, 16}, {512, kAny, 32}};
constexpr Sizes kAhead[] = {{1, 8, 1}, {10, 32, 2}, {40, 64, 4}, {72, 256, 8}, {272, kAny, 16}};

/// How many numbers of requests are captured, the largest among them.
std::int64_t graphs(std::int64_t most, bool ahead) {
  std::int64_t out = 0, largest = 0;
  for (const Sizes& row : ahead ? std::span<const Sizes>(kAhead) : std::span<const Sizes>(kPlain)) {
    if (most < row.first) break;
    const std::int64_t steps = (std::min(most, row.last) - row.first) / row.by;
    out += steps + 1;
    largest = row.first + steps * row.by;
  }
  return out + (largest < most ? 1 : 0);
}

}  // namespace

FlashInferBuffers flashinfer_buffers(const FlashInferAsk& ask) {
  const bool ahead = ask.draft_tokens > 0;
  const std::int64_t of_window = ask.windows ? 2 : 1;        // of each kind of layer
  const std::int64_t whole = 1 + 3 * of_window, decode = 2;  // of ragged rows; paged ones, verified ones and single tokens
  const std::int64_t sizes = ask.captured > 0 ? graphs(ask.captured, ahead) : 0;
  std::int64_t wrappers = whole + of_window * sizes;
  // a draft's own pass, one backend for each step but the last, and one that takes in what was verified
  if (ahead) wrappers += 2 * whole + (ask.draft_steps - 1) * (decode + sizes) + sizes;
  FlashInferBuffers out;
  out.workspace = ask.workspace + wrappers * ask.wrapper;
  const std::int64_t rows = ask.captured * ask.context;
  constexpr Bytes kPage = 4, kMask = 1;
  const std::int64_t verified = ahead ? ask.draft_tokens : 1;
  out.tables = rows * verified * (of_window * kPage + kMask);
  if (ahead) out.tables += rows * (ask.draft_steps * kPage + (ask.draft_steps + 1) * (kPage + kMask));
  return out;
}

}  // namespace oomplan
