// vLLM: vllm/lora/layers/{base_linear,column_parallel_linear,row_parallel_linear}.py create_lora_weights, 0.9.2 and August 2026:
// max_loras pairs beside every linear layer, a packed layer (q, k, v) one pair per slice; the first factor of a column-parallel
// layer and the second of a row-parallel one are whole on every rank (fully_sharded_loras is off).
// SGLang: sglang/srt/lora/mem_pool.py init_buffers, 0.5.9: max_loras_per_batch pairs beside the modules of lora_target_modules,
// with q, k, v as one module and gate, up as one. Of Qwen3.5 from 0.5.12 on (models/qwen3_5.py: get_hidden_dim; read in 0.5.12
// and 0.5.15): those of both kinds of attention, of shared and of all experts, beside every layer whatever it is.
#include "inference/adapter_slots.hpp"

#include <algorithm>
#include <array>
#include <string_view>

#include <oomplan/units/errors.hpp>

#include "catalog/facts.hpp"

namespace oomplan {
namespace {

/// Elements of a slot of rank 1.
struct Widths {
  std::int64_t whole = 0;    ///< on every rank
  std::int64_t split = 0;    ///< divided by tp
  std::int64_t kv_head = 0;  ///< of one key/value head; max(1, K/tp) of them on a rank
};

/// Families whose class in vLLM names embedding and head as adaptable (embedding_modules), and since which version.
struct TableFamily {
  std::string_view model_type, versions;
};
constexpr std::array<TableFamily, 7> kTableFamilies{{{"llama", ""},
                                                     {"mistral", ""},
                                                     {"granite", ""},
                                                     {"nemotron", ""},
                                                     {"exaone4", ""},
                                                     {"qwen3", ">=0.16"},        // vllm-project/vllm, PR 29816, February 2026
                                                     {"qwen3_moe", ">=0.19"}}};  // read in 0.19.1 and 0.23.0

[[noreturn]] void refuse(const Architecture& a, std::string_view what) {
  throw InputError(Problem{{}, a.name, "", "", "not supported yet: LoRA slots of a server beside " + std::string(what)});
}

class Slots {
 public:
  Slots(const Architecture& a, EngineKind engine, const Server& s) : a_(a), sglang_(engine == EngineKind::sglang), server_(s) {}

  Widths of(const Layer& layer) const {
    if (says_widths()) return of_every_layer(layer.feed_forward);
    if (sglang_ && (names("in_proj_qkvz") || names("out_proj")))
      refuse(a_, "in_proj_qkvz and out_proj of other models or releases");
    Widths w;
    const FeedForward& ff = layer.feed_forward;
    attention(w, mixer_of(layer));
    if (ff.kind != FeedForwardKind::moe) {
      feed_forward(w, ff);
    } else if (!sglang_ || wanted({"gate_proj", "up_proj", "down_proj"})) {
      if (sglang_ || !version_matches(server_.version, ">=0.19") || ff.shared_width > 0) refuse(a_, "experts");
      experts(w, ff);
    }
    return w;
  }
  bool table(std::string_view name) const {
    if (sglang_) return names(name);
    return std::any_of(kTableFamilies.begin(), kTableFamilies.end(), [&](const TableFamily& f) {
      return f.model_type == a_.model_type && version_matches(server_.version, f.versions);
    });
  }

