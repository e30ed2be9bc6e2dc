#include "frontends/areal/server_groups.hpp"

#include <string_view>

#include <fmt/format.h>

namespace oomplan::areal {
namespace {

bool on(const compose::Node* n) { return n != nullptr && n->kind == compose::Node::Kind::boolean && n->boolean; }

/// A whole number above 1, or 1.
std::int64_t several(const compose::Node* n) {
  return n != nullptr && n->kind == compose::Node::Kind::integer && n->integer > 1 ? n->integer : 1;
}

}  // namespace

ServerGroups groups_of_server(const compose::Node& root, const BuiltRole& r) {
  ServerGroups out;
  if (r.name != "rollout" || r.part.backend != Backend::sglang) return out;
  if (const auto* each = root.at("sglang.enable_ep_moe"); on(each)) {
    out.experts = r.part.layout.tensor;
    out.experts_origin = each->origin;
  } else if (const auto* size = root.at("sglang.ep_size"); several(size) > 1) {
    out.experts = size->integer;
    out.experts_origin = size->origin;
  }
  const auto* groups = root.at("sglang.dp_size");
  if (on(root.at("sglang.enable_dp_attention")) && several(groups) > 1)
    out.settings.push_back({"attention_data", fmt::format("{}", groups->integer), groups->origin});
  return out;
}

}  // namespace oomplan::areal
