#include "layers/compiled_order.hpp"

#include <algorithm>
#include <map>
#include <string>

#include <oomplan/units/dtype.hpp>

#include "layers/compiled_words.hpp"

namespace oomplan {
namespace {

/// Of the backward program. What is an input of the forward program stays, so inductor leaves it out
/// (torch/_inductor/utils.py, is_nonfreeable_buffers, 2.13).
Bytes backward_peak(const CompiledGraph& graph, const CompiledWords& words, DType dtype, const TokenCounts& counts) {
  const auto bytes = [&](std::string_view word) {
    const CompiledBuffer made = words.allocated(word, dtype);
    return elements(made.shape).value(counts) * row(made.dtype).bits / 8;
  };
  std::map<std::string, Bytes, std::less<>> sizes;
  for_words(graph.forward, [&](std::string_view word) {
    if (word.front() == '+') sizes["f" + std::string(word.substr(1, word.find('=') - 1))] = bytes(word);
  });
  Bytes now = 0, highest = 0;
  for_words(graph.backward, [&](std::string_view word) {
    if (word.front() == '+') {
      now += sizes[std::string(word.substr(1, word.find('=') - 1))] = bytes(word);
      highest = std::max(highest, now);
    } else if (const auto it = sizes.find(word.substr(1)); it != sizes.end()) {
      now -= it->second;
      sizes.erase(it);
    }
  });
  return highest;
}

/// Rows of cosines and sines for T tokens, or the table for P positions and the tokens' positions: what weighs less in the cut of
/// the joint graph. A number counts 1.1 times for every operator between it and backward, and twice where it would not be written
/// down otherwise (torch/_functorch/partitioners.py, get_node_weight, 2.13): 2 * 1.1 (2 T d) against 1.1^4 (2 P d) of 16 bits
/// and 1.1^5 T of 64.
bool keeps_table(const Architecture& a, std::int64_t tokens) {
  const std::int64_t d = a.runs.front().layer.mixer.head_dim;
  return 20000 * tokens * d > 13310 * a.max_positions * d + 29282 * tokens;
}

}  // namespace

int archon_order(const Architecture& a, Recompute recompute, DType dtype, const TokenCounts& counts) {
  const CompiledWords words{a, a.runs.front().layer, 1};
  const bool whole_table = recompute == Recompute::none && keeps_table(a, axis::T.value(counts));
  int order = -1, best = 0;
  Bytes lowest = 0;
  for (const auto& [of_whole_table, graph] : archon_graphs()) {
    if (graph.family != a.family || graph.recompute != recompute) continue;
    ++order;
    if (of_whole_table != whole_table) continue;
    const Bytes peak = backward_peak(graph, words, dtype, counts);
    if (lowest > 0 && peak >= lowest) continue;
    lowest = peak;
    best = order;
  }
  return best;
}

const CompiledGraph* find_archon_graph(std::string_view family, Recompute recompute, int order) {
  for (const ArchonGraph& one : archon_graphs())
    if (one.graph.family == family && one.graph.recompute == recompute && order-- == 0) return &one.graph;
  return nullptr;
}

}  // namespace oomplan
