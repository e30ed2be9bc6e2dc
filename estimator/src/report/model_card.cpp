#include "report/model_card.hpp"

#include <algorithm>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "catalog/parameters.hpp"
#include "units/json_text.hpp"

namespace oomplan {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::int64_t kCacheBytes = 2;  // 16-bit
constexpr std::int64_t kStateBytes = 4;  // fp32

/// Bytes that one token leaves in the cache of one layer.
std::int64_t token_bytes(const Mixer& m) {
  if (m.shared_kv) return 0;
  if (m.kind == MixerKind::attention) return (m.k_width() + m.v_width()) * kCacheBytes;
  if (m.kind == MixerKind::mla && m.out_groups > 0) return m.head_dim * kCacheBytes;
  if (m.kind == MixerKind::mla) return (m.kv_lora_rank + m.rope_head_dim + m.index_head_dim) * kCacheBytes;
  return 0;
}

/// DeepSeek V4: bytes of the compressed entries, one for compress_ratio tokens, beside the window.
std::int64_t compressed_bytes(const Mixer& m) {
  return m.compress_ratio > 0 ? (m.head_dim + m.index_head_dim) * kCacheBytes / m.compress_ratio : 0;
}

/// Bytes of one request's state in one layer.
std::int64_t state_bytes(const Mixer& m) {
  const std::int64_t taps = std::max<std::int64_t>(0, m.conv_kernel - 1);
  const std::int64_t keys = m.linear_key_heads * m.linear_key_dim, values = m.linear_value_heads * m.linear_value_dim;
  switch (m.kind) {
    case MixerKind::gated_delta:
    case MixerKind::kimi_delta:
      return taps * (2 * keys + values) * kCacheBytes + values * m.linear_key_dim * kStateBytes;
    case MixerKind::mamba1:
      return taps * m.inner * kCacheBytes + m.inner * m.state_size * kStateBytes;
    case MixerKind::mamba2: {
      const std::int64_t convolved = m.inner + 2 * m.groups * m.state_size;
      return taps * convolved * kCacheBytes + m.inner * m.state_size * kStateBytes;
    }
    case MixerKind::lightning:
      return m.heads * m.head_dim * m.head_dim * kStateBytes;
    default:
      return 0;
  }
}

std::string size_text(const Mixer& m) {
  switch (m.kind) {
    case MixerKind::attention: {
      std::string out = fmt::format("{} heads of {}, {} k/v heads", m.heads, m.head_dim, m.kv_heads);
      if (m.span == AttentionSpan::sliding) out += fmt::format(", window {}", m.window);
      if (m.span == AttentionSpan::chunked) out += fmt::format(", chunks of {}", m.window);
      if (m.stores_kv) out += ", which the model keeps";
      return out + (m.shared_kv ? ", keys and values of an earlier layer" : "");
    }
    case MixerKind::mla:
      return fmt::format("{} heads, latent {} + {}", m.heads, m.kv_lora_rank, m.rope_head_dim);
    case MixerKind::gated_delta:
      return fmt::format("{} heads of {}", m.linear_value_heads, m.linear_value_dim);
    case MixerKind::mamba1:
    case MixerKind::mamba2:
      return fmt::format("inner {}, state {}", m.inner, m.state_size);
    case MixerKind::lightning:
      return fmt::format("{} heads of {}", m.heads, m.head_dim);
    default:
      return "";
  }
}

std::string mixer_text(const Mixer& m) {
  const std::string sizes = size_text(m);
  return std::string(spelling(m.kind)) + (sizes.empty() ? "" : " (" + sizes + ")");
}

std::string feed_forward_text(const FeedForward& ff) {
  switch (ff.kind) {
    case FeedForwardKind::none:
      return "no feed-forward";
    case FeedForwardKind::gated:
      return fmt::format("{}gated feed-forward of {}", ff.sparse_gate ? "sparsely " : "", ff.width);
    case FeedForwardKind::plain:
      return fmt::format("feed-forward of {}", ff.width);
    case FeedForwardKind::linear:
      return "one matrix for a feed-forward";
    case FeedForwardKind::moe:
      break;
  }
  std::string out = fmt::format("{} of {} experts of {}", ff.experts_per_token, ff.experts, ff.expert_width);
  if (ff.shared_width > 0) out += fmt::format(" and a shared one of {}", ff.shared_width);
  if (ff.width > 0) out += fmt::format(" beside a dense one of {}", ff.width);
  return out;
}

/// Equal layers of different runs together, in the order of their first.
std::vector<LayerRun> kinds_of(const Architecture& model) {
  std::vector<LayerRun> out;
  for (const LayerRun& run : model.runs) {
    const auto same = [&run](const LayerRun& known) { return known.layer == run.layer; };
    const auto found = std::find_if(out.begin(), out.end(), same);
    if (found != out.end()) {
      found->count += run.count;
    } else {
      out.push_back(run);
    }
  }
  return out;
}

std::string with_separators(std::int64_t n) {
  std::string out = std::to_string(n);
  for (std::int64_t i = static_cast<std::int64_t>(out.size()) - 3; i > 0; i -= 3) out.insert(static_cast<std::size_t>(i), ",");
  return out;
}

std::string in_words(std::int64_t n) {
  const double value = static_cast<double>(n);
  if (n >= 1'000'000'000) return fmt::format("{:.2f} B", value / 1e9);
  if (n >= 1'000'000) return fmt::format("{:.2f} M", value / 1e6);
  return std::to_string(n);
}

class Card {
 public:
  explicit Card(bool colour) : colour_(colour) {}
  void title(std::string_view text) { out_ += colour_ ? fmt::format("\x1b[1m{}\x1b[0m\n", text) : fmt::format("{}\n", text); }
  void line(std::string_view label, std::string_view text) { out_ += fmt::format("  {:<22}{}\n", label, text); }
  void count(std::string_view label, std::int64_t n) {
    if (n > 0) line(label, fmt::format("{:>22}  {}", with_separators(n), in_words(n)));
  }
  std::string text() && { return std::move(out_); }

 private:
  bool colour_;
  std::string out_;
};

void add_parameters(Card& card, const Architecture& model) {
  const ParameterCounts counts = count(model);
  card.count("parameters", counts.language);
  if (counts.trained != counts.language) card.count("of them trained", counts.trained);
  card.count("of them buffers", counts.buffers);
  if (counts.active != counts.language) card.count("active a token", counts.active);
  card.count("embedding", counts.embedding);
  if (model.tied) {
    card.line("head", "tied to the embedding");
  } else {
    card.count("head", counts.head);
  }
  card.count("layers", counts.layers);
  card.count("of them experts", counts.experts);
  card.count("vision tower", counts.tower);
  card.count("token prediction", counts.mtp);
}

void add_cache(Card& card, const Architecture& model) {
  const CacheFigures cache = cache_figures(model);
  if (cache.per_token > 0) card.line("cache a token", with_separators(cache.per_token) + " bytes");
  if (cache.per_token_windowed > 0)
    card.line("cache a token, window", with_separators(cache.per_token_windowed) + " bytes, up to the window");
  if (cache.per_request > 0) card.line("state a request", with_separators(cache.per_request) + " bytes");
}

Json layer_json(const LayerRun& run) {
  const Mixer& m = run.layer.mixer;
  const FeedForward& ff = run.layer.feed_forward;
  Json out{{"count", run.count}, {"mixer", spelling(m.kind)}, {"text", mixer_text(m) + "; " + feed_forward_text(ff)}};
  if (m.heads > 0) out.update({{"heads", m.heads}, {"kv_heads", m.kv_heads}, {"head_dim", m.head_dim}});
  if (m.window > 0) out["window"] = m.window;
  if (ff.width > 0) out["width"] = ff.width;
  if (ff.kind == FeedForwardKind::moe)
    out.update({{"experts", ff.experts},
                {"experts_per_token", ff.experts_per_token},
                {"expert_width", ff.expert_width},
                {"shared_width", ff.shared_width}});
  return out;
}

std::string_view kind_name(ParameterKind kind) {
  if (kind == ParameterKind::learned) return "learned";
  return kind == ParameterKind::still ? "still" : "buffer";
}

Json parameter_json(const Parameter& row) {
  return {{"name", row.name},     {"shape", row.shape},       {"copies", row.copies},       {"layers", row.layers},
          {"total", row.total()}, {"dtype", name(row.dtype)}, {"kind", kind_name(row.kind)}};
}

}  // namespace

CacheFigures cache_figures(const Architecture& model) {
  CacheFigures out;
  for (const LayerRun& run : model.runs) {
    const Mixer& m = run.layer.mixer;
    (m.span == AttentionSpan::full ? out.per_token : out.per_token_windowed) += token_bytes(m) * run.count;
    out.per_token += compressed_bytes(m) * run.count;
    out.per_request += state_bytes(m) * run.count;
  }
  return out;
}

std::string model_card_text(const Architecture& model, bool colour) {
  Card card(colour);
  card.title(model.name);
  card.line("family", model.family == model.model_type ? model.family : model.family + " (" + model.model_type + ")");
  add_parameters(card, model);
  card.line("hidden size", with_separators(model.hidden));
  card.line("vocabulary", with_separators(model.vocab));
  if (model.max_positions > 0) card.line("positions", with_separators(model.max_positions));
  card.line("stored as",
            std::string(name(model.dtype)) + (model.quantization.method.empty() ? "" : ", " + model.quantization.method));
  add_cache(card, model);
  const char* label = "layers by kind";
  for (const LayerRun& run : kinds_of(model)) {
    const std::string mixer = mixer_text(run.layer.mixer);
    card.line(label, fmt::format("{} x {}; {}", run.count, mixer, feed_forward_text(run.layer.feed_forward)));
    label = "";
  }
  return std::move(card).text();
}

std::string model_card_json(const Architecture& model, bool with_parameters) {
  const ParameterCounts counts = count(model);
  const CacheFigures cache = cache_figures(model);
  Json out;
  out["schema"] = "oomplan.model/1";
  out["name"] = model.name;
  out["model_type"] = model.model_type;
  out["family"] = model.family;
  out["dtype"] = name(model.dtype);
  out["quantization"] = model.quantization.method;
  out["dims"] = {{"hidden", model.hidden},
                 {"vocab", model.vocab},
                 {"layers", model.layers()},
                 {"max_positions", model.max_positions},
                 {"tied", model.tied}};
  out["parameters"] = {{"total", counts.language},      {"trained", counts.trained},     {"buffers", counts.buffers},
                       {"active", counts.active},       {"embedding", counts.embedding}, {"head", counts.head},
                       {"layers", counts.layers},       {"experts", counts.experts},     {"vision_tower", counts.tower},
                       {"token_prediction", counts.mtp}};
  out["cache"] = {{"bytes_per_token", cache.per_token},
                  {"bytes_per_token_windowed", cache.per_token_windowed},
                  {"state_bytes_per_request", cache.per_request}};
  out["layers"] = Json::array();
  for (const LayerRun& run : kinds_of(model)) out["layers"].push_back(layer_json(run));
  if (with_parameters) {
    out["tensors"] = Json::array();
    for (const Parameter& row : parameters(model)) out["tensors"].push_back(parameter_json(row));
  }
  // Names come from files: what is not UTF-8 is replaced, not refused.
  return json_text(out);
}

}  // namespace oomplan
