// Sources: vllm/models/deepseek_v4/{attention,compressor,quant_config}.py, nvidia/{model,mtp,flashmla}.py and common/rope.py,
// 0.24; vllm/model_executor/models/deepseek_v4.py, 0.20.
#include "inference/compressed_weights.hpp"

#include <algorithm>
#include <iterator>
#include <string_view>

#include <oomplan/units/errors.hpp>

namespace oomplan {
namespace {

constexpr std::int64_t kEntryRatios[] = {0, 4, 128};  // CompressorStateCache has blocks for these alone

[[noreturn]] void refuse_compressed(const Architecture& a, std::string_view what, std::string_view why) {
  throw InputError(Problem{{}, std::string(what), "", "", std::string(why) + ": " + a.name});
}

}  // namespace

bool is_compressed(const Architecture& a) {
  return std::any_of(a.runs.begin(), a.runs.end(), [](const LayerRun& r) { return r.layer.mixer.compress_ratio > 0; });
}

void check_compressed(const Architecture& a, EngineKind engine, const Server& server) {
  if (engine != EngineKind::vllm) refuse_compressed(a, "a cache of compressed entries", "not supported yet with this engine");
  for (const LayerRun& run : a.runs)
    if (std::find(std::begin(kEntryRatios), std::end(kEntryRatios), run.layer.mixer.compress_ratio) == std::end(kEntryRatios))
      refuse_compressed(a, "compress_ratios", "vLLM has entries of 4 or 128 tokens");
  if (server.kv != DType::fp8)
    throw InputError(Problem{{},
                             "kv: " + (server.kv ? std::string(name(*server.kv)) : std::string("auto")),
                             "fp8 (--kv-cache-dtype fp8)",
                             "",
                             "vLLM has no other cache for compressed entries: " + a.name});
  if (server.layout.pipeline > 1)
    refuse_compressed(a, "layout.pipeline", "not supported yet: stages of a model with compressed entries");
  if (server.decode_context > 1) refuse_compressed(a, "decode_context", "vLLM does not divide windows of tokens");
  if (server.uniform_windows) refuse_compressed(a, "uniform_sliding_window", "not supported yet beside compressed entries");
}

void compressed_sizes(const Architecture& a, ServerModel& m) {
  const Layer& first = a.runs.front().layer;
  m.compressed = true;
  m.streams = std::max<std::int64_t>(1, first.streams);
  m.entry_width = first.mixer.head_dim;
  m.window = first.mixer.window;
  std::int64_t most_chosen = 0;
  bool plain = false;
  for (const LayerRun& run : a.runs) {
    const Mixer& x = run.layer.mixer;
    plain = plain || x.compress_ratio == 0;
    if (x.compress_ratio > 0 && (m.entry_tokens == 0 || x.compress_ratio < m.entry_tokens)) m.entry_tokens = x.compress_ratio;
    if (x.index_heads > 0) m.index_bytes = x.index_head_dim + x.index_head_dim / 128 * 4;
    most_chosen = std::max(most_chosen, x.index_chosen);
  }
  if (m.draft_tokens > 0)
    for (const LayerRun& run : a.mtp.layers) plain = plain || run.layer.mixer.compress_ratio == 0;
  // the numbers of the chosen entries, and the streams that an MTP block reads, whether there is one or not
  m.input_elements += most_chosen * 2 + m.streams * a.hidden;
  // one table in fp32 for layers with entries and one for those without, whose bases differ
  m.rope_elements = a.max_positions * first.mixer.rope_head_dim * (plain ? 2 : 1) * 2;
}

bool compressed_in_fp32(const Parameter& p) {
  const auto named = [&](std::string_view part) { return p.name.find(part) != std::string::npos; };
  return named("_hc.") || named("hc_head.") || named("position_bias") || p.name.ends_with("sinks") || named("correction_bias");
}

Bytes routing_table(const FeedForward& ff, std::int64_t vocab) {
  const bool by_token = ff.kind == FeedForwardKind::moe && !ff.correction_bias;
  return by_token ? bytes_of(vocab * ff.experts_per_token, DType::int32) : 0;
}

Bytes compressed_draft_outside(const Architecture& a, const ModuleFormats* formats, DType compute) {
  const std::int64_t h = a.hidden, streams = std::max<std::int64_t>(1, a.runs.front().layer.streams);
  const WeightFormat* const format = formats != nullptr ? formats->of("mtp.0.e_proj", false, false) : nullptr;
  const Bytes projection = format != nullptr ? stored_bytes(*format, h, h) : bytes_of(h * h, compute);
  const Bytes head = bytes_of(streams * streams * h + streams + 1, DType::fp32);
  return a.mtp.projections * (2 * projection + head) + bytes_of(a.mtp.norms * h, compute);
}

}  // namespace oomplan
