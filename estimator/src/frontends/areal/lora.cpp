#include "frontends/areal/lora.hpp"

#include <string_view>

#include <fmt/format.h>

#include "frontends/areal/releases.hpp"

namespace oomplan::areal {
namespace {

using compose::Node;

bool flag(const Node& root, std::string_view path) {
  const Node* n = root.at(path);
  return n != nullptr && n->kind == Node::Kind::boolean && n->boolean;
}
const Node* whole(const Node& root, std::string_view path) {
  const Node* n = root.at(path);
  return n != nullptr && n->kind == Node::Kind::integer ? n : nullptr;
}
Origin derived(std::string because) { return {Origin::Kind::derived, {}, std::move(because), {}}; }

/// "[q_proj, v_proj]" of a list of texts; "" of an empty list, of "all-linear", and of anything else.
std::string targets_of(const Node* n) {
  if (n == nullptr || n->kind != Node::Kind::list) return {};
  std::string out;
  for (const Node& item : n->items) {
    if (n->items.size() == 1 && item.text == "all-linear") return {};
    out += fmt::format("{}{}", out.empty() ? "" : ", ", compose::python_text(item));
  }
  return out.empty() ? out : fmt::format("[{}]", out);
}

/// SGLang 0.5.7 counts embedding and head among all modules unless its chunked backend runs; AReaL takes triton
/// (sglang/srt/server_args.py; areal/api/cli_args.py SGLangConfig.lora_backend; installed by AReaL 0.5.2 to 0.5.3, whose
/// `all-linear` becomes SGLang's `all`).
constexpr std::string_view kAllOfSglang =
    "[q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj, embed_tokens, lm_head]";

class Room {
 public:
  Room(const Meaning& m, const Node& root, const BuiltRole& role) : m_(m), root_(root), role_(role) {}

  std::vector<LoraSetting> settings() {
    const std::string engine(spelling(role_.part.backend));
    const bool trained = flag(root_, "actor.use_lora");
    if (!trained && !flag(root_, engine + ".enable_lora")) return {};
    if (role_.part.backend == Backend::sglang)
      sglang(trained);
    else
      vllm();
    return std::move(out_);
  }

 private:
  void put(std::string knob, const Node* n, std::string otherwise, std::string because) {
    if (n != nullptr)
      out_.push_back({std::move(knob), compose::python_text(*n), n->origin});
    else
      out_.push_back({std::move(knob), std::move(otherwise), derived(std::move(because))});
  }
  std::string rank_of_actor() const {
    const Node* n = whole(root_, "actor.lora_rank");
    return n == nullptr ? "32" : compose::python_text(*n);
  }
  void sglang(bool trained) {
    put("lora.slots", whole(root_, "sglang.max_loras_per_batch"), "8", "SGLang's own max_loras_per_batch");
    const Node* rank = whole(root_, "sglang.max_lora_rank");
    if (rank != nullptr || trained)
      put("lora.rank", rank, rank_of_actor(), "SGLang makes room for the rank of the adapter that it starts with");
    const Node* targets = root_.at("sglang.lora_target_modules");
    if (std::string text = targets_of(targets); !text.empty())
      out_.push_back({"lora.targets", std::move(text), targets->origin});
    else if (targets != nullptr && targets->kind == Node::Kind::list && m_.release >= release_named("0.5.2") &&
             m_.release < release_named("1.0.0"))
      out_.push_back({"lora.targets", std::string(kAllOfSglang), targets->origin});
    else if (text = targets_of(root_.at("actor.target_modules")); targets == nullptr && !text.empty())
      out_.push_back(
          {"lora.targets", std::move(text), derived("SGLang makes room beside the modules of the adapter that it starts with")});
  }
  void vllm() {
    // before 1.0.0 no key sets them: vllm/config/lora.py
    put("lora.slots", whole(root_, "vllm.max_loras"), "1", "vLLM's own max_loras");
    put("lora.rank", whole(root_, "vllm.max_lora_rank"), "16", "vLLM's own max_lora_rank");
  }

  const Meaning& m_;
  const Node& root_;
  const BuiltRole& role_;
  std::vector<LoraSetting> out_;
};

}  // namespace

std::vector<LoraSetting> lora_of_trainer(const Meaning& m, const Node& root, const BuiltRole& role) {
  std::vector<LoraSetting> out;
  if (!flag(root, role.path + ".use_lora")) return out;
  const auto at = [&](std::string_view name) { return fmt::format("{}.{}", role.path, name); };
  const Fact* told = m.find(fmt::format("roles.{}.lora", role.name));
  for (const auto& [key, part, knob] :
       {std::tuple{"lora_rank", "rank", "lora.rank"}, std::tuple{"lora_alpha", "alpha", "lora.alpha"}}) {
    const FactValue* value = told == nullptr ? nullptr : told->value.find(part);
    const Node* n = root.at(at(key));
    if (value != nullptr) out.push_back({knob, value->plain(), n != nullptr ? n->origin : told->origin});
  }
  const Node* targets = root.at(at("target_modules"));
  if (std::string text = targets_of(targets); !text.empty()) out.push_back({"lora.targets", std::move(text), targets->origin});
  out.push_back({"lora.format", "storage", derived("AReaL stores adapters like the frozen parameters (autocast_adapter_dtype)")});
  return out;
}

std::vector<LoraSetting> lora_of_server(const Meaning& m, const Node& root, const BuiltRole& role) {
  return Room(m, root, role).settings();
}

std::optional<Problem> lora_problem(const Node& root, const BuiltRole& role) {
  const std::string path = role.path + ".use_lora", type = role.path + ".peft_type";
  if (!flag(root, path)) return std::nullopt;
  const auto problem = [&](const std::string& key, std::string expected, std::string why) {
    const Node* n = root.at(key);
    Place place = n->origin.place;
    place.path = key;
    return Problem{std::move(place), compose::describe(*n), std::move(expected), {}, std::move(why)};
  };
  if (const Node* n = root.at(type); n != nullptr && n->text != "lora")
    return problem(type, "lora", "AReaL itself refuses other kinds of adapters");
  if (role.name == "ref" || role.name == "teacher")
    return problem(path, {}, "not supported yet: adapters of a role that does not train");
  return std::nullopt;
}

}  // namespace oomplan::areal
