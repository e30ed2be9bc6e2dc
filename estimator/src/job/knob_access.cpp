#include "job/knob_access.hpp"

#include "job/knobs.hpp"
#include "job/unsupported.hpp"

namespace oomplan::knob {
namespace {

Refusal out_of_limits(const Knob& k, const std::string& least, const std::string& most) {
  const std::string unit = k.unit.empty() ? "" : fmt::format(" {}", k.unit);
  return {fmt::format("{} to {}{}", least, most, unit), {}, {}};
}

std::string or_word(const Knob& k, std::string expected) {
  return k.zero.empty() ? expected : fmt::format("{}, or {}", expected, k.zero);
}

}  // namespace

Refusal check_count(const Knob& k, std::string_view text, std::int64_t& out) {
  if (!k.zero.empty() && text == k.zero) return out = 0, Refusal{};
  const auto said = read_count(text);
  const std::string_view unit = k.unit.empty() ? "" : k.unit;
  if (!said)
    return {or_word(k, fmt::format("a whole number{}{}, such as 8 or 16k", unit.empty() ? "" : " of ", unit)), {}, said.why};
  if (!k.limits.holds(*said.value)) return out_of_limits(k, count_text(k.limits.least), count_text(k.limits.most));
  out = *said.value;
  return {};
}

Refusal check_bytes(const Knob& k, std::string_view text, Bytes& out) {
  if (!k.zero.empty() && text == k.zero) return out = 0, Refusal{};
  const auto said = read_bytes(text);
  if (!said) return {or_word(k, "a size with its unit, such as 512MiB or 1GiB"), {}, said.why};
  if (!k.limits.holds(*said.value)) return out_of_limits(k, exact_bytes_text(k.limits.least), exact_bytes_text(k.limits.most));
  out = *said.value;
  return {};
}

Refusal check_number(const Knob& k, std::string_view text, double& out) {
  if (!k.zero.empty() && text == k.zero) return out = 0, Refusal{};
  const auto said = read_number(text);
  if (!said) return {or_word(k, fmt::format("a number from {} to {}", k.least, k.most)), {}, said.why};
  if (*said.value < k.least || *said.value > k.most)
    return {or_word(k, fmt::format("a number from {} to {}", k.least, k.most)), {}, {}};
  out = *said.value;
  return {};
}

Refusal check_flag(std::string_view text, bool& out) {
  const auto said = read_flag(text);
  if (!said) return {"true or false", {}, {}};
  out = *said.value;
  return {};
}

Refusal check_layout(std::string_view text, Layout& out) {
  auto read = read_letters(text);
  if (!read) return {std::move(read.expected), std::move(read.nearest), std::move(read.why)};
  out = *read.layout;
  return {};
}

Refusal refuse_choice(const Knob& k, std::string_view text) {
  if (auto why = unsupported_value(k.key, text); !why.empty()) return {list_of(k.choices), {}, std::move(why)};
  if (const auto [value, with] = our_value(k.key, text); !value.empty())
    return {list_of(k.choices), std::string(value), std::string(with)};
  return {list_of(k.choices), nearest(text, k.choices), {}};
}

}  // namespace oomplan::knob
