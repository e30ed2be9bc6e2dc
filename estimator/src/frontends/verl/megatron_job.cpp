#include "frontends/verl/megatron_job.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include <fmt/format.h>

#include "frontends/verl/meaning_parts.hpp"

namespace oomplan::verl {
namespace {

/// Keys of Megatron's TransformerConfig that a user adds (override_transformer_config), and our knobs for them; "" changes no
/// memory, or is what verl's models have anyway.
struct ConfigRow {
  std::string_view key, knob;
  std::string_view only = "";  ///< the one value that changes nothing; "": any
};
constexpr std::array<ConfigRow, 37> kConfig{{
    {"num_layers_in_first_pipeline_stage", "first_stage_layers"},
    {"num_layers_in_last_pipeline_stage", "last_stage_layers"},
    {"account_for_embedding_in_pipeline_split", "embedding_in_split"},
    {"account_for_loss_in_pipeline_split", "loss_in_split"},
    {"moe_router_dtype", "router_dtype"},
    {"moe_permute_fusion", "permute_fusion"},
    {"gradient_accumulation_fusion", "gradient_accumulation_fusion"},
    {"moe_shared_expert_overlap", "shared_expert_overlap"},
    {"bias_activation_fusion", "activation_fusion"},
    {"attention_backend", ""},
    {"apply_rope_fusion", "rotary_fusion"},
    {"masked_softmax_fusion", ""},
    {"bias_dropout_fusion", "bias_dropout_fusion"},
    {"deallocate_pipeline_outputs", "deallocate_outputs"},
    {"persist_layer_norm", ""},
    {"moe_grouped_gemm", "grouped_experts"},
    {"moe_token_dispatcher_type", "dispatcher"},
    {"moe_enable_deepep", ""},  // of flex, which has no other back end here
    {"moe_flex_dispatcher_backend", "", "deepep"},
    {"moe_deepep_num_sms", "deepep_num_sms"},
    {"fp8", "", "false"},
    {"mtp_num_layers", "", "0"},
    {"moe_aux_loss_coeff", ""},
    {"moe_z_loss_coeff", ""},
    {"overlap_p2p_comm", ""},
    {"batch_p2p_comm", ""},
    {"moe_router_load_balancing_type", "router_aux_loss"},
    {"moe_router_bias_update_rate", ""},
    {"layernorm_epsilon", ""},
    {"init_method_std", ""},
    // what both bridges set of all models that are described (mbridge/core/llm_bridge.py, _build_base_config;
    // megatron/bridge/models/*/*_bridge.py, 0.5.2)
    {"normalization", "", "RMSNorm"},
    {"gated_linear_unit", "", "true"},
    {"add_bias_linear", "", "false"},
    {"variable_seq_lengths", "", "true"},
    {"bf16", "", "true"},
    {"fp16", "", "false"},
    {"use_cpu_initialization", "", "false"},
}};
/// Arguments of MindSpeed that scripts for NPUs hand over. Megatron's TransformerConfig has no such fields, and what they ask for
/// is there anyway.
constexpr std::array<std::string_view, 6> kMindSpeed{"use_flash_attn",    "swiglu",           "use_fused_swiglu",
                                                     "use_fused_rmsnorm", "use_naive_l2norm", "use_distributed_optimizer"};
/// How its attention shares tokens out. On GPUs Transformer Engine does that its own way.
constexpr std::string_view kMindSpeedContext = "context_parallel_algo";

class MegatronRole {
 public:
  MegatronRole(VerlSettings& s, const VerlMeaning& m, const std::string& role, std::vector<Note>& notes)
      : s_(s), m_(m), role_(role), notes_(notes), fact_("roles." + role + ".") {}

  void run() {
    layout();
    s_.set(knob("sequence_parallel"), m_.flag(fact_ + "layout.sequence_parallel") ? "true" : "false",
           fact_ + "layout.sequence_parallel");
    if (const std::int64_t chunks = m_.whole(fact_ + "layout.vpp"); chunks > 1)
      s_.set(knob("virtual_stages"), fmt::format("{}", chunks), fact_ + "layout.vpp");
    if (!m_.text(fact_ + "models_by").empty()) s_.copy(knob("models_by"), fact_ + "models_by");
    recompute();
    const bool trains = role_ != "ref";
    s_.set(knob("offload"), offloaded(m_.flag(fact_ + "param_offload"), trains && m_.flag(fact_ + "optimizer_offload")),
           fact_ + "param_offload");
    if (trains) optimizer();
    overrides();
    older();
    const bool fused = m_.flag(fact_ + "fused_kernels");
    if (role_ == "actor" && m_.flag(fact_ + "entropy_in_training") && !fused && !s_.since("0.6.0"))
      return s_.fails(
          std::string(kArr) + ".actor.entropy_coeff", "0",
          "verl before 0.6 itself fails: the log-probs write over the logits that the entropy's gradient needs (verl #1970)");
    if (role_ == "actor" && m_.flag(fact_ + "entropy_in_training"))
      s_.set(knob("entropy_loss"), "true", fact_ + "entropy_in_training");
    const bool chunks = m_.flag(fact_ + "entropy_chunking") && !fused;
    if (chunks && m_.flag(fact_ + "entropy_in_training"))
      s_.refuse(fact_ + "entropy_chunking", "entropy in chunks under Megatron");
  }