 private:
  bool says_widths() const {
    return sglang_ && a_.model_type.starts_with("qwen3_5") && version_matches(server_.version, ">=0.5.12");
  }
  const Mixer& first_mixer(MixerKind kind) const {
    const auto found =
        std::find_if(a_.runs.begin(), a_.runs.end(), [&](const LayerRun& r) { return r.layer.mixer.kind == kind; });
    if (found == a_.runs.end()) refuse(a_, "these layers");
    return found->layer.mixer;
  }
  Widths of_every_layer(const FeedForward& ff) const {
    Widths w;
    const auto pair = [&w](std::int64_t whole, std::int64_t split) {
      w.whole += whole;
      w.split += split;
    };
    const Mixer& full = first_mixer(MixerKind::attention);
    const Mixer& linear = first_mixer(MixerKind::gated_delta);
    const std::int64_t h = a_.hidden, keys = linear.linear_key_heads * linear.linear_key_dim,
                       values = linear.linear_value_heads * linear.linear_value_dim, cached = full.k_width() + full.v_width();
    if (wanted({"q_proj", "k_proj", "v_proj"})) {
      const bool replicated = full.kv_heads < server_.layout.tensor;  // a head on several ranks
      pair(3 * h + (replicated ? cached / full.kv_heads : 0), 2 * full.heads * full.head_dim + (replicated ? 0 : cached));
    }
    if (wanted({"o_proj"})) pair(h, full.heads * full.head_dim);
    if (wanted({"in_proj_qkvz"})) pair(4 * h, 2 * keys + 2 * values);
    if (wanted({"out_proj"})) pair(h, values);
    const bool moe = ff.kind == FeedForwardKind::moe, up = wanted({"gate_proj", "up_proj"}), down = wanted({"down_proj"});
    if (moe && (up || down) && server_.layout.expert > 1) refuse(a_, "experts that are shared out among ranks");
    const std::int64_t width = moe ? ff.shared_width : ff.width;
    if (up) pair(2 * h, 2 * width);
    if (down) pair(h, width);
    if (moe && up) pair(ff.experts * 2 * h, ff.experts * 2 * ff.expert_width);
    if (moe && down) pair(ff.experts * h, ff.experts * ff.expert_width);
    return w;
  }
  /// SGLang makes its buffers for every layer of the model as the configuration's attention has them, whatever the layer is
  /// (init_buffers: range(num_hidden_layers); get_hidden_dim in sglang/srt/lora/utils.py, which Qwen3-Next and Qwen3.5 leave as
  /// it is, 0.5.10).
  const Mixer& mixer_of(const Layer& layer) const {
    if (layer.mixer.kind == MixerKind::attention) return layer.mixer;
    if (layer.mixer.kind == MixerKind::mla) refuse(a_, "latent attention");
    const auto full = std::find_if(a_.runs.begin(), a_.runs.end(),
                                   [](const LayerRun& run) { return run.layer.mixer.kind == MixerKind::attention; });
    if (!sglang_ || (layer.mixer.kind != MixerKind::gated_delta) || full == a_.runs.end()) refuse(a_, "linear attention");
    return full->layer.mixer;
  }
  bool names(std::string_view target) const {
    const auto& t = server_.lora.targets;
    return std::find(t.begin(), t.end(), target) != t.end();
  }
  /// Linear layers of the decoder: all of them, unless SGLang was told which.
  bool wanted(std::initializer_list<std::string_view> any) const {
    if (!sglang_ || server_.lora.targets.empty()) return true;
    return std::any_of(any.begin(), any.end(), [&](std::string_view name) { return names(name); });
  }
  void attention(Widths& w, const Mixer& m) const {
    if (wanted({"q_proj", "k_proj", "v_proj"})) {
      w.whole += (sglang_ || !m.fused_qkv ? 3 : 1) * a_.hidden;
      w.split += m.q_width();
      if (sglang_ || m.kv_heads == 0)
        w.split += m.k_width() + m.v_width();
      else
        w.kv_head += (m.k_width() + m.v_width()) / m.kv_heads;
    }
    if (!wanted({"o_proj"})) return;
    w.split += m.out_width();
    w.whole += a_.hidden;
  }
  void feed_forward(Widths& w, const FeedForward& ff) const {
    const bool gated = ff.kind != FeedForwardKind::plain;
    if (!gated && sglang_) refuse(a_, "feed-forward blocks without a gate");
    const std::int64_t ways = gated ? 2 : 1;
    if (wanted({"gate_proj", "up_proj"})) {
      w.whole += (sglang_ || !ff.fused_gate_up ? ways : 1) * a_.hidden;
      w.split += ways * ff.width;
    }
    if (!wanted({"down_proj"})) return;
    w.split += ff.width;
    w.whole += a_.hidden;
  }

  /// vllm/lora/layers/fused_moe.py create_lora_weights, 0.19.1 and 0.23: a pair for each half of every expert's first matrix and
  /// one for its second, and one beside the router.
  void experts(Widths& w, const FeedForward& ff) const {
    w.whole += ff.experts * 3 * a_.hidden + a_.hidden + ff.experts;
    w.split += ff.experts * 3 * ff.expert_width;
  }

  const Architecture& a_;
  bool sglang_;
  const Server& server_;
};

}  // namespace

std::optional<Problem> slots_problem(const Architecture& a, EngineKind engine, const Server& server) {
  if (server.lora.slots == 0 || server.lora.rank == 0) return std::nullopt;
  try {
    const Slots slots(a, engine, server);
    for (const LayerRun& run : a.runs) (void)slots.of(run.layer);
  } catch (const InputError& e) {
    return e.problems.front();
  }
  return std::nullopt;
}

void add_adapter_slots(ServerModel& m, const Architecture& a, const Server& server) {
  const AdapterSlots& lora = server.lora;
  if (lora.slots == 0 || lora.rank == 0) return;
  const Slots slots(a, m.engine, server);
  const Bytes one = bytes_of(lora.slots * lora.rank, m.compute);  // of an element of every slot
  std::size_t at = 0;
  std::int64_t left = 0;  // layers of the model's run `at` that are not looked at yet
  for (const LayerRun& run : a.runs) {
    const Widths w = slots.of(run.layer);
    for (std::int64_t layers = run.count; layers > 0 && at < m.runs.size();) {
      if (left == 0) left = m.runs[at].count;
      ServerLayer& kind = m.kinds[static_cast<std::size_t>(m.runs[at].kind)];
      kind.adapters_replicated = one * w.whole;
      kind.adapters = one * w.split;
      kind.adapters_kv_head = one * w.kv_head;
      const std::int64_t step = std::min(layers, left);
      layers -= step;
      left -= step;
      if (left == 0) ++at;
    }
  }
  const Bytes table = one * (a.vocab + a.hidden);
  if (slots.table("embed_tokens")) m.adapters_embedding = table;
  if (slots.table("lm_head")) m.adapters_head = table;
}

}  // namespace oomplan
