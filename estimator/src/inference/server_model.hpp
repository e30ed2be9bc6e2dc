// A model as a generation engine stores it: bytes of weights and of cache, by how parallelism divides them.
//
// Made once for (architecture, engine, number formats) from the parameter inventory; after that every question about a rank is
// a few multiplications. Equal layers share one ServerLayer.
//
// Legend: h hidden, V vocabulary, K key/value heads, E experts, tp tensor-, pp pipeline-, ep expert-parallel degree.
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include <oomplan/job.hpp>
#include <oomplan/units/bytes.hpp>
#include <oomplan/units/dtype.hpp>

#include "catalog/architecture.hpp"

namespace oomplan {

/// What a layer keeps of a request while it runs.
enum class CacheKind : std::uint8_t {
  none,        ///< nothing, or it reads an earlier layer's cache
  full,        ///< keys and values of every token
  sliding,     ///< of the last `window` tokens
  chunked,     ///< of the chunk of `window` tokens
  latent,      ///< MLA: one latent vector a token, the same on every tensor-parallel rank
  state,       ///< linear attention and state space: a fixed size per request
  compressed,  ///< DeepSeek V4: the last `window` tokens, and entries of several tokens each
};

/// DeepSeek V4: what a layer keeps beside its window. Bytes are those of one entry, and of one token of an entry in the making.
struct Compression {
  std::int64_t ratio = 0;  ///< tokens of an entry; 0: none
  Bytes index_entry = 0, state = 0, index_state = 0;
  bool operator==(const Compression&) const = default;
};

struct LayerCache {
  CacheKind kind = CacheKind::none;
  std::int64_t window = 0;
  std::int64_t heads = 0;                     ///< K, or groups of a Mamba-2 state; max(1, K/tp) of them on a rank
  Bytes token_head = 0;                       ///< of one token and one head; latent: of one token
  Bytes state_conv = 0, state_recurrent = 0;  ///< of one request, all heads; divided by tp
  Bytes state_group = 0;                      ///< of one request and one group, in the convolution's inputs
  std::int64_t conv_steps = 0;                ///< tokens that a convolution remembers, of gated delta rules
  Compression compression;
  bool operator==(const LayerCache&) const = default;
};

/// A matrix as the engines allocate it: q, k, v as one, gate and up as one, all experts of a rank as one. The same bytes as in
/// ServerLayer, seen by allocation.
struct FusedMatrix {
  Bytes split = 0;    ///< divided by tp; of experts: of one expert
  Bytes kv_head = 0;  ///< of one key/value head
  Bytes whole = 0;    ///< on every rank
  bool operator==(const FusedMatrix&) const = default;
};
/// In the order in which a layer makes them.
enum class Fused : std::uint8_t {
  latent_down,
  qkv,
  latent,
  out,
  gate_up,
  down,
  shared_gate_up,
  shared_down,
  experts_up,
  experts_down,
  count
};
inline constexpr std::size_t kFusedCount = static_cast<std::size_t>(Fused::count);

/// One kind of layer. Weight bytes are those of one whole layer on one device.
struct ServerLayer {
  Bytes norms = 0, router = 0;  ///< on every rank
  Bytes mixer_replicated = 0;   ///< latent down-projections, biases of row-parallel matrices
  Bytes mixer = 0;              ///< divided by tp
  Bytes kv_head = 0;            ///< of the rows of one key/value head, or Mamba-2 group; max(1, K/tp) of them on a rank
  Bytes absorbed = 0;           ///< MLA: 16-bit copies made after loading, divided by tp
  Bytes feed_forward = 0;       ///< dense or shared experts, divided by tp
  Bytes feed_forward_replicated = 0;
  Bytes expert = 0;        ///< of one routed expert
  Bytes expert_bias = 0;   ///< in it: what is no matrix
  Bytes expert_whole = 0;  ///< in it: on every rank that has the expert (biases behind the down-projection)
  std::int64_t experts = 0, experts_per_token = 0, expert_width = 0;
  std::int64_t width = 0;  ///< of the dense block or of all shared experts together
  bool gated = true, experts_gated = true;
  std::int64_t heads = 0, kv_heads = 0;
  std::int64_t attention_width = 0;  ///< elements of the mixer's output, all heads
  std::int64_t context_width = 0;    ///< MLA: elements a token of the context projected up, all heads
  LayerCache cache;
  std::array<FusedMatrix, kFusedCount> matrices{};  ///< elements; plain 16-bit matrices are these alone
  std::array<FusedMatrix, kFusedCount> scales{};  ///< what stands beside the elements of a quantised matrix, a tensor of its own
  Bytes adapters_replicated = 0;                  ///< LoRA slots: what every rank keeps whole
  Bytes adapters = 0;                             ///< LoRA slots: divided by tp
  Bytes adapters_kv_head = 0;                     ///< of the slots: rows of one key/value head
  bool operator==(const ServerLayer&) const = default;
};

struct ServerLayerRun {
  int kind = 0;
  std::int64_t count = 0;
};

/// Tables of a draft of another checkpoint (server_draft.cpp); all zero for MTP blocks, which have the model's.
struct ServerDraft {
  std::int64_t hidden = 0, vocab = 0;                ///< of its embedding
  bool own_embedding = false;                        ///< which is not the model's
  std::int64_t head_rows = 0;                        ///< of its own head; 0: the model's
  Bytes row = 0;                                     ///< of one row of either
  std::int64_t rope_elements = 0;                    ///< of its own cos/sin table
  std::int64_t states = 0;                           ///< layers of the model that it reads beside the last
  bool loads_embedding = false, loads_head = false;  ///< made with it, and given up for the model's
};

struct ServerModel {
  EngineKind engine = EngineKind::sglang;
  std::int64_t hidden = 0, vocab = 0, layers = 0, max_positions = 0;
  std::string family;  ///< model_type
  bool tied = false, moe = false, mla = false, multimodal = false;
  DType weights = DType::bf16, kv = DType::bf16;
  DType compute = DType::bf16;      ///< of activations and of what is not quantised
  Bytes row = 0;                    ///< of one row of the embedding: h elements
  Bytes head_row = 0;               ///< of one row of the head
  std::int64_t labels = 0;          ///< rows of a layer that scores a request, in place of the head; 0: tokens are generated
  DType score = DType::bf16;        ///< format of that layer and of what goes into it
  std::int64_t layer_vocab = 0;     ///< rows of the table of per-layer embeddings (Gemma 3n, 4)
  Bytes layer_row = 0;              ///< of one of them
  std::int64_t input_elements = 0;  ///< of a token of a batch, in buffers that are made with the model on its first stage
  std::int64_t stage_elements = 0;  ///< the same, on every stage
  Bytes outside = 0;                ///< final norm, position table, head bias: on every rank
  Bytes outside_cut = 0;            ///< what stands outside of the layers and is divided by tp
  bool unpacks = false;             ///< bitsandbytes: a matrix is made in 16 bits for every product
  bool whole_embedding = false;     ///< every rank keeps all rows of the embedding
  Bytes tower = 0;                  ///< of a vision tower: divided by tp
  Bytes tower_whole = 0;            ///< of a vision tower: on every rank
  bool whole_tower = false;         ///< ranks share images out: nothing of it is divided by tp
  Bytes tower_positions = 0;        ///< of a vision tower: its table of positions, where releases cut it
  std::int64_t rope_elements = 0;   ///< of all cos/sin tables: positions * rotary dimension each
  bool latent_yarn = false;         ///< MLA with positions that are stretched by YaRN
  bool compressed = false;          ///< DeepSeek V4: a window and compressed entries
  std::int64_t streams = 1;         ///< residual streams
  std::int64_t entry_width = 0, entry_tokens = 0, window = 0;  ///< compressed: elements of an entry, its least tokens, the window
  std::int64_t index_bytes = 0;                                ///< compressed: of an indexer's key
  std::int64_t shared_step = 1;                                ///< columns of a shared expert on a rank are a multiple of it
  bool sparse = false;                                         ///< attention to what an indexer chooses (DeepSeek V3.2, GLM-5)
  std::int64_t image_tokens = 0, image_elements = 0;           ///< of one image of the tower's fixed size; 0: not described
  Bytes adapters_embedding = 0, adapters_head = 0;             ///< LoRA slots beside the tables, whole on every rank
  Bytes largest_tensor = 0;                                    ///< unsharded, 16-bit: what a weight update must hold at least
  std::int64_t heads = 0, kv_heads = 0;                        ///< smallest over the attention layers, for divisibility
  std::int64_t latent = 0;                                     ///< MLA: elements a token of the latent vector
  std::vector<ServerLayer> kinds;
  std::vector<ServerLayerRun> runs;    ///< in order
  std::vector<ServerLayerRun> totals;  ///< of each kind, for a model on one stage
  std::vector<ServerLayerRun> drafts;  ///< layers that guess ahead, MTP blocks or a draft's, on the last stage
  Bytes draft_outside = 0;             ///< their projections and norms, on every rank
  ServerDraft draft;                   ///< what a draft of another checkpoint has beside
  std::int64_t draft_tokens = 0;       ///< guessed ahead
};

/// Throws InputError when the engine cannot serve the architecture, or a number format is not described.
ServerModel server_model(const Architecture&, EngineKind, DType weights = DType::bf16, DType kv = DType::bf16);

/// The same for a server's settings, with room for adapters where it has slots.
ServerModel server_model(const Architecture&, EngineKind, const Server&);

/// Bytes of `elements` of a linear layer stored in `weights`, with its scales; `rows` output channels. Formats as in
/// docs/engines/vllm.md, "Weights".
Bytes linear_bytes(std::int64_t elements, std::int64_t rows, DType weights);

}  // namespace oomplan