 private:
  std::string knob(std::string_view name) const { return fmt::format("{}.{}", role_, name); }

  /// Experts have a layout of their own: an expert_tensor_parallel_size that is not said is that of the tensors.
  void layout() {
    const auto degree = [&](const char* name, std::int64_t otherwise) {
      return m_.whole(fmt::format("{}layout.{}", fact_, name), otherwise);
    };
    const std::int64_t tensor = degree("tp", 1), stages = degree("pp", 1), context = degree("cp", 1), experts = degree("ep", 1),
                       data = degree("dp", 1);
    const std::int64_t expert_tensor = degree("etp", tensor);
    const std::int64_t gpus = m_.whole(fact_ + "gpus", 1);
    if (gpus % (tensor * stages * context) != 0)
      return s_.lacking(fact_ + "layout.tp", fmt::format("degrees whose product divides {} GPUs", gpus));
    std::string text = fmt::format("d{}t{}p{}c{}", data, tensor, stages, context);
    if (experts > 1 || (expert_tensor != tensor && experts >= 1 && m_.find(fact_ + "layout.etp") != nullptr &&
                        m_.find(fact_ + "layout.etp")->value.is_integer())) {
      const std::int64_t product = expert_tensor * experts * stages;
      if (product == 0 || gpus % product != 0)
        return s_.lacking(fact_ + "layout.ep",
                          fmt::format("expert degrees whose product with the stages ({}) divides {} GPUs", product, gpus));
      text = fmt::format("attn:{}|ffn:d{}t{}p{}e{}", text, gpus / product, expert_tensor, stages, experts);
    }
    s_.set(knob("layout"), std::move(text), fact_ + "layout.tp");
  }

  void recompute() {
    const ToldFact* f = m_.find(fact_ + "recompute");
    if (f == nullptr) return;
    const auto part = [&](const char* name) {
      const FactValue* v = f->value.find(name);
      return v != nullptr && !v->is_null() ? v->plain() : std::string();
    };
    const std::string granularity = part("granularity");
    s_.set(knob("recompute"), granularity, fact_ + "recompute");
    if (granularity == "full") {
      s_.set(knob("recompute_method"), part("method"), fact_ + "recompute");
      s_.set(knob("recompute_layers"), part("layers"), fact_ + "recompute");
    }
    if (granularity == "selective") {
      const FactValue* modules = f->value.find("modules");
      std::string list;
      if (modules != nullptr)
        for (const FactValue& item : modules->items()) list += (list.empty() ? "" : ", ") + item.plain();
      if (!list.empty()) s_.set(knob("recompute_modules"), "[" + list + "]", fact_ + "recompute");
    }
  }

  void optimizer() {
    const std::string name = m_.text(fact_ + "optimizer");
    if (name == "sgd" || name == "muon") s_.refuse(fact_ + "optimizer", fmt::format("{} under verl's Megatron", name));
    if (m_.flag(fact_ + "precision_aware_optimizer"))
      s_.set(knob("precision_aware_optimizer"), "true", fact_ + "precision_aware_optimizer");
    const ToldFact* host = m_.find(fact_ + "optimizer_cpu_offload");
    const FactValue* on = host != nullptr ? host->value.find("enabled") : nullptr;
    if (on != nullptr && on->boolean()) {
      s_.set(knob("optimizer_cpu_offload"), "true", fact_ + "optimizer_cpu_offload");
      if (const FactValue* part = host->value.find("fraction"))
        s_.set(knob("optimizer_offload_fraction"), part->plain(), fact_ + "optimizer_cpu_offload");
    }
    if (m_.text(fact_ + "sharding") == "none") s_.set(knob("distributed_optimizer"), "false", fact_ + "sharding");
  }

  /// Megatron-core is 0.12.0 to 0.12.2 in the images of 0.4 and 0.5 (docker/), 0.13 and later behind them. Their actors' loss has
  /// neither a temperature nor a copy of the logits for the entropy (verl/workers/actor/megatron_actor.py, 0.4.0 to 0.5.0).
  void older() {
    if (s_.since("0.6.0")) return;
    s_.set(knob("core_release"), "0.12", fact_ + "engine");
    if (role_ == "actor" || role_ == "ref") s_.set(knob("cross_entropy"), "verl_undivided", fact_ + "engine");
  }

