// An allocation as text in the grammar of a release: what somebody who moves a file between releases has to write.
#include <fmt/format.h>

#include "frontends/areal/grammars.hpp"

namespace oomplan::areal {
namespace {

std::string degrees(std::initializer_list<std::pair<std::string_view, std::int64_t>> all, bool ones) {
  std::string out;
  for (const auto& [letter, degree] : all)
    if (degree > 1 || ones) out += fmt::format("{}{}", letter, degree);
  return out.empty() ? "d1" : out;
}

/// realhf and lite: all three letters, nothing else exists.
std::string three(const Layout& l, const Grammar& grammar) {
  if (l.context > 1 || l.expert > 1) return {};
  const std::string_view tensor = grammar.letters.find('m') != std::string_view::npos ? "m" : "t";
  return degrees({{"d", l.data}, {"p", l.pipeline}, {tensor, l.tensor}}, true);
}

std::string letters_of(const Part& part, const Grammar& grammar) {
  const Layout& l = part.layout;
  if (!grammar.dot && !grammar.names) return three(l, grammar);
  const std::string attention = degrees({{"d", l.data}, {"p", l.pipeline}, {"t", l.tensor}, {"c", l.context}}, false);
  const bool own_experts = l.hybrid || l.expert_tensor != (grammar.expert_tensor_is_tensor ? l.tensor : 1);
  if (!own_experts || l.expert == 1) return l.expert > 1 ? fmt::format("{}e{}", attention, l.expert) : attention;
  return fmt::format("(attn:{}|ffn:{})", attention,
                     degrees({{"d", part.expert_data}, {"p", l.pipeline}, {"t", l.expert_tensor}, {"e", l.expert}}, false));
}

std::string backend_of(const Part& part) {
  if (part.backend == Backend::mock) return "sglang";
  if (part.backend != Backend::realhf) return std::string(spelling(part.backend));
  return part.layout.pipeline > 1 || part.layout.expert > 1 ? "megatron" : "fsdp";
}

}  // namespace

std::string spelled(const Allocation& allocation, const Grammar& grammar) {
  const bool pattern = grammar.era <= Era::lite;
  std::string out;
  for (const Part& part : allocation.parts) {
    if (part.kind == PartKind::evaluation) {
      if (!grammar.evaluation) return {};
      out += "+eval";
      continue;
    }
    const std::string letters = letters_of(part, grammar);
    if (letters.empty()) return {};
    if (!out.empty()) out += part.anchor ? '|' : '+';
    if (!pattern || part.kind == PartKind::inference) out += backend_of(part);
    if (!part.name.empty() && grammar.names) out += fmt::format("[{}]", part.name);
    if (!pattern || part.kind == PartKind::inference) out += pattern ? '.' : ':';
    out += letters;
  }
  return out;
}

}  // namespace oomplan::areal
