// Decoder layers of Hugging Face transformers, operator by operator: the kernel sets hf_flash, hf_sdpa and hf_eager.
//
// What is written here is the forward pass of transformers 5.x (modeling_llama.py and its relatives, integrations/moe.py,
// integrations/sdpa_attention.py; read at 5.23.0) as memory sees it: which Python name holds which tensor, and until when.
// Everything about backward follows from it.
//
// Legend: B sequences, S tokens of one on this rank, T = B*S, H hidden, F feed-forward width, a query heads, kv key/value heads,
// d head dim, A = a*d, K = kv*d, E experts, k experts a token, R = T*k routed rows, ie expert width.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <oomplan/job.hpp>

#include "catalog/architecture.hpp"
#include "job/vision_pass.hpp"
#include "layers/adapted_modules.hpp"
#include "layers/attention_tiles.hpp"
#include "layers/delta_options.hpp"
#include "layers/eager.hpp"
#include "layers/embedding_backward.hpp"
#include "layers/foak_options.hpp"
#include "layers/liger_code.hpp"
#include "layers/norms.hpp"
#include "layers/split_keys.hpp"
#include "layers/transformers_code.hpp"

namespace oomplan {

/// Adapters beside linear layers; everything else is frozen.
struct AdapterOptions {
  AdapterKind kind = AdapterKind::lora;
  std::int64_t rank = 0;             ///< 0: none
  std::vector<std::string> targets;  ///< words of the kernel set; empty: every linear layer but the head
  bool by_module = false;            ///< peft's rule: `modules` says which, not `targets`
  bool spares_tower = false;         ///< exclude_modules names all of a vision tower
  AdaptedModules modules;
  std::int64_t layer = 0;        ///< that is declared
  DType dtype = DType::fp32;     ///< as the forward pass sees them
  bool dropout = false;          ///< with a rate above 0
  bool dora = false;             ///< with magnitudes
  bool input_gradients = false;  ///< enable_input_require_grads: the embedding's output is a leaf that collects a gradient
  bool joint = false;            ///< a flat parameter holds them and what is frozen beside them: gradients of all of it
  /// Experts' or routers' parameters have pairs.
  bool folds() const { return rank > 0 && (by_module ? !modules.folded_names.empty() : targets.empty()); }
  bool outside(const std::string& module) const {
    return rank > 0 && (by_module ? modules.has_outside(module) : targets.empty());
  }
  bool operator==(const AdapterOptions&) const = default;
};

/// How the routed rows go through the experts: transformers 5's implementations (integrations/moe.py), or release 4's loop.
enum class ExpertsCode : std::uint8_t { grouped_mm, batched_mm, loop, loop_of_4 };

/// Keys and values of earlier tokens (transformers' DynamicCache): there are none, the pass makes them, or one token joins them.
enum class KvCache : std::uint8_t { none, fills, grows };

/// Everything that decides how a layer runs, besides the architecture.
struct KernelOptions {
  Kernels kernels = Kernels::hf_flash;
  bool exchanges_flat = false;     ///< Ulysses: on flat packed sequences
  bool adapters_apart = false;     ///< a forward-only pass computes an adapter's product by itself
  DType parameters = DType::bf16;  ///< as the forward pass sees them (after FSDP's cast)
  bool casts_heads = false;        ///< embeddings and output layer are bf16 whatever the others are
  bool autocast = false;
  bool keeps_formats = false;                              ///< one device: parameters of another format than the model's keep it
  bool wide_routers = false;                               ///< ... and routers are made in fp32
  bool frozen_keeps_input = false;                         ///< as in Eager: ZeRO stage 3
  bool positions_by_row = false;                           ///< every sequence has a row of position numbers, so of cos and sin
  bool padding_mask = false;                               ///< a 2-D attention mask is given: a 4-D one is built
  bool window_mask = false;                                ///< SDPA: sequences reach past the layers' window, which takes a mask
  bool sdpa_math = false;                                  ///< force SDPA's math kernel
  KvCache kv_cache = KvCache::none;                        ///< of a generator
  bool later_token = false;                                ///< of generate(): the pass is not the first one
  bool pads_bias = false;                                  ///< memory-efficient SDPA: rows of the mask, no multiple of 16
  bool several_sequences = false;                          ///< B may be greater than 1: some reshapes must then copy
  bool narrow_tables = false;                              ///< LitGPT under FSDP: Fabric casts the tables of positions to 16 bits
  std::int64_t ulysses = 1;                                ///< ranks that share one sequence
  bool ulysses_deepspeed = false;                          ///< DeepSpeed's exchange of them
  bool tiled_mlp = false;                                  ///< a feed-forward block runs tile by tile of tokens
  bool offload_checkpoints = false;                        ///< a checkpoint's input lies on the host until backward
  std::int64_t tensor = 1;                                 ///< ranks that split every layer and, between its halves, the tokens
  RmsNorm rms_norm = RmsNorm::fused;                       ///< torchtitan, as in Trainer
  bool repeat_kv = false;                                  ///< the same
  bool tree = false;                                       ///< Archon: attention of packed trees, without torch.compile
  bool compile = false;                                    ///< torchtitan, Archon: a layer is one compiled graph
  int compiled_order = 0;                                  ///< Archon: which of inductor's orders of it (compiled_order.hpp)
  Float8 float8 = Float8::none;                            ///< torchtitan, as in Trainer
  bool float8_gathered = false;                            ///< a layer's matrices come in 8 bits
  bool hidden_dropout = false, attention_dropout = false;  ///< in training mode, with a rate above 0
  bool softcap = false;                                    ///< of the scores (hf_eager; flash has it inside, SDPA leaves it out)
  bool indexes_all = false;                                ///< indexers choose among fewer tokens than they may
  bool delta_by_rows = false;  ///< transformers up to 5.10: the gated delta rule solves a chunk's system row by row
  DeltaOptions delta;
  std::int64_t scan_tokens = 0;  ///< of one sequence, where a mixer loops over them: a tape for each number; 0: none does
  ExpertsCode experts = ExpertsCode::grouped_mm;
  std::int64_t routed_tokens = 0;    ///< of the micro-batch, where a loop over experts divides them: a tape for each number
  bool casts_layer_inputs = false;   ///< FSDP2 with a param_dtype: fp32 arguments of a layer are cast to it
  std::optional<DType> unit_output;  ///< FSDP2: what its units and the model return is cast to it
  bool casts_embedding_output = false, casts_head_output = false;  ///< ... those of these two, which are units
  bool head_is_unit = false;                                       ///< of FSDP2, and not the critic's
  bool casts_parameters = false;  ///< FSDP: they are stored in another format than they are computed in
  bool views_of_flat = false;     ///< FSDP1: parameters are views of a flat one, of which autocast keeps no copies
  AdapterOptions adapters;
  PackedOptions packed;
  OffloadActivations offload_activations = OffloadActivations::none;
  TransformersCode release;
  VisionPass vision;
  bool joins_tables = false;  ///< Qwen2-VL up to transformers 5.10: each layer puts its tables together from those of three axes
  bool flash_repeats =
      false;  ///< verl's attention of Qwen2-VL and Qwen2.5-VL: keys and values of all heads go into flash-attention
  bool flash_takes_rows = false;  ///< ... and lie by token there, where a micro-batch has several packed sequences
  LigerOptions liger;
  FoakOptions foak;
  /// FSDP1 with frozen layers inside of checkpoints: the hook on a layer's inputs that reshards it holds a reentrant checkpoint's
  /// detached input, and so that one's gradient, until the backward pass is over (torch/distributed/fsdp/_runtime_utils.py, 2.4
  /// to 2.13: _register_post_backward_reshard_only_hook, whose handle _finalize_params removes)
  bool keeps_checkpoints = false;
  bool wide_buffers = false;       ///< buffers of modules are fp32, whatever the forward pass sees parameters as
  bool kernel_internals = true;    ///< buffers inside fused kernels that the dispatcher does not see
  SplitKeys split_keys;            ///< of SDPA's flash-attention; none without kernel_internals
  bool autocasts_to_half = false;  ///< autocast's format is fp16
  bool casts_softmax = false;  ///< a softmax of bf16 in fp32 has a copy of its input; what was executed stood in a kernel for it
  AttentionTiles attention_tiles;  ///< the same, of SDPA's memory-efficient kernel
  EmbeddingSort embedding_sort = EmbeddingSort::none, position_sort = EmbeddingSort::none;  ///< the same, of tables' gradients
  bool operator==(const KernelOptions&) const = default;
};

/// Parameters of a mixer that keeps a state in place of keys and values; -1: it has no such parameter.
struct StateLeaves {
  int in = -1, in_bias = -1;                        ///< in_proj, in_proj_qkvz, in_proj_qkv
  int in_ba = -1, in_z = -1, in_b = -1, in_a = -1;  ///< further projections of a gated delta rule
  int conv = -1, conv_bias = -1, dt_bias = -1, a_log = -1, d = -1;
  int x = -1, dt = -1, dt_proj_bias = -1;  ///< Mamba-1
  int norm = -1, out = -1, out_bias = -1;
  int dt_norm = -1, b_norm = -1, c_norm = -1;  ///< Jamba
};

/// Parameters of one layer, as leaves; -1: the layer has no such parameter.
struct LayerLeaves {
  int q = -1, q_bias = -1, k = -1, k_bias = -1, v = -1, v_bias = -1, o = -1, o_bias = -1, qkv = -1, qkv_bias = -1, sinks = -1;
  int qkv_lora_a = -1, qkv_lora_b = -1;  ///< LitGPT's pair beside `qkv`: ranks of its parts one behind another
  int gates = -1;                        ///< LitGPT's factors of what heads read from a prefix
  NormLeaf q_norm, k_norm;
  int index_q = -1, index_k = -1, index_weights = -1;  ///< of an indexer
  NormLeaf index_k_norm;
  int q_a = -1, q_a_bias = -1, kv_a = -1, kv_a_bias = -1, kv_b = -1;  ///< latent attention; its q_b is `q`
  NormLeaf q_a_norm, kv_a_norm;
  NormLeaf before_attention, after_attention, before_feed_forward, after_feed_forward;
  int gate = -1, gate_bias = -1, up = -1, up_bias = -1, gate_up = -1, down = -1, down_bias = -1;
  int router = -1, router_bias = -1, experts_gate_up = -1, experts_gate_up_bias = -1, experts_down = -1, experts_down_bias = -1;
  struct Expert {
    int gate = -1, up = -1, down = -1;
  };
  std::vector<Expert> expert_modules;  ///< release 4
  int shared_gate = -1, shared_up = -1, shared_down = -1, shared_router = -1;
  int router_scale = -1, expert_scales = -1;  ///< Gemma 4: of the router's input and of the chosen experts' weights
  NormLeaf after_dense, before_experts, after_experts;
  int layer_input_gate = -1, layer_projection = -1;  ///< Gemma 3n, 4: what joins the layer's own input
  NormLeaf after_layer_input;
  /// Gemma 3n: alternating updates, and the low-rank residual
  struct AltUp {
    int output_scale = -1, correction = -1, prediction = -1, router = -1, left = -1, right = -1;
    NormLeaf router_norm, after_right;
  };
  AltUp altup;
  int latent_in = -1, latent_out = -1;  ///< Nemotron-H: around the experts
  int attention_gate = -1;              ///< Trinity: a projection of its own
  int alpha_p = -1, alpha_n = -1;       ///< xIELU's two numbers
  int correction = -1;                  ///< Trinity: of the experts' scores, a parameter that nothing trains
  StateLeaves state;
};

/// Why this architecture cannot be run by the kernel sets; "" when it can.
std::string unsupported(const Architecture&, const KernelOptions&);

/// A mixer of the architecture loops over the tokens of a sequence: KernelOptions::scan_tokens must be given.
bool scans(const Architecture&);

/// Declares the layer's parameters with the names of transformers' modules (fused experts are one 3-D parameter).
/// `expert_modules`: every expert has three of its own.
LayerLeaves declare_layer(Eager& g, const Architecture&, const Layer&, DType dtype, const AdapterOptions&, bool expert_modules);

/// Keys and values that later layers use, a name of the model for each span.
struct SharedKeys {
  Tensor key, value;
};
struct SharedKv {
  SharedKeys full, windowed;
};

/// What every layer gets besides its input.
struct LayerContext {
  Tensor cos, sin;               ///< [1, S, d] each; one complex table [1, S, d/2, 2] in `cos` for RotaryForm::complex
  Tensor alibi;                  ///< MPT: distances, [heads, 1, positions]
  Tensor mask;                   ///< bool or additive [B, 1, S, S]; absent without padding
  Tensor chosen;                 ///< GLM-5: by the indexer of the layer before
  Tensor* chosen_out = nullptr;  ///< ... where this layer's goes
  Tensor layer_input;            ///< Gemma 3n, 4: the layer's own, [B, S, p]
  std::shared_ptr<SharedKv> shared;
  /// Where keys and values stay.
  std::vector<Tensor>* cache = nullptr;
  Tensor* returned = nullptr;  ///< BLOOM: where the model's name for what the layer returns beside its output is
};
/// The layer's forward pass: x is `hidden_states`, held by the caller.
Tensor run_layer(Eager& g, const Architecture&, const Layer&, const LayerLeaves&, const KernelOptions&, const LayerContext&,
                 const Tensor& x);

}  // namespace oomplan