  void overrides() {
    const ToldFact* f = m_.find(fact_ + "transformer_overrides");
    if (f == nullptr || !f->value.is_map()) return;
    back_end_of_exchange(*f);
    for (std::size_t i = 0; i < f->value.keys().size(); ++i) {
      const std::string& key = f->value.keys()[i];
      const FactValue& value = f->value.items()[i];
      if (value.is_null() || repeats_layout(key, value) || of_mindspeed(*f, key, value)) continue;
      const auto row = std::find_if(kConfig.begin(), kConfig.end(), [&](const ConfigRow& r) { return r.key == key; });
      const bool unknown = row == kConfig.end() || (!row->only.empty() && value.plain() != row->only);
      if (unknown && of_the_actor(key, value)) continue;  // told there
      if (unknown)
        s_.refuse_key(fmt::format("{}.{}", f->where, key), fmt::format("override_transformer_config.{}", key));
      else if (!row->knob.empty())
        s_.set(knob(row->knob),
               key == "moe_router_load_balancing_type" ? (value.plain() == "aux_loss" ? "true" : "false") : value.plain(),
               fact_ + "transformer_overrides");
    }
  }

  /// TransformerConfig.__post_init__ (megatron-core 0.12 to 0.18).
  void back_end_of_exchange(const ToldFact& f) {
    const FactValue *deepep = f.value.find("moe_enable_deepep"), *type = f.value.find("moe_token_dispatcher_type");
    if (deepep == nullptr || deepep->is_null() || !deepep->boolean() || of_the_actor("moe_enable_deepep", *deepep)) return;
    if (type == nullptr || type->plain() != "flex")
      s_.lacking(fact_ + "transformer_overrides",
                 "override_transformer_config.moe_token_dispatcher_type=flex beside moe_enable_deepep");
  }

  bool of_mindspeed(const ToldFact& told, const std::string& key, const FactValue& value) {
    const bool on = std::find(kMindSpeed.begin(), kMindSpeed.end(), key) != kMindSpeed.end() && value.boolean();
    if (!on && key != kMindSpeedContext) return false;
    if (key == "use_distributed_optimizer" && m_.text(fact_ + "sharding") == "none") return false;
    if (of_the_actor(key, value)) return true;  // told there
    Place place = s_.place(fact_ + "transformer_overrides");
    place.path = fmt::format("{}.{}", told.where, key);
    notes_.push_back({Note::Level::warning, std::move(place),
                      "an argument of MindSpeed, for NPUs: on GPUs Megatron's models have no such field, and refuse it "
                      "(Megatron-Bridge from 0.5 on, mbridge)"});
    return true;
  }

  /// A degree, or sequence parallelism, that the layout has anyway; one that is not stated is not that.
  bool repeats_layout(const std::string& key, const FactValue& value) const {
    constexpr std::array<std::pair<std::string_view, std::string_view>, 5> kDegrees{
        {{"tensor_model_parallel_size", "layout.tp"},
         {"pipeline_model_parallel_size", "layout.pp"},
         {"context_parallel_size", "layout.cp"},
         {"expert_model_parallel_size", "layout.ep"},
         {"expert_tensor_parallel_size", "layout.etp"}}};
    if (key == "sequence_parallel") return value.boolean() == m_.flag(fact_ + "layout.sequence_parallel");
    const auto row = std::find_if(kDegrees.begin(), kDegrees.end(), [&](const auto& r) { return r.first == key; });
    const ToldFact* degree = row != kDegrees.end() ? m_.find(fact_ + std::string(row->second)) : nullptr;
    return degree != nullptr && degree->value.is_integer() && degree->value.plain() == value.plain();
  }

  /// A reference has the actor's overrides unless it says otherwise.
  bool of_the_actor(const std::string& key, const FactValue& value) const {
    const ToldFact* f = m_.find("roles.actor.transformer_overrides");
    const FactValue* there = role_ == "ref" && f != nullptr ? f->value.find(key) : nullptr;
    return there != nullptr && there->plain() == value.plain();
  }

  VerlSettings& s_;
  const VerlMeaning& m_;
  const std::string& role_;
  std::vector<Note>& notes_;
  std::string fact_;
};

}  // namespace

void megatron_settings(VerlSettings& s, const VerlMeaning& m, const std::string& role, std::vector<Note>& notes) {
  MegatronRole(s, m, role, notes).run();
}

}  // namespace oomplan::verl
