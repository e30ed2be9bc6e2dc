#include "frontends/verl/ranges.hpp"

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "job/limits.hpp"

namespace oomplan::verl {
namespace {

using compose::Node;

/// Of keys that end so.
struct Range {
  std::string_view end;
  std::int64_t least, most;
};
constexpr std::array<Range, 21> kRanges{{
    {"trainer.nnodes", 1, 1 << 16},
    {"trainer.n_gpus_per_node", 1, 1 << 10},
    {"nnodes", 0, 1 << 16},
    {"n_gpus_per_node", 0, 1 << 10},
    {"parallel_size", 1, 1 << 17},
    {"fsdp_size", -1, 1 << 17},
    {"_prompt_length", 1, kTokenLimit.most},
    {"_response_length", 1, kTokenLimit.most},
    {"max_length", 1, kTokenLimit.most},
    {"max_model_len", 1, kTokenLimit.most},
    {"token_len_per_gpu", 1, kTokenLimit.most},
    {"max_num_batched_tokens", 1, kTokenLimit.most},
    {"batch_size", 0, 1 << 24},
    {"batch_size_per_gpu", 0, 1 << 24},
    {"max_num_seqs", 1, 1 << 20},
    {".n", 1, 1 << 20},
    {"_megabytes", 1, 1 << 20},
    {"lora_rank", 0, 1 << 12},
    {"lora.rank", 0, 1 << 12},
    {"num_layers", 0, 1 << 14},
    {"min_num_params", 0, std::int64_t{1} << 50},
}};

/// One number may stand behind several keys, by links: it is told once, at its own.
struct OutOfRange {
  Problem problem;
  std::string literal;  ///< the key where it is written
  bool linked = false;
};

void look(Node& node, const std::string& path, std::vector<OutOfRange>& out) {
  for (auto& entry : node.entries) look(entry.value, path.empty() ? entry.key : path + "." + entry.key, out);
  for (std::size_t i = 0; i < node.items.size(); ++i) look(node.items[i], fmt::format("{}.{}", path, i), out);
  const bool whole = node.kind == Node::Kind::integer;
  if (node.kind == Node::Kind::text && node.text == "None") return;  // verl 0.4 and 0.5 write null so
  if (!whole && node.kind != Node::Kind::text && node.kind != Node::Kind::boolean && node.kind != Node::Kind::real) return;
  for (const Range& range : kRanges) {
    if (!path.ends_with(range.end) || (whole && node.integer >= range.least && node.integer <= range.most)) continue;
    Place place = node.origin.place;
    place.path = path;
    out.push_back({{std::move(place),
                    compose::describe(node),
                    fmt::format("a whole number, {} to {}", range.least, range.most),
                    {},
                    {},
                    {}},
                   node.via.empty() ? path : node.via.back().key,
                   !node.via.empty()});
    node.integer = std::clamp(whole ? node.integer : range.least, range.least, range.most);
    node.kind = Node::Kind::integer;
    return;
  }
}

}  // namespace

std::vector<Problem> bring_into_range(Node& root) {
  std::vector<OutOfRange> all;
  look(root, "", all);
  std::stable_partition(all.begin(), all.end(), [](const OutOfRange& p) { return !p.linked; });
  std::vector<Problem> out;
  for (auto it = all.begin(); it != all.end(); ++it)
    if (std::none_of(all.begin(), it, [&](const OutOfRange& p) { return p.literal == it->literal; }))
      out.push_back(std::move(it->problem));
  return out;
}

}  // namespace oomplan::verl
