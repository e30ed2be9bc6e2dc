// Into how many parts PyTorch's flash-attention cuts keys, worked out by hand from its rule, and what that adds to a forward
// pass.
#include <doctest/doctest.h>

#include <string>

#include "layers/split_keys.hpp"
#include "layers/tape.hpp"
#include "tiny_llama.hpp"
#include "training/plan.hpp"

namespace oomplan {
namespace {

std::int64_t parts(std::int64_t multiprocessors, std::int64_t sequences, std::int64_t heads, std::int64_t tokens,
                   std::int64_t head_dim) {
  return SplitKeys{multiprocessors, sequences, tokens}.parts({axis::B, heads, axis::S, head_dim});
}

TEST_CASE("keys of few queries are cut until the multiprocessors are full") {
  // An A100 has 216 places. 8 heads of 512 queries are 64 blocks: 30 % full; 2 parts of 4 blocks of keys are 59 %, and so are 4
  // in two turns; 3 leave as many blocks in a part as 2 do.
  CHECK(parts(108, 1, 8, 512, 128) == 2);
  // 14 heads are 112 blocks: 52 %, and 224 in two turns are no more
  CHECK(parts(108, 1, 14, 512, 64) == 1);
  // from 80 % on nothing is cut: 0.8 * 216 = 172.8
  CHECK(parts(108, 1, 8, 1408, 128) == 1);   // 176 blocks
  CHECK(parts(108, 22, 8, 64, 128) == 1);    // as many, of short sequences
  CHECK(parts(132, 1, 1, 4096, 128) == 4);   // 64 blocks of 264 places: 4 parts are 97 %
  CHECK(parts(132, 1, 1, 4096, 256) == 4);   // blocks of 64 keys; what is smallest within 85 % of the best
  CHECK(parts(132, 1, 1, 64, 128) == 1);     // one block of keys cannot be cut
  CHECK(parts(0, 1, 1, 4096, 128) == 1);     // buffers inside of kernels are not counted
  CHECK(parts(132, 1, 1, 16896, 128) == 1);  // 264 blocks
}

Bytes bytes_of_site(const Tape& tape, const std::string& name, const TokenCounts& counts) {
  for (const auto& site : tape.sites)
    if (site.name == name) return site.bytes.value(counts);
  return 0;
}

TEST_CASE("parts of keys are joined from fp32 tensors, of as many multiprocessors as the GPU has") {
  constexpr Bytes tokens = 512, heads = 2, width = 32;  // heads of 4 are rounded up to 32
  TrainingCase c = tiny_llama(tokens, 0);
  c.trainer.kernels = Kernels::hf_sdpa;
  Gpu gpu;
  gpu.sms = 108;
  const auto pass = [&](KernelInternals internals) {
    return train_pass(c.trainer, c.engine, *c.architecture, false, tokens, internals);
  };
  const PassOptions options = pass({true, gpu});
  const PassCounts counts = pass_counts(c.trainer, tokens, options.head, *c.architecture);
  const Tape tape = *make_tape(*c.architecture, options);
  CHECK(bytes_of_site(tape, "layer.self_attn.attention.out_accum", counts.counts) == 2 * heads * tokens * width * 4);
  CHECK(bytes_of_site(tape, "layer.self_attn.attention.lse_accum", counts.counts) == 2 * heads * tokens * 4);
  CHECK(bytes_of_site(*make_tape(*c.architecture, pass(false)), "layer.self_attn.attention.out_accum", counts.counts) == 0);
  gpu.sms = 8;  // 16 places for 16 blocks of queries: no keys are cut, and the tape is that of all others
  CHECK(pass({true, gpu}).kernels.split_keys == SplitKeys{});
}

}  // namespace
}  // namespace oomplan
