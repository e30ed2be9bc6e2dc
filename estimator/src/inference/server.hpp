// A generation server's memory on one GPU: weights, KV pool, graphs, and what it holds while it starts, generates and sleeps.
//
// In three steps, so that a search pays for strings once and for arithmetic often:
//   ServerModel m = server_model(architecture, engine, weights, kv);          // once per model          (server_model.hpp)
//   ServerFacts f = resolve(facts, engine, version, gpu, m);                  // once per engine, version, GPU
//   ServerPlan  p = plan(m, f, point);                                        // per point, well below a microsecond
// and then the memory program, with either recorder:
//   ServerSites s = make_sites(recorder, p);
//   record(recorder, p, s, ServerPhase::load); ...
// A server that cannot start is an answer (ServerPlan::refusal), not an exception.
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <oomplan/job.hpp>
#include <oomplan/oomplan.hpp>
#include <oomplan/program.hpp>

#include "catalog/facts.hpp"
#include "catalog/gpus.hpp"
#include "inference/server_facts.hpp"
#include "inference/server_model.hpp"

namespace oomplan {

/// What may vary in a search. Zero: the engine's own choice.
struct ServerPoint {
  std::int64_t tensor = 1, pipeline = 1, expert = 1;
  std::int64_t attention_data = 1;  ///< Server::attention_data
  bool whole_dense = false, head_by_attention = false;
  bool deepep = false;                               ///< Server::exchange is one of DeepEP's
  bool deepep_decodes = false;                       ///< its kernels for decoding are used: graphs hold rows for all ranks
  Bytes deepep_bytes = 0;                            ///< its buffers
  std::int64_t draft_steps = 0, draft_branches = 0;  ///< SGLang; 0: the engine's own
  bool flashinfer = false;                           ///< Server::flashinfer
  bool share_prompts = true;                         ///< SGLang's radix cache
  bool state_buffers = false;                        ///< Server::state_buffers
  std::int64_t decode_context = 1;                   ///< ranks of a tensor group that share a request's cache; vLLM
  std::int64_t stage = 0;                            ///< of the pipeline
  double fraction = 0;                               ///< mem_fraction_static, gpu_memory_utilization
  std::int64_t max_running = 0, max_model_len = 0, batched_tokens = 0;
  std::int64_t sequences = 0;      ///< in flight at once, for the transients of generation; 0: max_running
  std::int64_t step_tokens = 0;    ///< most that one forward pass of generation computes; 0: batched_tokens
  std::int64_t flight_tokens = 0;  ///< of all requests in flight when they end; 0: unstated
  Bytes occupied = 0;              ///< on the device before this process starts: other processes, other jobs
  bool eager = false;
  bool logprobs = false;         ///< requests ask for the log-probabilities of what they sample (RL does)
  std::int64_t scored = 0;       ///< tokens of a prompt whose log-probabilities a request asks for (a teacher); 0: none
  std::int64_t score_chunk = 0;  ///< Server::score_chunk; SGLang
  std::int64_t sleep_level = 0;
};
ServerPoint point_of(const Server&);
/// SGLang: recurrent states that a running request takes: its own, those the radix cache keeps, those it writes to. 0: not
/// counted.
std::int64_t slots_per_request(const ServerFacts&, const ServerPoint&, bool drafts);

/// Every storage that a server holds at some time; row() says what each is.
enum class ServerTensor : std::uint8_t {
  context,
  nccl,
  growth,
  late_growth,
  embedding,
  mixers,
  absorbed,
  feed_forwards,
  experts,
  norms,
  head,
  tower,
  rope,
  adapters,
  exchange,
  exchange_rows,
  drafts,
  draft_loaded,
  buffers,
  host_weights,
  host_offloaded,
  blas,
  forward_workspace13,
  forward_workspace2,
  gathered,
  topk_buffer,
  attention_workspace,
  kv_cache,
  state_cache,
  draft_cache,
  request_table,
  draft_tables,
  graphs,
  graph_logits,
  image_pixels,
  image_outputs,
  intermediate,
  hidden,
  residual,
  attention_output,
  projected,
  gate_up,
  unpacked,
  unpacked_product,
  activation,
  layer_output,
  context_projected,
  index_scores,
  draft_states,
  draft_inputs,
  step_activations,
  sampled_hidden,
  sampled_random,
  pooled,
  scores,
  logits,
  logits_fp32,
  log_probs,
  prompt_hidden,
  prompt_logits_own,
  prompt_logits_parts,
  prompt_logits,
  prompt_logits_fp32,
  prompt_picked,
  prompt_log_probs,
  prompt_logits_before,
  prompt_log_probs_before,
  probabilities,
  noise,
  sorted,
  sorted_index,
  sort_keys,
  sort_pairs,
  cumulative,
  count
};
inline constexpr std::size_t kServerTensorCount = static_cast<std::size_t>(ServerTensor::count);

/// Why the engine itself refuses to start, or what would happen.
enum class ServerRefusal : std::uint8_t {
  none,
  cannot_split,      ///< heads or layers do not divide
  not_enough_free,   ///< vLLM >= 0.9: free memory is below the requested share of the card
  no_cache,          ///< nothing is left for the KV pool
  request_too_long,  ///< one request of max_model_len does not fit in the pool
};

struct ServerPlan {
  EngineKind engine = EngineKind::sglang;
  ServerRefusal refusal = ServerRefusal::none;
  Bytes missing = 0;  ///< what the refusal lacks
  std::array<Bytes, kServerTensorCount> bytes{};
  std::array<std::array<std::int64_t, 3>, kServerTensorCount> shape{};  ///< zeros at the end are no axes
  std::array<DType, kServerTensorCount> dtype{};
  bool pausable = false;       ///< weights and cache live in a pool that sleep can unmap
  bool cache_released = true;  ///< by sleep; false: the engine's saver does not cover this pool
  bool sampler_sorts = false;
  std::int64_t sleep_level = 0;
  double fraction = 0;                                                  ///< in force
  std::int64_t max_running = 0, max_model_len = 0, batched_tokens = 0;  ///< in force
  std::int64_t page_tokens = 1;
  Bytes weights = 0;           ///< as the engine logs them
  Bytes profile_peak = 0;      ///< torch's peak of the start-up run above the weights (vLLM)
  Bytes non_kv = 0;            ///< vLLM: "Total non KV cache memory"; SGLang: free at start minus the pool
  Bytes budget = 0;            ///< what the engine may use: the requested share
  Bytes kv_pool = 0;           ///< what it finds for the cache
  Bytes token_bytes = 0;       ///< of one token of a long request, on this GPU
  Bytes request_bytes = 0;     ///< of one request of max_model_len, as the engine counts it when it starts
  std::int64_t longest = 0;    ///< where such a request does not fit: the tokens of the longest that would; vLLM says so
  std::int64_t kv_tokens = 0;  ///< of one replica, as the engine logs it
  std::int64_t kv_pages = 0;
  std::int64_t full_requests = 0;  ///< of max_model_len, at once
  std::int64_t state_slots = 0;    ///< requests whose recurrent state fits; 0: no such state
  Bytes operator[](ServerTensor t) const { return bytes[static_cast<std::size_t>(t)]; }
};

/// REQUIRES: facts resolved for the model's engine; point.stage < point.pipeline.
ServerPlan plan(const ServerModel&, const ServerFacts&, const ServerPoint&);

enum class ServerPhase : std::uint8_t { load, start, generate, sleep, wake_weights, wake_cache };

struct ServerTensorRow {
  ServerTensor tensor;
  std::string_view name;
  Category category;
  Pool pool;
  Holder holder;
};
const ServerTensorRow& row(ServerTensor);

using ServerSites = std::array<SiteRef, kServerTensorCount>;
/// For the fold: no names.
ServerSites make_sites(PeakRecorder&, const ServerPlan&);
/// Registers every storage of the plan with the writer.
ServerSites make_sites(ProgramWriter&, const ServerPlan&);

/// What happens to one rank. Phases are recorded in the order load, start, then any of generate, sleep, wake_weights,
/// wake_cache. A weight update is recorded by sync/ on the same recorder, after wake_weights or while awake.
template <class R>
void record(R&, const ServerPlan&, const ServerSites&, ServerPhase);

/// One sentence in the engine's own terms; "" when it starts.
std::string to_text(const ServerPlan&);

/// What the pool holds against what is asked of it. `asked`: requests at once of one replica; 0: unstated.
ServerAnswer describe(const ServerPlan&, std::string_view role, std::int64_t asked, std::int64_t tokens_per_request);

/// The figures that an engine logs at start-up, for comparison with measured runs: of the first rank, and the largest weights.
struct ServerFigures {
  Bytes weights = 0, largest_weights = 0, non_kv = 0, kv_pool = 0;
  std::int64_t kv_tokens = 0;
  Bytes profile_peak = 0, graphs = 0;
  Bytes requested = 0, request_bytes = 0;  ///< the share of the card; one request of max_model_len
  std::int64_t longest = 0;                ///< ServerPlan::longest
  std::string refusal;
};
ServerFigures serve(const Architecture&, EngineKind, const Server&, const Gpu&, const Facts&);

}  // namespace oomplan

#include "inference/server_program.hpp"
