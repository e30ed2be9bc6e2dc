#include "frontends/areal/megatron.hpp"

#include <array>

#include <fmt/format.h>

#include "frontends/areal/releases.hpp"

namespace oomplan::areal {
namespace {

using compose::Node;

/// A key that asks for what is not described, and its words.
struct Asked {
  std::string_view key, what;
};
constexpr std::array<Asked, 7> kFlags{
    {{"megatron.use_torch_fsdp2", "PyTorch's FSDP inside of Megatron"},
     {"megatron.use_custom_fsdp", "Megatron-FSDP under AReaL"},
     {"megatron.enable_fp32_lm_head", "an output layer in fp32"},
     {"megatron.enable_mtp", "multi-token prediction under AReaL"},
     {"megatron.distribute_saved_activations", "checkpoints that tensor-parallel ranks share"},
     {"megatron.ddp.fp8_param_gather", "parameters in 8 bits under AReaL"},
     {"megatron.overlap_param_gather_with_optimizer_step", "a step that overlaps its gathers"}}};

std::string plain(const FactValue& v) { return v.plain(); }
std::string word(const FactValue& v) {
  const std::string name = v.plain();
  return name == "float32" ? "fp32" : name == "bfloat16" ? "bf16" : name == "float16" ? "fp16" : name;
}
std::string part(const FactValue& v, std::string_view key) {
  const FactValue* p = v.find(key);
  return p == nullptr || p->is_null() ? "" : p->plain();
}
std::string modules(const FactValue& v) {
  const FactValue* p = v.find("modules");
  if (p == nullptr || p->kind() != FactValue::Kind::list || p->empty()) return {};
  std::string out;
  for (const FactValue& one : p->items()) out += (out.empty() ? "" : ", ") + one.plain();
  return "[" + out + "]";
}

/// The same of what reaches mbridge's configuration alone (set_extra_args, 2.0.0 and later).
constexpr std::array<Asked, 2> kFlagsOfMbridge{
    {{"megatron.moe_router_fusion", "fused routers"}, {"megatron.moe_enable_deepep", "the exchange of experts by DeepEP"}}};

/// Settings of experts that reach mbridge's configuration from 2.0.0 on.
constexpr std::array<std::pair<std::string_view, std::string_view>, 4> kExpertKeys{
    {{"megatron.moe_token_dispatcher_type", "dispatcher"},
     {"megatron.moe_permute_fusion", "permute_fusion"},
     {"megatron.moe_shared_expert_overlap", "shared_expert_overlap"},
     {"megatron.moe_router_dtype", "router_dtype"}}};

/// How a fact of the role becomes a setting of Megatron's.
struct Row {
  std::string_view fact, knob;
  std::string (*text)(const FactValue&);
};
constexpr Row kRows[] = {
    {"recompute", "recompute_method", [](const FactValue& v) { return part(v, "method"); }},
    {"recompute", "recompute_layers", [](const FactValue& v) { return part(v, "layers"); }},
    {"recompute", "recompute_modules", modules},
    {"grad_dtype", "precision.reduce", word},
    {"sharding", "distributed_optimizer", [](const FactValue& v) { return std::string(plain(v) == "none" ? "false" : "true"); }},
    {"wrap_with_ddp", "wrap_with_ddp", plain},
};

class Translation {
 public:
  Translation(const Meaning& m, const Node& root, const BuiltRole& role) : m_(m), root_(root), role_(role) {}

  std::vector<LoraSetting> settings() {
    for (const Row& row : kRows)
      if (const Fact* f = fact(row.fact)) put(row.knob, row.text(f->value), f->origin);
    if (const Fact* f = fact("layout.vpp"); f != nullptr && f->value.is_integer() && f->value.integer() > 1)
      put("virtual_stages", f->value.plain(), f->origin);
    // off with adapters whatever is configured (areal/models/mcore/registry.py: make_mcore_model)
    if (fact("lora") == nullptr || fact("lora")->value.is_null()) key("megatron.ddp.overlap_grad_reduce", "overlap_grad_reduce");
    maker();
    loss();
    optimizer();
    return std::move(out_);
  }

