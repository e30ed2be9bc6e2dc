// Readers of single values that many families share.
#include <array>
#include <cmath>
#include <utility>

#include "catalog/families/traits.hpp"

namespace oomplan {
namespace {

struct ActivationRow {
  std::string_view name;
  Activation value;
};
// The clamped and scaled variants of the gate (gpt-oss and MiniMax-M3 "swigluoai", Kimi-K3 "situ") count with SiLU.
constexpr ActivationRow kActivations[] = {
    {"silu", Activation::silu},         {"swish", Activation::silu},          {"swigluoai", Activation::silu},
    {"situ", Activation::silu},         {"gelu", Activation::gelu},           {"gegelu", Activation::gelu},
    {"gelu_new", Activation::gelu_new}, {"gelu_fast", Activation::gelu_tanh}, {"gelu_pytorch_tanh", Activation::gelu_tanh},
    {"quick_gelu", Activation::gelu},   {"relu", Activation::relu},           {"relu2", Activation::relu_squared},
    {"xielu", Activation::xielu},
};

}  // namespace

std::string_view present_key(const Fields& fields, std::string_view alternatives) {
  const std::string_view first = alternatives.substr(0, alternatives.find('|'));
  while (true) {
    const std::size_t bar = alternatives.find('|');
    const std::string_view key = alternatives.substr(0, bar);
    if (!key.empty() && fields.has(key)) return key;
    if (bar == std::string_view::npos) return first;
    alternatives.remove_prefix(bar + 1);
  }
}

bool chosen(const Fields& fields, Choice choice) {
  return choice.key.empty() ? choice.otherwise : fields.flag_or(present_key(fields, choice.key), choice.otherwise);
}

Activation read_activation(const Fields& fields, std::string_view keys, std::string_view otherwise) {
  const std::string_view key = present_key(fields, keys);
  const std::string text = fields.text_or(key, otherwise);
  std::vector<std::string> valid;
  for (const auto& row : kActivations) {
    if (row.name == text) return row.value;
    valid.emplace_back(row.name);
  }
  fields.refuse(key, list_of(valid), "", nearest(text, valid));
}

std::int64_t read_hidden(const Fields& fields, const Traits& traits) {
  return fields.integer(present_key(fields, traits.hidden), kHiddenLimits);
}

std::int64_t read_layers(const Fields& fields, const Traits& traits) {
  return fields.integer(present_key(fields, traits.layers), kLayerLimits);
}

std::int64_t read_rotary_dim(const Fields& fields, const Traits& traits, std::int64_t head_dim) {
  if (!traits.rotary) return 0;
  if (fields.has("rotary_dim")) return fields.integer("rotary_dim", {0, head_dim});
  double fraction = traits.rotary_fraction;
  const std::string_view key = present_key(fields, "partial_rotary_factor|rotary_pct");
  if (const auto rope = fields.object_if("rope_parameters")) fraction = rope->number_or("partial_rotary_factor", fraction, 0, 1);
  fraction = fields.number_or(key, fraction, 0, 1);
  return static_cast<std::int64_t>(std::floor(fraction * static_cast<double>(head_dim)));
}

}  // namespace oomplan
