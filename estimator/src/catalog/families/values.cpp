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
  std::string_view stated = {}, known = {}, by_default = {}, first = {};
  for (std::string_view rest = alternatives; !rest.empty();) {
    const std::size_t bar = rest.find('|');
    std::string_view key = rest.substr(0, bar);
    rest = bar == std::string_view::npos ? std::string_view{} : rest.substr(bar + 1);
    const bool always = key.starts_with('!');
    if (always) key.remove_prefix(1);
    if (first.empty()) first = key;
    if (fields.has(key) && fields.stated(key) && (always || !fields.has_class() || fields.of_class(key))) return key;
    if (stated.empty() && fields.stated(key)) stated = key;
    if (known.empty() && fields.of_class(key)) known = key;
    if (by_default.empty() && fields.has(key) && !fields.stated(key)) by_default = key;
  }
  for (const std::string_view key : {by_default, known, stated})
    if (!key.empty()) return key;
  return first;
}

bool ignored_by_class(const Fields& fields, std::string_view alternatives) {
  if (!fields.has_class()) return false;
  while (!alternatives.empty()) {
    const std::size_t bar = alternatives.find('|');
    const std::string_view key = alternatives.substr(0, bar);
    if (key.starts_with('!') || fields.of_class(key)) return false;
    alternatives = bar == std::string_view::npos ? std::string_view{} : alternatives.substr(bar + 1);
  }
  return true;
}

bool chosen(const Fields& fields, Choice choice) {
  return choice.key.empty() || ignored_by_class(fields, choice.key)
             ? choice.otherwise
             : fields.flag_or(present_key(fields, choice.key), choice.otherwise);
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
  if (fields.has_class() && fields.stated(key) && fields.is_null(key)) fields.refuse(key, "a number from 0 to 1");
  if (const auto rope = fields.object_if("rope_parameters")) fraction = rope->number_or("partial_rotary_factor", fraction, 0, 1);
  fraction = fields.number_or(key, fraction, 0, 1);
  return static_cast<std::int64_t>(std::floor(fraction * static_cast<double>(head_dim)));
}

}  // namespace oomplan
