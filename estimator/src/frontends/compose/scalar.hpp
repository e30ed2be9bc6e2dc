// What a plain YAML scalar means to OmegaConf: PyYAML's YAML 1.1 types, OmegaConf's float rule, no dates.
#pragma once
#include <optional>
#include <string>
#include <string_view>

#include "frontends/compose/node.hpp"

namespace oomplan::compose {

/// null, boolean, integer, real or text; broken where Python would raise (text: why). Origin is left empty.
Node plain_scalar(std::string_view text);
/// A scalar behind a tag such as !!int. nullopt: the tag is not one of those that hold plain values.
std::optional<Node> tagged_scalar(std::string_view tag, const std::string& text);
/// Text, or missing for "???". Interpolations are not looked at.
Node text_scalar(std::string text);

/// Python's float() of digits without underscores: too large is infinite, too small zero.
double python_float(const std::string& digits);
/// Python's int() of digits without underscores; nullopt: beyond 64 bits.
std::optional<std::int64_t> python_int(std::string_view digits, int base);

inline constexpr std::string_view kTooLarge = "an integer of more than 64 bits";

}  // namespace oomplan::compose
