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
  /// What AReaL refuses itself.
  void theirs(std::string_view name, std::string found, std::string expected, std::string why) {
    const std::string path = at(r_, name);
    Place place = origin_of(root_, path).place;
    place.path = path;
    out_.push_back({std::move(place), std::move(found), std::move(expected), {}, std::move(why)});
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

/// archon_utils.py, force_pad_to_maximum; models/tree_attn/tree.py, build_packed_tree_batch: what AReaL itself refuses is told as
/// such.
void tree_problems(const Meaning& m, const compose::Node& root, const BuiltRole& r, Refusals& out) {
  constexpr std::string_view kKey = "enable_tree_training";
  if (!flag(root, at(r, kKey))) return;
  if (m.release < release_named("1.0.0")) return out.key(kKey, "tree training of Archon before AReaL 1.0.0");
  if (r.part.layout.context > 1)
    return out.theirs(kKey, "'true'", "false, or c1",
                      "AReaL has no tree training of ranks that share a sequence (archon_utils.py)");
  if (r.name == "critic") return out.theirs(kKey, "'true'", "false", "AReaL has no critic of packed trees (archon_utils.py)");
  if (r.part.layout.tensor > 1) return out.key(kKey, "tree training under tensor parallelism");
  const auto* budget = root.at(at(r, "mb_spec.max_tokens_per_mb"));
  const bool counted = budget != nullptr && budget->kind == compose::Node::Kind::integer && budget->integer > 0;
  if (!counted || budget->integer % 128 != 0)
    out.theirs("mb_spec.max_tokens_per_mb", counted ? fmt::format("{}", budget->integer) : "nothing", "a multiple of 128 tokens",
               "AReaL packs trees in blocks of 128 (areal/models/tree_attn/tree.py)");
}

bool in_8_bits(const compose::Node& root, const BuiltRole& r) {
  return word(root, at(r, "archon.fp8_config.mode"), "disabled") == "blockwise";
}
/// areal/experimental/engine/archon_utils.py, prepare_training_config, 1.0.4: in 8 bits torch.compile is turned off.
bool compiles(const compose::Node& root, const BuiltRole& r) {
  return flag(root, at(r, "archon.enable_compile")) && word(root, at(r, "archon.fp8_config.mode"), "disabled") == "disabled";
}
void compile_problems(const compose::Node& root, const BuiltRole& r, Refusals& out) {
  constexpr std::string_view kKey = "archon.enable_compile";
  if (!compiles(root, r)) return;
  if (r.part.layout.tensor > 1) out.key(kKey, "torch.compile of Archon's blocks under tensor parallelism");
  if (r.part.layout.context > 1) out.key(kKey, "torch.compile of Archon's blocks whose ranks share a sequence");
  if (flag(root, at(r, "enable_tree_training"))) out.key(kKey, "torch.compile of Archon's blocks with packed trees");
}
/// areal/api/cli_args.py: ArchonFP8Config, 1.0.4.
void fp8_problems(const compose::Node& root, const BuiltRole& r, Refusals& out) {
  const std::string mode = word(root, at(r, "archon.fp8_config.mode"), "disabled");
  if (mode == "disabled") return;
  if (mode != "blockwise") return out.key("archon.fp8_config.mode", "Archon in 8 bits of other blocks than 128");
  if (r.part.layout.tensor > 1) out.key("archon.fp8_config.mode", "Archon in 8 bits under tensor parallelism");
  out.flagged("archon.fp8_config.include_experts", "experts of Archon in 8 bits");
  const auto* left_out = root.at(at(r, "archon.fp8_config.exclude_modules"));
  std::vector<std::string> names;
  if (left_out != nullptr)
    for (const auto& item : left_out->items) names.push_back(item.text);
  if (names != std::vector<std::string>{"output", "router", "score"})
    out.key("archon.fp8_config.exclude_modules", "a choice of Archon's matrices in 8 bits");
}

}  // namespace

bool pads_to_pages(const compose::Node& root, const BuiltRole& r) {
  return r.part.backend == Backend::archon && !flag(root, at(r, "pad_to_maximum")) && !compiles(root, r) &&
         !flag(root, at(r, "enable_tree_training"));
}

std::vector<Problem> archon_problems(const Meaning& m, const compose::Node& root, const BuiltRole& r, std::string_view key) {
  if (r.part.backend != Backend::archon) return {};
  Refusals out(root, r);
  if (m.release < release_named("0.5.3")) out.allocation(key, "Archon of AReaL 0.5.2, which makes the whole model on every GPU");
  if (r.part.layout.pipeline > 1) out.allocation(key, "pipelines of Archon");
  if (r.part.layout.expert > 1) out.allocation(key, "expert parallelism of Archon");
  compile_problems(root, r, out);
  tree_problems(m, root, r, out);
  out.flagged("archon.offload_params", "Archon with its parameters on the host");
  fp8_problems(root, r, out);
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
  if (knob == "compile") return Wording{{{at(r, "archon.enable_compile"), text == "true"}}, {}};
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
  if (const std::string path = at(r, "archon.enable_compile"); compiles(root, r))
    out.push_back({"compile", "true", origin_of(root, path)});
  if (in_8_bits(root, r)) out.push_back({"float8", "blockwise", origin_of(root, at(r, "archon.fp8_config.mode"))});
  if (const std::string trees = at(r, "enable_tree_training"); flag(root, trees))
    out.push_back({"tree_training", "true", origin_of(root, trees)});
  const std::string policy_path = at(r, "archon.reshard_after_forward_policy");
  const std::string policy = word(root, policy_path, "default");
  if (policy == "never") out.push_back({"reshard_after_forward", "false", origin_of(root, policy_path)});
  if (policy == "always") out.push_back({"reshard_last", "true", origin_of(root, policy_path)});
  return out;
}

}  // namespace oomplan::areal
