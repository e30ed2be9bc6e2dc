#include "frontends/areal/realhf.hpp"

#include <array>

#include <fmt/format.h>

namespace oomplan::areal {
namespace {

using compose::Node;

class Translation {
 public:
  Translation(const Meaning& m, const Node& root, const BuiltRole& role) : m_(m), root_(root), role_(role) {}

  std::vector<LoraSetting> settings() {
    const bool trains = role_.name != "ref";
    put("engine", "megatron", role_.allocation);
    put("transformer_impl", "realhf", told("realhf/impl/model/backend/megatron.py"));
    take("model", "model");
    take("micro_batch.tokens_per_micro_batch", "tokens_per_micro_batch");
    take("param_dtype", "precision.storage");
    take("param_dtype", "precision.compute");
    if (const Fact* f = fact("recompute")) put("recompute", trains ? granularity(f->value) : "none", f->origin);
    if (!trains) {
      // PipelineInferenceBackend has no buffers of gradients; OffloadHook puts the parameters on the host behind each pass
      put("wrap_with_ddp", "false", told("realhf/impl/model/backend/inference.py"));
      put("offload", "[parameters]", told("realhf/experiments/common/utils.py: OffloadHook"));
      return std::move(out_);
    }
    take("optimizer", "optimizer");
    key("megatron.ddp.grad_reduce_in_fp32", "precision.reduce", "fp32", narrow());
    key("megatron.ddp.use_distributed_optimizer", "distributed_optimizer", "true", "false");
    key("megatron.ddp.overlap_grad_reduce", "overlap_grad_reduce", "true", "false");
    return std::move(out_);
  }

 private:
  const Fact* fact(std::string_view name) const { return m_.find(fmt::format("roles.{}.{}", role_.name, name)); }
  static Origin told(std::string where) { return {Origin::Kind::derived, {}, std::move(where), {}}; }
  static std::string granularity(const FactValue& v) {
    const FactValue* g = v.find("granularity");
    return g == nullptr ? "" : g->plain();
  }
  std::string narrow() const {
    const Fact* f = fact("param_dtype");
    return f == nullptr ? "" : f->value.plain();
  }
  void put(std::string_view knob, std::string text, Origin origin) {
    if (!text.empty()) out_.push_back({std::string(knob), std::move(text), std::move(origin)});
  }
  void take(std::string_view name, std::string_view knob) {
    const Fact* f = fact(name);
    if (f == nullptr || f->value.is_null()) return;
    const std::string text = f->value.plain();
    put(knob, knob == "optimizer" && text == "adam" ? "adamw" : text, f->origin);
  }
  void key(std::string_view name, std::string_view knob, std::string on, std::string off) {
    const Node* n = root_.at(fmt::format("{}.{}", role_.path, name));
    if (n != nullptr && n->kind == Node::Kind::boolean) put(knob, n->boolean ? std::move(on) : std::move(off), n->origin);
  }

  const Meaning& m_;
  const Node& root_;
  const BuiltRole& role_;
  std::vector<LoraSetting> out_;
};

/// Flags of a role that ask for what is not described.
struct Asked {
  std::string_view key, what;
};
constexpr std::array<Asked, 4> kFlags{{{"megatron.use_precision_aware_optimizer", "the precision-aware optimizer of realhf"},
                                       {"megatron.overlap_param_gather_with_optimizer_step", "a step that overlaps its gathers"},
                                       {"vllm.hybrid_train", "generation inside of the trainer"},
                                       {"sglang.hybrid_train", "generation inside of the trainer"}}};

std::int64_t whole(const Meaning& m, const std::string& key) {
  const Fact* f = m.find(key);
  return f != nullptr && f->value.is_integer() ? f->value.integer() : 0;
}

}  // namespace

std::vector<LoraSetting> realhf_of_trainer(const Meaning& m, const Node& root, const BuiltRole& role) {
  return Translation(m, root, role).settings();
}

std::vector<Problem> realhf_problems(const Meaning& m, const Node& root, const BuiltRole& role) {
  std::vector<Problem> out;
  const auto not_yet = [&](const Node* n, const std::string& path, std::string_view what) {
    Place place = n != nullptr ? n->origin.place : Place{};
    place.path = path;
    out.push_back({std::move(place), n != nullptr ? compose::describe(*n) : "nothing", {}, {},
                   fmt::format("not supported yet: {}", what)});
  };
  for (const Asked& asked : kFlags) {
    const std::string path = fmt::format("{}.{}", role.path, asked.key);
    const Node* n = root.at(path);
    if (n != nullptr && n->kind == Node::Kind::boolean && n->boolean) not_yet(n, path, asked.what);
  }
  const std::string backend = role.path + ".backend";
  if (const Node* n = root.at(backend); n != nullptr && n->kind == Node::Kind::text && n->text != "megatron")
    not_yet(n, backend, "other backends of realhf than megatron");
  const std::int64_t trained = whole(m, fmt::format("roles.{}.micro_batch.tokens_per_micro_batch", role.name));
  const std::string inference = role.name == "critic" ? "critic_inf.mb_spec.max_tokens_per_mb" : "actor_inf.mb_spec.max_tokens_per_mb";
  const Node* n = root.at(inference);
  if ((role.name == "actor" || role.name == "critic") && n != nullptr && n->kind == Node::Kind::integer && trained > 0 &&
      n->integer > trained && whole(m, fmt::format("roles.{}.micro_batch.logprob_tokens", role.name)) > trained)
    not_yet(n, inference, "passes without gradients in larger micro-batches than training's");
  return out;
}

}  // namespace oomplan::areal