 private:
  const Fact* fact(std::string_view name) const { return m_.find(fmt::format("roles.{}.{}", role_.name, name)); }
  const Node* at(std::string_view key) const { return root_.at(fmt::format("{}.{}", role_.path, key)); }
  void put(std::string_view knob, std::string text, Origin origin) {
    if (!text.empty()) out_.push_back({std::string(knob), std::move(text), std::move(origin)});
  }
  void key(std::string_view name, std::string_view knob) {
    const Node* n = at(name);
    if (n != nullptr && n->kind == Node::Kind::boolean) put(knob, n->boolean ? "true" : "false", n->origin);
  }
  void maker() {
    if (const Node* n = at("megatron.bridge_type"); n != nullptr && n->text == "megatron-bridge")
      return put("models_by", n->text, n->origin);  // its experts are made without AReaL's keys
    if (m_.release < release_named("2.0.0")) return;
    for (const auto& [key, knob] : kExpertKeys) {
      const Node* n = at(key);
      if (n == nullptr || n->kind == Node::Kind::null || n->origin.kind == Origin::Kind::default_) continue;
      put(knob, word(FactValue(compose::python_text(*n))), n->origin);
    }
  }
  void loss() {
    const auto on = [&](std::string_view name) {
      const Node* n = at(name);
      return n != nullptr && n->kind == Node::Kind::boolean && n->boolean ? n : nullptr;
    };
    if (const Node* n = on("megatron.enable_chunked_logits")) {
      put("fp32_logits", "true", n->origin);
      if (const Node* entropy = on("megatron.entropy_requires_grad")) put("entropy_loss", "true", entropy->origin);
      const Node* rows = at("megatron.lm_head_loss_chunk_size");  // does nothing without it
      if (rows != nullptr && rows->kind == Node::Kind::integer && rows->integer > 0)
        put("head_chunk_size", fmt::format("{}", rows->integer), rows->origin);
    }
    if (const Node* n = at("logprobs_chunk_size"); n != nullptr && n->kind == Node::Kind::integer && n->integer != 1024)
      put("log_probs_chunk_size", fmt::format("{}", n->integer), n->origin);
  }
  /// The optimizer's options are set behind the making of its configuration, which has decided by then that Megatron keeps
  /// masters of its own in fp32 (areal/engine/megatron_engine.py: _create_optimizer, 0.5.0 to 2.0.0; megatron/core/optimizer/
  /// optimizer_config.py: __post_init__, 0.13.1 to 0.17).
  void optimizer() {
    const Fact* aware = fact("precision_aware_optimizer");
    if (aware == nullptr || aware->value != FactValue(true) || at("optimizer") == nullptr) return;
    put("precision_aware_optimizer", "true", aware->origin);
    const bool narrow = at("optimizer.type") != nullptr && at("optimizer.type")->text == "adam_bf16";
    for (const auto& [name, knob] :
         {std::pair{"megatron.exp_avg_dtype", "exp_avg_dtype"}, {"megatron.exp_avg_sq_dtype", "exp_avg_sq_dtype"}}) {
      const Node* n = at(name);
      if (narrow)
        put(knob, "bf16", at("optimizer.type")->origin);
      else if (n != nullptr)
        put(knob, word(FactValue(n->text)), n->origin);
    }
    if (m_.release <= release_named("2.0.0"))
      put("fp32_masters", "true", {Origin::Kind::derived, {}, "AReaL sets the option when Megatron has decided", {}});
  }

  const Meaning& m_;
  const Node& root_;
  const BuiltRole& role_;
  std::vector<LoraSetting> out_;
};

}  // namespace

std::vector<LoraSetting> megatron_of_trainer(const Meaning& m, const Node& root, const BuiltRole& role) {
  return Translation(m, root, role).settings();
}

std::vector<MegatronRefusal> megatron_refusals(const Meaning& m, const Node& root, const BuiltRole& role) {
  std::vector<MegatronRefusal> out;
  const auto at = [&](std::string_view key) { return root.at(fmt::format("{}.{}", role.path, key)); };
  const auto refuse = [&](std::string_view key, std::string what) {
    out.push_back({fmt::format("{}.{}", role.path, key), std::move(what), false});
  };
  const auto on = [&](std::string_view key) {
    const Node* n = at(key);
    return n != nullptr && n->kind == Node::Kind::boolean && n->boolean;
  };
  for (const Asked& asked : kFlags)
    if (on(asked.key)) refuse(asked.key, std::string(asked.what));
  if (const Node* n = at("megatron.fp8_config"); n != nullptr && n->kind != Node::Kind::null)
    refuse("megatron.fp8_config", "products in 8 bits under AReaL");
  const Node* bridge = at("megatron.bridge_type");
  const bool mbridge = bridge == nullptr || bridge->text != "megatron-bridge";
  if (mbridge && m.release >= release_named("2.0.0")) {
    for (const Asked& asked : kFlagsOfMbridge)
      if (on(asked.key)) refuse(asked.key, std::string(asked.what));
    if (const Node* n = at("megatron.moe_z_loss_coeff"); n != nullptr && n->kind != Node::Kind::null)
      refuse("megatron.moe_z_loss_coeff", "a loss of the router's logits");
    if (const Node* n = at("megatron.moe_token_dispatcher_type"); n != nullptr && n->text == "flex")
      refuse("megatron.moe_token_dispatcher_type", "the flex dispatcher");
  }
  if (const Node* n = at("megatron.ddp.bucket_size"); n != nullptr && n->kind == Node::Kind::integer)
    refuse("megatron.ddp.bucket_size", "buckets of a size of their own");
  if (mbridge && on("use_lora"))
    out.push_back({fmt::format("{}.use_lora", role.path),
                   "AReaL itself has adapters under Megatron only with megatron.bridge_type: "
                   "megatron-bridge",
                   true});
  return out;
}

}  // namespace oomplan::areal
