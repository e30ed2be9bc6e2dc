#include "frontends/slime/specifications.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include <fmt/format.h>

#include "job/model_makers.hpp"
#include "layers/families.hpp"

namespace oomplan::slime {
namespace {

constexpr std::string_view kNormBehindAttention = "--post-self-attn-layernorm", kNormBehindFeedForward = "--post-mlp-layernorm";

bool has(const Architecture& a, MixerKind kind) {
  return std::ranges::any_of(a.runs, [&](const LayerRun& run) { return run.layer.mixer.kind == kind; });
}
bool gates_outputs(const Architecture& a) {
  return std::ranges::any_of(a.runs, [](const LayerRun& run) { return run.layer.mixer.output_gate; });
}
/// Projections of their own for queries, keys and values, for gates and for rates; of Qwen3-Next two for all of them.
bool is_linear(const Architecture& a, bool apart) {
  const FamilyCode* code = find_family_code(a.family);
  return has(a, MixerKind::gated_delta) && code != nullptr && code->delta_apart == apart;
}

/// GLM-4-0414: norms behind both halves. The flags say them, whatever the specification (1dcf0dafa with slime's patch).
bool norms_behind(const Architecture& a) {
  return std::ranges::all_of(a.runs, [](const LayerRun& r) { return r.layer.norm_place == NormPlace::pre_and_post; }) &&
         a.family == "glm4";
}
bool norms_all_heads(const Architecture& a) {
  return std::ranges::all_of(a.runs, [](const LayerRun& r) { return r.layer.mixer.qk_norm == QkNorm::full; }) &&
         a.family == "minimax_m2";
}

const std::array<Specification, 4>& specifications() {
  static const std::array<Specification, 4> all{{{"slime_plugins.models.qwen3_5",
                                                  "get_qwen3_5_spec",
                                                  "0.2.3",
                                                  "linear attention of Qwen3.5",
                                                  true,
                                                  [](const Architecture& a) { return is_linear(a, true); },
                                                  {"spec", "attention_output_gate"}},
                                                 {"slime_plugins.models.qwen3_next",
                                                  "get_qwen3_next_spec",
                                                  "0.2.2",
                                                  "linear attention of Qwen3-Next",
                                                  true,
                                                  [](const Architecture& a) { return is_linear(a, false); },
                                                  {"spec", "attention_output_gate"}},
                                                 {"slime_plugins.models.glm4",
                                                  "get_glm_spec",
                                                  "0.2.0",
                                                  "norms behind both halves of a layer",
                                                  false,
                                                  norms_behind,
                                                  {"spec", "rotary_interleaved"}},
                                                 {"slime_plugins.models.minimax_m2",
                                                  "get_minimax_m2_layer_spec",
                                                  "0.3.0",
                                                  "norms of all heads together",
                                                  false,
                                                  norms_all_heads,
                                                  {"spec"}}}};
  return all;
}

}  // namespace

// docker/patch/latest/megatron.patch, 624b824a. Nothing reads --use-gated-attention but Megatron's parser.
bool is_patched(std::string_view flag) {
  return flag == "--use-gated-attention" || flag == kNormBehindAttention || flag == kNormBehindFeedForward;
}

bool is_made_by_bridge(const SlimeText& t) { return t.family->bridge_makes && t.own.text("megatron_to_hf_mode") == "bridge"; }

bool bridges_text_alone(const SlimeText& t, const Architecture& a) { return is_made_by_bridge(t) && a.family == "gemma4"; }

// Of the releases whose image has Megatron core_v0.14.0, 3714d81d from 0.2.2 on, and 1dcf0dafa from 0.3.0 on (docker/Dockerfile).
const Specification* specification_of(const SlimeText& t) {
  if (!t.family->own_layers) return nullptr;
  const std::vector<std::string> words = t.megatron.items("spec");
  for (const Specification& s : specifications())
    if (words.size() == 2 && words[0] == s.module && words[1] == s.function && t.release.since(s.since)) return &s;
  return nullptr;
}

std::vector<std::string_view> described_flags(const SlimeText& t) {
  if (is_made_by_bridge(t))  // the checkpoint says it
    return {"spec",
            "attention_output_gate",
            "experimental_attention_variant",
            "linear_attention_freq",
            "rotary_interleaved",
            "qk_l2_norm",
            "window_size",
            "no_rope_freq",
            "attention_backend",
            "fp16"};  // as bf16, but that masters are whole
  const Specification* s = specification_of(t);
  std::vector<std::string_view> out = s == nullptr ? std::vector<std::string_view>{} : s->flags;
  out.push_back("fp16");
  return out;
}

namespace {

/// Qwen2.5-VL's embeddings are not packed (modeling_qwen25_vl.py, 0.5.2), and both frameworks pack.
void check_bridged(SlimeText& t, const Architecture& a, const std::string& name) {
  const std::string_view family = made_as(a);
  if (made_model(ModelMaker::megatron_bridge, family) && family != "qwen2_5_vl") return;
  t.told.add(t.own.place("hf_checkpoint"), name, "a model whose making by Megatron-Bridge is described",
             fmt::format("not supported yet: models of the family '{}' as Megatron-Bridge makes them", family));
  t.told.problems.back().kind = ProblemKind::not_supported;
}

}  // namespace

void check_layers(SlimeText& t, const Architecture& a, const std::string& name) {
  if (is_made_by_bridge(t)) return check_bridged(t, a, name);
  const Specification* said = specification_of(t);
  const auto refuse = [&](const char* flag, std::string found, std::string expected, std::string why) {
    t.told.add(t.megatron.place(flag), std::move(found), std::move(expected), std::move(why));
    t.told.problems.back().kind = ProblemKind::not_supported;
  };
  if (said != nullptr && !said->fits(a))
    return refuse("spec", fmt::format("'{}'", said->module), fmt::format("a specification of the layers of {}", name),
                  fmt::format("not supported yet: {} for a checkpoint without it", said->what));
  if (said == nullptr && !t.megatron.has("spec"))
    for (const Specification& s : specifications())
      if (s.fits(a)) {
        if (t.family->own_layers)
          return refuse("spec", "nothing", fmt::format("{} {}", s.module, s.function),
                        fmt::format("not supported yet: {} without {}", name, s.what));
        t.told.add(t.own.place("hf_checkpoint"), name, "a model of Megatron's own layers",
                   fmt::format("not supported yet: {} under {}", s.what, t.family->name));
        t.told.problems.back().kind = ProblemKind::not_supported;
        return;
      }
  for (const std::string_view flag : {kNormBehindAttention, kNormBehindFeedForward}) {
    const bool given = std::ranges::find(t.patched, flag) != t.patched.end();
    if (given == norms_behind(a)) continue;
    t.told.add(std::string(flag), given ? "the flag" : "nothing", given ? "nothing" : "the flag",
               fmt::format("not supported yet: layers that are not those of {}", name));
    t.told.problems.back().kind = ProblemKind::not_supported;
  }
  if (said != nullptr && said->fits == norms_behind &&
      (!t.megatron.on("rotary_interleaved") || t.megatron.on("apply_rope_fusion")))
    refuse("rotary_interleaved", t.megatron.on("rotary_interleaved") ? "the flag" : "nothing",
           "--rotary-interleaved --no-rope-fusion", fmt::format("not supported yet: other rotary positions of {}", name));
  if (said != nullptr && gates_outputs(a) != t.megatron.on("attention_output_gate"))
    refuse("attention_output_gate", gates_outputs(a) ? "nothing" : "the flag", gates_outputs(a) ? "the flag" : "nothing",
           fmt::format("not supported yet: attention that is not that of {}", name));
}

}  // namespace oomplan::slime
