// What oomplan knows of one engine version on one kind of GPU, resolved from models/engines into plain numbers.
//
// resolve() reads strings once; plan() (server.hpp) reads only this struct.
#pragma once
#include <array>
#include <cstdint>
#include <string_view>

#include <oomplan/job.hpp>
#include <oomplan/units/bytes.hpp>

#include "catalog/facts.hpp"
#include "catalog/gpus.hpp"
#include "inference/server_model.hpp"

namespace oomplan {

/// How a memory fraction becomes a KV pool; the fact `budget_rule` has these numbers.
enum class BudgetRule : std::uint8_t {
  static_of_free = 0,      ///< SGLang: fraction of what is free after the communicators exist
  everything_counts = 1,   ///< vLLM 0.8: context, NCCL and other processes count against the share of the card
  nccl_counts = 2,         ///< vLLM 0.9, 0.10: snapshot before NCCL, behind the context
  only_growth_counts = 3,  ///< vLLM 0.11 to 0.20: snapshot behind NCCL
  growth_and_graphs = 4,   ///< vLLM 0.21 and later: also the estimate of the graphs
  first_engine = 5,        ///< vLLM V0: NCCL counts, the context does not, and nothing is checked beforehand
};
/// What one request of max_model_len is said to need when vLLM compares it with the pool; the fact `request_rule`.
enum class RequestRule : std::uint8_t {
  tokens = 0,      ///< V0: the pool's tokens are compared with max_model_len
  all_layers = 1,  ///< V1 up to 0.15: every layer of the model by itself, also where a stage has some of them only
  groups = 2,      ///< since 0.16: the stage's groups of layers, padded as they are allocated
};
/// How vLLM lays out a cache of compressed entries; the fact `compressed_cache`.
enum class CompressedCache : std::uint8_t {
  none = 0,    ///< the release has no class for such a model
  tuples = 1,  ///< a block has as many slots of every size
  packed = 2,  ///< of every size as many as are used
};
/// How SGLang chooses mem_fraction_static; the fact `fraction_rule` has these numbers.
enum class FractionRule : std::uint8_t { given = 0, table = 1, reserve_gib = 2, reserve_mib = 3 };

/// Which stages of an uneven pipeline get one layer more; the fact `extra_layers` has these numbers.
enum class ExtraLayers : std::uint8_t {
  before_last = 0,  ///< vLLM: from the last but one towards the front
  last_all = 1,     ///< SGLang to 0.5.5: the last stage takes the whole remainder
  last_ones = 2,    ///< SGLang later: one each, the last stages
};

/// 1, 2, 4, 8, 16 and more GPUs that hold one replica (tp * pp).
inline constexpr int kGroupSizes = 5;

struct ServerFacts {
  EngineKind engine = EngineKind::sglang;
  BudgetRule budget = BudgetRule::static_of_free;
  FractionRule fraction_rule = FractionRule::given;
  Bytes total = 0, smi_mib = 0;  ///< of the GPU
  std::int64_t sms = 0;
  double fraction = 0;  ///< default
  std::int64_t page_tokens = 1, vocab_padding = 64;
  std::int64_t batched_tokens = 0, max_running = 0;  ///< defaults
  std::int64_t prefill_tokens = 0;  ///< SGLang max_prefill_tokens, in force when chunked prefill is off (batched_tokens < 0)
  std::array<std::int64_t, 2> graph_batch{};  ///< largest captured batch: tp < 4, tp >= 4
  bool sampler_sorts = false;
  ExtraLayers extra_layers = ExtraLayers::before_last;
  bool tokens_by_request = false;        ///< vLLM: the logged KV tokens are full requests times their length
  bool state_pages_as_asked = false;     ///< vLLM: pages beside states grow by the pages asked for
  std::int64_t rope_bits = 16;           ///< of an element of the cos/sin table
  bool embedding_every_stage = false;    ///< of a pipeline; else the first has it, and the last where it is the head too
  bool head_every_stage = false;         ///< of a pipeline; else the last
  bool stages_cache_all_layers = false;  ///< SGLang: a stage's cache has the other stages' layers as well
  std::int64_t rope_tables = 1;          ///< SGLang: how many of the model's cos/sin tables its classes keep
  std::int64_t router_bits = 16;         ///< SGLang: of an element of a router in a model of 16 bits
  bool tower_off = false;                ///< SGLang: the vision tower is not loaded unless it is asked for
  bool tower_positions_cut = false;      ///< SGLang: a tower's table of positions is divided
  bool tower_positions_follow = false;   ///< SGLang: not where each rank has the rest of the tower whole
  std::int64_t topk_rows = 0;            ///< of the Triton top-k/top-p buffer: min(SMs, requests) rounded; 0: no such buffer
  std::int64_t moe_chunk_tokens = 0;     ///< bound of the tokens in a MoE workspace; 0: none
  Bytes context = 0, blas = 0;
  std::array<Bytes, kGroupSizes> nccl{};             ///< communicators, for the model's kind (MoE has one more)
  std::array<Bytes, kGroupSizes> growth{};           ///< outside torch between the snapshot and the end of the profile run
  std::array<Bytes, kGroupSizes> growth_pipeline{};  ///< the same where the GPUs are pipeline stages
  Bytes late_growth = 0;                             ///< vLLM: outside torch behind the profile run, so outside of the budget
  Bytes attention_workspace = 0;
  Bytes latent_workspace = 0;          ///< of MLA kernels, made with the model
  Bytes load_max_split = 0;            ///< max_split_size while weights are loaded; 0: none
  bool expandable_segments = false;    ///< of the engine's processes
  Bytes offloaded_weights = 0;         ///< Server::offloaded_weights
  std::int64_t redundant_experts = 0;  ///< Server::redundant_experts
  bool last_rank_takes_rest = false;   ///< where ep does not divide the experts; else the first ranks take one more
  bool experts_split_tokens = false;   ///< vLLM: under data and tensor parallelism each rank sends a part of the tokens
  bool attention_data_repeats_embedding = false;  ///< SGLang: data-parallel attention has the whole embedding on every rank
  bool shared_expert_replicas = false;            ///< SGLang: DeepSeek V3's shared expert is stored once for every rank
  // the kernel of mxfp4 experts: what it pads to, and whether it leaves the scales beside its own
  std::int64_t mxfp4_width_step = 128, mxfp4_hidden_step = 256;
  bool mxfp4_keeps_scales = false;
  Bytes graph_base = 0, graph_moe = 0, graph_hidden = 0;  ///< SGLang: graphs = base + layer*L + hidden*h + [MoE]
  Bytes graph_layer = 0;                                  ///< of one layer: SGLang in all graphs, vLLM in one graph
  Bytes graph_experts = 0, graph_shared_experts = 0;      ///< vLLM: of a layer with (shared) experts, in one graph, besides
  std::int64_t graph_modes = 1;         ///< vLLM: 2: decoding is captured whole besides the pieces of a forward pass
  std::int64_t graph_wide_step = 8;     ///< vLLM: between captured sizes from 256 on
  std::int64_t graph_splits = 0;        ///< vLLM: of attention in a captured decoding step; 0: its kernel has no such bound
  std::int64_t adapter_graph_sets = 1;  ///< how often every size is captured where there are LoRA slots
  bool second_runner = false;           ///< vLLM: "model runner V2" drives the model
  bool embeds_buffer = false;           ///< vLLM: a buffer of embedded inputs of a whole batch
  // SGLang's automatic fraction, MiB
  double reserve_base = 0, reserve_token = 0, reserve_graph = 0, reserve_gpu = 0, reserve_floor = 0;
  double reserve_prefill_graph = 0;                        ///< of one captured prefill size; 0: prefill is not captured
  double reserve_prefill_graphs_latent = 0;                ///< of all of them together for MLA
  double reserve_attention_data = 0;                       ///< of one captured batch and one group of data-parallel attention
  double reserve_attention_data_large = 0;                 ///< the same beside it where more than 300 are captured
  double reserve_attention_data_gib = 0;                   ///< once
  double reserve_drafts = 0;                               ///< behind the floor, where tokens are guessed ahead
  bool drafts_before_pool = false;                         ///< SGLang: draft weights and the drafts' cache come out of the pool
  bool drafts_buffer_states = false;                       ///< SGLang: beside its radix cache a request holds five states
  std::int64_t draft_running = 0;                          ///< SGLang's max_running_requests where tokens are guessed ahead
  bool draft_page_tables = false;                          ///< the attention kernel's graphs have tables of every request's pages
  Bytes flashinfer_workspace = 0, flashinfer_wrapper = 0;  ///< SGLang's FlashInfer: of all backends, and of one wrapper
  double swa_ratio = 0.8, state_ratio = 0.9;
  std::int64_t slots_per_request = 0;  ///< of recurrent states, beside the radix cache; 0: requests are not counted in slots
  std::int64_t buffers_per_request = 0, buffers_beside_drafts = 0;  ///< more of them with Server::state_buffers
  double group_ratio = 1.5;  ///< vLLM: kinds of layers that differ by less share one group size, the larger
  bool uniform_swa = false;  ///< sliding-window layers get full-length cells
  RequestRule request_rule = RequestRule::groups;
  CompressedCache compressed_cache = CompressedCache::none;
  Bytes fixed_cache = 0;         ///< the cache that was asked for, whatever the share; 0: the share decides
  std::int64_t most_tokens = 0;  ///< SGLang: of the cache, however many fit; 0: all that do
  bool saver_covers_swa = true;  ///< the pool of sliding-window layers can be released
};

/// A version that is newer than all that are known is answered by the newest (Facts::answering). Throws InputError for an older
/// one, with those that are known.
ServerFacts resolve(const Facts&, EngineKind, std::string_view version, const Gpu&, const ServerModel&);
/// The same with what the server was told in place of the engine's own choices.
ServerFacts resolve(const Facts&, EngineKind, const Server&, const Gpu&, const ServerModel&);

}  // namespace oomplan
