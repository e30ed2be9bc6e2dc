#include "frontends/areal/archon.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "layout/letters.hpp"
#include "units/sizes.hpp"

namespace oomplan::areal {
namespace {

std::string at(const BuiltRole& r, std::string_view name) { return fmt::format("{}.{}", r.path, name); }

bool flag(const compose::Node& root, const std::string& path) {
  const auto* n = root.at(path);
  return n != nullptr && n->kind == compose::Node::Kind::boolean && n->boolean;
}
std::string word(const compose::Node& root, const std::string& path, std::string otherwise) {
  const auto* n = root.at(path);
  return n != nullptr && n->kind == compose::Node::Kind::text ? n->text : otherwise;
}
Origin origin_of(const compose::Node& root, const std::string& path) {
  const auto* n = root.at(path);
  return n == nullptr ? Origin{} : n->origin;
}

/// "op", or one block of so many: a number of digits, where 0 is every block too (_apply_layer_sac).
bool of_blocks(const std::string& option) {
  return !option.empty() && option.size() < 5 &&
         std::all_of(option.begin(), option.end(), [](char c) { return c >= '0' && c <= '9'; });
}

class Refusals {
 public:
  Refusals(const compose::Node& root, const BuiltRole& r) : root_(root), r_(r) {}

  void key(std::string_view name, std::string_view what) {
    const std::string path = at(r_, name);
    const auto* n = root_.at(path);
    if (n != nullptr) add(n->origin.place, path, compose::describe(*n), what);
  }
  void allocation(std::string_view path, std::string_view what) {
    add(r_.allocation.place, path, fmt::format("'{}'", letters(r_.part.layout)), what);
  }
  void flagged(std::string_view name, std::string_view what) {
    if (flag(root_, at(r_, name))) key(name, what);
  }
  std::vector<Problem> take() { return std::move(out_); }

 private:
  void add(Place place, std::string_view path, std::string found, std::string_view what) {
    place.path = path;
    out_.push_back({std::move(place), std::move(found), {}, {}, fmt::format("not supported yet: {}", what)});
  }
  const compose::Node& root_;
  const BuiltRole& r_;
  std::vector<Problem> out_;
};

}  // namespace

bool pads_to_pages(const compose::Node& root, const BuiltRole& r) {
  return r.part.backend == Backend::archon && !flag(root, at(r, "pad_to_maximum"));
}

std::vector<Problem> archon_problems(const Meaning& m, const compose::Node& root, const BuiltRole& r, std::string_view key) {
  if (r.part.backend != Backend::archon) return {};
  Refusals out(root, r);
  if (m.release < release_named("0.5.3")) out.allocation(key, "Archon of AReaL 0.5.2, which makes the whole model on every GPU");
  if (r.part.layout.pipeline > 1) out.allocation(key, "pipelines of Archon");
  if (r.part.layout.expert > 1) out.allocation(key, "expert parallelism of Archon");
  out.flagged("archon.enable_compile", "torch.compile of Archon's blocks (archon.enable_compile: false is)");
  out.flagged("archon.offload_params", "Archon with its parameters on the host");
  if (word(root, at(r, "archon.fp8_config.mode"), "disabled") != "disabled")
    out.key("archon.fp8_config.mode", "Archon in 8 bits");
  if (word(root, at(r, "archon.attn_type"), "varlen") != "varlen")
    out.key("archon.attn_type", "another attention of Archon than varlen");
  const std::string mode = word(root, at(r, "archon.ac_mode"), "selective");
  if (flag(root, at(r, "gradient_checkpointing")) && mode == "memory_budget")
    out.key("archon.ac_mode", "a memory budget of compiled blocks");
  if (word(root, at(r, "dtype"), "bfloat16") != "bfloat16") out.key("dtype", "Archon in another format than bfloat16");
  return out.take();
}

std::optional<Wording> archon_wording(const BuiltRole& r, std::string_view knob, std::string_view text) {
  const std::string checkpoints = at(r, "gradient_checkpointing"), mode = at(r, "archon.ac_mode");
  const std::string policy = at(r, "archon.reshard_after_forward_policy");
  if (knob == "recompute" && text == "none") return Wording{{{checkpoints, false}}, {}};
  if (knob == "recompute" && text == "full") return Wording{{{checkpoints, true}, {mode, "full"}}, {}};
  if (knob == "recompute")
    return Wording{{{checkpoints, true}, {mode, "selective"}, {at(r, "archon.selective_ac_option"), "op"}}, {}};
  // without it a budget is padded to pages whose size the key cannot say
  if (const auto budget = read_count(text); knob == "tokens_per_micro_batch" && budget)
    return Wording{{{at(r, "mb_spec.max_tokens_per_mb"), *budget.value}, {at(r, "pad_to_maximum"), true}}, {}};
  if (knob == "reshard_after_forward") return Wording{{{policy, text == "true" ? "default" : "never"}}, {}};
  if (knob == "reshard_last") return Wording{{{policy, text == "true" ? "always" : "default"}}, {}};
  if (knob == "kernels" || knob == "memory_efficient_load" || knob == "cpu_offload_policy" || knob.starts_with("precision."))
    return Wording{{}, fmt::format("no key of Archon sets {}", knob)};
  return std::nullopt;
}

std::vector<ArchonSetting> archon_settings(const Meaning&, const compose::Node& root, const BuiltRole& r) {
  std::vector<ArchonSetting> out;
  if (r.part.backend != Backend::archon) return out;
  const std::string mode_path = at(r, "archon.ac_mode"), option_path = at(r, "archon.selective_ac_option");
  const std::string mode = word(root, mode_path, "selective"), option = word(root, option_path, "op");
  if (flag(root, at(r, "gradient_checkpointing")) && mode == "selective" && of_blocks(option)) {
    out.push_back({"recompute", "full", origin_of(root, option_path)});
    const int every = std::max(1, std::stoi(option));
    if (every > 1) out.push_back({"recompute_every", fmt::format("{}", every), origin_of(root, option_path)});
  }
  const std::string policy_path = at(r, "archon.reshard_after_forward_policy");
  const std::string policy = word(root, policy_path, "default");
  if (policy == "never") out.push_back({"reshard_after_forward", "false", origin_of(root, policy_path)});
  if (policy == "always") out.push_back({"reshard_last", "true", origin_of(root, policy_path)});
  return out;
}

}  // namespace oomplan::areal
