// Mamba 1 and 2, Falcon-Mamba, and Nemotron-H, whose layers are one block each.
// Shapes and defaults: transformers 5.23, models/{mamba,mamba2,falcon_mamba,nemotron_h}/{configuration,modeling}_*.py.
#include "catalog/families/state_space.hpp"

#include <fmt/format.h>

namespace oomplan {
namespace {

std::int64_t state_of(const Fields& fields, const MambaKeys& keys) {
  return fields.integer_or(keys.state, keys.state_otherwise, {1, 4096});
}

bool flag_of(const Fields& fields, std::string_view key, bool otherwise) { return chosen(fields, by(key, otherwise)); }

Mixer pure_mamba1(const Fields& fields, const Traits& traits, std::int64_t) {
  return mamba1_mixer(fields, read_hidden(fields, traits), kMamba1Keys);
}
Mixer pure_mamba2(const Fields& fields, const Traits& traits, std::int64_t) {
  Mixer mixer = mamba2_mixer(fields, read_hidden(fields, traits), kMamba2Keys);
  mixer.chunk = fields.integer_or("chunk_size", 256, {1, 65536});
  return mixer;
}
void wide_residual(const Fields& fields, const Traits&, std::int64_t, Layer& layer) {
  layer.wide_residual = flag_of(fields, "residual_in_fp32", true);
}
FeedForward nothing(const Fields&, const Traits&, std::int64_t) { return {}; }

constexpr Traits kMamba{
    .family = "mamba",
    .hidden = "hidden_size|d_model",
    .layers = "num_hidden_layers|n_layer",
    .positions = "",
    .tied = by("tie_word_embeddings", true),
    .norm_place = NormPlace::single,
    .mixer = pure_mamba1,
    .feed_forward = nothing,
    .adjust = wide_residual,
};

constexpr Traits mamba2() {
  Traits t = kMamba;
  t.family = "mamba2";
  t.tied = by("tie_word_embeddings");
  t.mixer = pure_mamba2;
  return t;
}

constexpr Traits falcon_mamba() {
  Traits t = kMamba;
  t.family = "falcon_mamba";
  return t;
}

// Nemotron-H: one letter, or one word, for each layer.
enum class Block : std::uint8_t { mamba, attention, dense, moe };

Block block_of_letter(const Fields& fields, std::string_view key, char letter) {
  switch (letter) {
    case 'M':
      return Block::mamba;
    case '*':
      return Block::attention;
    case '-':
      return Block::dense;
    case 'E':
      return Block::moe;
    default:
      fields.refuse(key, "a pattern of M, *, - and E", fmt::format("it has the letter '{}'", letter));
  }
}

Block block_of_word(const Fields& fields, std::string_view key, const std::string& word) {
  if (word == "mamba" || word == "linear_attention") return Block::mamba;
  if (word == "attention" || word == "full_attention") return Block::attention;
  if (word == "mlp") return Block::dense;
  if (word == "moe") return Block::moe;
  fields.refuse(key, "mamba (or linear_attention), attention, mlp or moe", "block type '" + word + "'");
}

std::vector<Block> blocks_of(const Fields& fields, std::string_view words_key, std::string_view letters_key) {
  std::vector<Block> out;
  if (fields.has(words_key)) {
    for (const std::string& word : fields.texts(words_key)) out.push_back(block_of_word(fields, words_key, word));
  } else {
    for (const char letter : fields.text(letters_key)) out.push_back(block_of_letter(fields, letters_key, letter));
  }
  if (out.empty() || out.size() > static_cast<std::size_t>(kLayerLimits.most))
    fields.refuse(fields.has(words_key) ? words_key : letters_key, fmt::format("1 to {} blocks", kLayerLimits.most));
  return out;
}

std::vector<Block> nemotron_blocks(const Fields& fields) {
  return blocks_of(fields, present_key(fields, "layers_block_type|layer_types"), "hybrid_override_pattern");
}

std::int64_t nemotron_layers(const Fields& fields, const Traits&) {
  const auto count = static_cast<std::int64_t>(nemotron_blocks(fields).size());
  if (fields.has("num_hidden_layers") && fields.integer("num_hidden_layers", kLayerLimits) != count)
    fields.refuse("num_hidden_layers", fmt::format("{}, the number of blocks in the pattern", count));
  return count;
}

FeedForward nemotron_moe(const Fields& fields, const Traits& traits) {
  FeedForward out = moe_feed_forward(fields, traits);
  out.latent_width = fields.integer_or("moe_latent_size", 0, kWidthLimits);
  return out;
}

Layer nemotron_layer(const Fields& fields, const Traits& traits, Block block) {
  Layer layer;
  layer.norm_place = NormPlace::single;
  switch (block) {
    case Block::mamba:
      layer.mixer = mamba2_mixer(fields, read_hidden(fields, traits), kNemotronMamba);
      layer.mixer.chunk = fields.integer_or(present_key(fields, "!mamba_chunk_size|chunk_size"), 128, {1, 65536});
      break;
    case Block::attention:
      layer.mixer = attention_without_span(fields, traits);
      break;
    case Block::dense:
      layer.feed_forward = dense_feed_forward(fields, traits);
      break;
    case Block::moe:
      layer.feed_forward = nemotron_moe(fields, traits);
      break;
  }
  return layer;
}

Mixer nemotron_mixer(const Fields&, const Traits&, std::int64_t) { return {}; }

void nemotron_adjust(const Fields& fields, const Traits& traits, std::int64_t i, Layer& layer) {
  layer = nemotron_layer(fields, traits, nemotron_blocks(fields)[static_cast<std::size_t>(i)]);
}

void nemotron_mtp(const Fields& fields, const Traits& traits, Architecture& out) {
  const std::int64_t count = fields.integer_or("num_nextn_predict_layers", 0, kFewLimits);
  if (count == 0 || (!fields.has("mtp_layers_block_type") && !fields.has("mtp_hybrid_override_pattern"))) return;
  for (const Block block : blocks_of(fields, "mtp_layers_block_type", "mtp_hybrid_override_pattern"))
    out.mtp.layers.push_back({nemotron_layer(fields, traits, block), count});
  out.mtp.projections = count;
  out.mtp.norms = 3 * count;
}

constexpr Traits kNemotronH{
    .family = "nemotron_h",
    .head_dim = "head_dim|attention_head_dim",
    .activation = "mlp_hidden_act",
    .kv_heads_otherwise = 8,
    .head_dim_otherwise = 128,
    .tied = kNever,  // the class ties nothing, whatever the file says
    .q_bias = by("attention_bias"),
    .kv_bias = by("attention_bias"),
    .out_bias = by("attention_bias"),
    .mlp_bias = by("mlp_bias"),
    .gated = false,
    .activation_otherwise = "relu2",
    .rotary = false,
    .moe = {.shared_width = "moe_shared_expert_intermediate_size",
            .experts_gated = false,
            .correction_bias = kAlways,
            .score = RouterScore::sigmoid,
            .router_in_fp32 = true,
            .groups_otherwise = 1,
            .top_groups_otherwise = 1},
    .is_moe = true,
    .layer_count = nemotron_layers,
    .mixer = nemotron_mixer,
    .feed_forward = nothing,
    .adjust = nemotron_adjust,
    .finish = nemotron_mtp,
};

constexpr Family kStateSpaceFamilies[] = {
    {"mamba", "", kMamba},
    {"mamba2", "", mamba2()},
    {"falcon_mamba", "", falcon_mamba()},
    {"nemotron_h", "", kNemotronH},
};

}  // namespace

Mixer mamba1_mixer(const Fields& fields, std::int64_t hidden, const MambaKeys& keys) {
  Mixer mixer;
  mixer.kind = MixerKind::mamba1;
  const std::string_view inner_key = present_key(fields, keys.inner);
  mixer.inner = !inner_key.empty() && fields.has(inner_key) ? fields.integer(inner_key, kWidthLimits)
                                                            : hidden * fields.integer_or(keys.expand, 2, {1, 16});
  mixer.state_size = state_of(fields, keys);
  mixer.conv_kernel = fields.integer_or(keys.conv, 4, {1, 64});
  // "auto" and an absent key both mean ceil(hidden / 16).
  const bool stated = fields.has(keys.dt_rank) && !fields.is_text(keys.dt_rank);
  mixer.dt_rank = stated ? fields.integer(keys.dt_rank, kWidthLimits) : ceil_div(hidden, 16);
  mixer.conv_bias = flag_of(fields, keys.conv_bias, keys.conv_bias_otherwise);
  mixer.q_bias = mixer.out_bias = flag_of(fields, keys.proj_bias, false);
  mixer.ssm_norms = keys.norms;
  return mixer;
}

Mixer mamba2_mixer(const Fields& fields, std::int64_t hidden, const MambaKeys& keys) {
  Mixer mixer;
  mixer.kind = MixerKind::mamba2;
  mixer.linear_value_heads = fields.integer(keys.heads, kHeadLimits);
  // Granite 4 writes "auto" for expand * hidden / heads.
  const bool stated = fields.has(keys.head_dim) && !fields.is_text(keys.head_dim);
  const std::int64_t expanded = hidden * fields.integer_or(keys.expand, 2, {1, 16});
  if (!stated && (keys.expand.empty() || expanded % mixer.linear_value_heads != 0)) fields.refuse(keys.head_dim, "an integer");
  mixer.linear_value_dim = stated ? fields.integer(keys.head_dim, kHeadDimLimits) : expanded / mixer.linear_value_heads;
  mixer.inner = mixer.linear_value_heads * mixer.linear_value_dim;
  mixer.state_size = state_of(fields, keys);
  mixer.groups = fields.integer_or(present_key(fields, keys.groups), keys.groups_otherwise, kHeadLimits);
  mixer.conv_kernel = fields.integer_or(present_key(fields, keys.conv), 4, {1, 64});
  mixer.conv_bias = flag_of(fields, keys.conv_bias, keys.conv_bias_otherwise);
  mixer.q_bias = mixer.out_bias = flag_of(fields, keys.proj_bias, false);
  return mixer;
}

std::span<const Family> state_space_families() { return kStateSpaceFamilies; }

}  // namespace oomplan
