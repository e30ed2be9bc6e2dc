#include "inference/server.hpp"

#include <algorithm>
#include <bit>
#include <cmath>

#include "inference/cache.hpp"
#include "inference/captured_graphs.hpp"
#include "inference/flashinfer.hpp"
#include "inference/rank_share.hpp"
#include "inference/stage.hpp"

namespace oomplan {
namespace {

using T = ServerTensor;
using Axes = std::array<std::int64_t, 3>;

std::size_t group_index(std::int64_t gpus) {
  return std::min<std::size_t>(kGroupSizes - 1, static_cast<std::size_t>(std::bit_width(static_cast<std::uint64_t>(gpus - 1))));
}

class Planner {
 public:
  /// Fills `out`, which is as ServerPlan begins.
  Planner(const ServerModel& m, const ServerFacts& f, const ServerPoint& at, ServerPlan& out)
      : m_(m), f_(f), at_(at), p_(out), share_(share_of(m, f, at)) {}

  void plan() {
    settings();
    if (!divides()) return;
    const Stage stage = stage_of(m_, f_, share_, at_.pipeline, at_.stage);
    fixed();
    weights(stage);
    transients(stage, p_.batched_tokens);
    budget(stage);
    pool(stage);
    derived(stage);
    step(stage);
  }

 private:
  void set(T t, Bytes bytes, Axes shape = {}) {
    p_.bytes[static_cast<std::size_t>(t)] = bytes;
    p_.shape[static_cast<std::size_t>(t)] = shape;
  }
  void tensor(T t, std::int64_t a, std::int64_t b, DType d) {
    set(t, bytes_of(a * b, d), {a, b, 0});
    p_.dtype[static_cast<std::size_t>(t)] = d;
  }

  void settings() {
    p_.engine = m_.engine;
    p_.dtype.fill(m_.compute);
    p_.sleep_level = at_.sleep_level;
    p_.pausable = at_.sleep_level > 0;
    p_.sampler_sorts = f_.sampler_sorts;
    p_.max_model_len = at_.max_model_len > 0 ? at_.max_model_len : m_.max_positions;
    p_.batched_tokens = at_.batched_tokens != 0 ? at_.batched_tokens : f_.batched_tokens;
    if (p_.batched_tokens < 0) p_.batched_tokens = f_.prefill_tokens;  // chunked prefill is off
    if (at_.batched_tokens == 0 && f_.budget == BudgetRule::first_engine) p_.batched_tokens = whole_prompts();
    p_.max_running = at_.max_running > 0 ? at_.max_running : f_.max_running;
    if (drafts() && at_.max_running == 0) p_.max_running = f_.draft_running;
    p_.fraction = at_.fraction > 0 ? at_.fraction : own_fraction();
    if (m_.engine == EngineKind::sglang && at_.attention_data > 1) of_one_group();
    p_.page_tokens = f_.page_tokens;
  }

  /// SGLang guesses ahead with a worker of its own; vLLM has the draft blocks among its layers.
  bool drafts() const { return m_.engine == EngineKind::sglang && m_.draft_tokens > 0; }
  /// What a request of a step computes: the last token, and with drafts all that are verified.
  std::int64_t tokens_of_request() const { return drafts() ? m_.draft_tokens : 1; }
  std::int64_t draft_steps() const { return at_.draft_steps > 0 ? at_.draft_steps : 3; }  // auto_choose_speculative_params
  std::int64_t draft_branches() const { return at_.draft_branches > 0 ? at_.draft_branches : 1; }

  /// Chunks and requests are shared out over the groups of data-parallel attention, once the fraction is chosen
  /// (sglang/srt/server_args.py _handle_data_parallelism and model_runner_kv_cache_mixin.py _resolve_max_num_reqs, 0.5.10).
  void of_one_group() {
    const bool chunked = at_.batched_tokens >= 0;
    if (chunked) p_.batched_tokens = std::max<std::int64_t>(1, p_.batched_tokens / at_.attention_data);
    if (at_.max_running > 0 || drafts()) p_.max_running = std::max<std::int64_t>(1, p_.max_running / at_.attention_data);
  }

  /// vLLM V0 prefills in chunks above 32,768 positions only, and images never; else a batch holds the longest prompt
  /// (vllm/engine/arg_utils.py create_engine_config, vllm/config.py SchedulerConfig, 0.6.6).
  std::int64_t whole_prompts() const {
    if (p_.max_model_len > 32768 && !m_.multimodal) return f_.batched_tokens;
    return std::max<std::int64_t>(p_.max_model_len, m_.multimodal ? 5120 : f_.batched_tokens);
  }

  /// SGLang's automatic mem_fraction_static. REQUIRES: facts of that engine, or a default fraction.
  double own_fraction() const {
    const double gpu = static_cast<double>(f_.smi_mib);
    const double gpus = static_cast<double>(at_.tensor * at_.pipeline);
    switch (f_.fraction_rule) {
      case FractionRule::given:
        return f_.fraction;
      case FractionRule::table: {  // sglang/srt/server_args.py, 0.4.6
        double out = gpu > 81920 || gpus < 2 ? 0.88 : (gpus < 4 ? 0.87 : (gpus < 8 ? 0.85 : (gpus < 16 ? 0.81 : 0.79)));
        if (gpu > 98304) out = std::min(out + 49152 * (1 - out) / gpu, (gpu - 18432) / gpu);
        return out;
      }
      case FractionRule::reserve_gib: {  // 0.4.9 to 0.5.2
        double reserve =
            gpu < 35 * 1024 ? 2.8 + gpus / 10 : (gpu < 90 * 1024 ? 9.5 + gpus / 2 : (gpu < 160 * 1024 ? 12 + gpus / 2 : 32));
        if (at_.attention_data > 1) reserve += f_.reserve_attention_data_gib;
        if (drafts()) reserve += f_.reserve_drafts / 1024;
        return std::round((gpu - reserve * 1024) / gpu * 1000) / 1000;
      }
      case FractionRule::reserve_mib:
        break;
    }
    const double graph = static_cast<double>(f_.graph_batch[at_.tensor < 4 ? 0 : 1]);
    double reserve = f_.reserve_base + f_.reserve_token * static_cast<double>(std::max<std::int64_t>(2048, p_.batched_tokens)) +
                     f_.reserve_graph * graph + f_.reserve_gpu * gpus;
    if (at_.attention_data > 1) {
      const double each = f_.reserve_attention_data + (graph > 300 ? f_.reserve_attention_data_large : 0);
      reserve += each * graph * static_cast<double>(at_.attention_data);
    }
    const std::int64_t captured = f_.most_tokens > 0 ? std::min(p_.batched_tokens, f_.most_tokens) : p_.batched_tokens;
    if (captures_prefill())
      reserve +=
          m_.mla ? f_.reserve_prefill_graphs_latent : f_.reserve_prefill_graph * static_cast<double>(prefill_sizes(captured));
    if (gpu > 60 * 1024) reserve = std::max(reserve, f_.reserve_floor);
    if (drafts()) reserve += f_.reserve_drafts;
    return std::round((gpu - reserve) / gpu * 1000) / 1000;
  }

  /// Off where the engine cannot: pipelines, vision, memory saver, data-parallel attention (sglang/srt/server_args.py, 0.5.10).
  bool captures_prefill() const {
    return f_.reserve_prefill_graph > 0 && at_.pipeline == 1 && !m_.multimodal && at_.sleep_level == 0 && !at_.eager &&
           at_.attention_data == 1 && !drafts();
  }

  /// How many token counts up to `most` are captured: steps of 4, 16, 32, 64, 256, 512 that widen with the count.
  static std::int64_t prefill_sizes(std::int64_t most) {
    constexpr std::array<std::array<std::int64_t, 3>, 6> kSteps{
        {{4, 32, 4}, {48, 256, 16}, {288, 512, 32}, {576, 1024, 64}, {1280, 4096, 256}, {4608, INT64_MAX / 2, 512}}};
    std::int64_t out = 0;
    for (const auto& [from, to, step] : kSteps)
      if (most >= from) out += (std::min(most, to) - from) / step + 1;
    return out;
  }

  /// Both engines refuse heads that tp does not divide; KV heads are either divided or replicated.
  bool divides() {
    const std::int64_t ranks = share_.tensor, together = RankShare::ranks(share_.all, ranks);
    const bool heads = m_.heads == 0 || m_.heads % ranks == 0;
    const bool kv = m_.kv_heads == 0 || m_.kv_heads % ranks == 0 || ranks % m_.kv_heads == 0;
    const bool experts = together % share_.expert == 0 && (m_.engine == EngineKind::vllm || !uneven_experts());
    // ranks that would hold the same heads share their tokens (vllm/config/model.py verify_with_parallel_config, 0.12)
    const bool shared = at_.decode_context == 1 ||
                        (at_.tensor % at_.decode_context == 0 && (m_.mla || at_.tensor >= m_.kv_heads * at_.decode_context));
    if (heads && kv && experts && shared && at_.pipeline <= m_.layers) return true;
    p_.refusal = ServerRefusal::cannot_split;
    return false;
  }

  /// SGLang wants as many experts on every rank (sglang/srt/layers/moe/fused_moe_triton/layer.py, 0.5.10).
  bool uneven_experts() const {
    return std::any_of(m_.kinds.begin(), m_.kinds.end(), [&](const ServerLayer& l) {
      return l.experts > 0 && (l.experts + f_.redundant_experts) % share_.expert != 0;
    });
  }

  void fixed() {
    const std::size_t group = group_index(std::max(at_.tensor, RankShare::ranks(share_.all, 1)) * at_.pipeline);
    set(T::context, f_.context);
    set(T::nccl, f_.nccl[group]);
    set(T::growth, at_.tensor > 1 ? f_.growth[group_index(at_.tensor)] : f_.growth_pipeline[group_index(at_.pipeline)]);
    set(T::late_growth, f_.late_growth);
    set(T::blas, f_.blas);
  }

  void weights(const Stage& s) {
    set(T::embedding, s.embedding, {s.embedding / std::max<Bytes>(1, m_.row), m_.hidden, 0});
    set(T::head, s.head, {s.head / std::max<Bytes>(1, m_.head_row), m_.hidden, 0});
    if (m_.labels > 0) p_.dtype[static_cast<std::size_t>(T::head)] = m_.score;
    // SGLang logs the difference of free memory, rounded segments included, and sizes its pool by it; vLLM whole blocks
    const Bytes slack = s.slack;
    Bytes away = s.offloaded;  // in host memory; of which kind is for the books only
    const auto stays = [&away](Bytes bytes) {
      const Bytes gone = std::min(bytes, away);
      away -= gone;
      return bytes - gone;
    };
    set(T::experts, stays(s.experts));
    set(T::feed_forwards, stays(s.feed_forwards));
    set(T::mixers, stays(s.mixers) + slack);
    set(T::absorbed, s.absorbed + (m_.mla ? f_.latent_workspace : 0));
    set(T::host_offloaded, s.offloaded);
    set(T::norms, s.norms + s.outside);
    // vLLM builds the tower on every stage (vllm/model_executor/models/gemma3_mm.py, 0.19)
    const Bytes tower = tower_bytes(m_, f_, at_.tensor, s.first);
    set(T::tower, tower + input_bytes(m_, p_.batched_tokens, s.first));
    set(T::rope, rope_bytes(m_, f_));
    set(T::adapters, s.adapters);
    set(T::draft_loaded, s.draft_loaded);
    for (const T t : server_program::kWeights) p_.weights += p_[t];
    // copied in whole segments (vllm/device_allocator/cumem.py, 0.19; torch_memory_saver)
    if (at_.sleep_level == 1) set(T::host_weights, p_.weights + (server_program::adapters_sleep(p_) ? s.adapters : 0));
    p_.weights += s.adapters;
    if (drafts() && s.last) draft_weights();
  }

  void draft_weights() {
    drafts_ = drafts_of(m_, f_, share_);
    if (!f_.drafts_before_pool) set(T::draft_loaded, drafts_.draft_loaded);  // else long gone when the pool is there
    set(T::drafts, drafts_.embedding + drafts_.head + drafts_.norms + drafts_.outside + drafts_.mixers + drafts_.absorbed +
                       drafts_.feed_forwards + drafts_.experts + drafts_.slack);
    if (at_.sleep_level == 1) set(T::host_weights, p_[T::host_weights] + p_[T::drafts]);  // enable_draft_weights_cpu_backup
    for (int i = 0; i < drafts_.bucket_count; ++i) {
      const CacheBucket& b = drafts_.buckets[static_cast<std::size_t>(i)];
      draft_token_ += b.layers * b.token;
    }
  }

  /// The drafts' pool has as many tokens as the model's; their graphs, as those that verify, have a table of every request's
  /// pages for each kind of step (sglang/srt/layers/attention/flashattention_backend.py init_cuda_graph_state, 0.5.2 to 0.5.18:
  /// four, one more with several branches, of which the model's own graphs have one in any case; a backend for each step but one,
  /// and one to extend the draft).
  void draft_pool(const Stage& stage) {
    if (!drafts() || !stage.last) return;
    set(T::draft_cache, (p_.kv_tokens + p_.page_tokens) * draft_token_, {p_.kv_tokens, 0, 0});
    if (at_.eager) return;
    const std::int64_t captured = captured_requests();
    // the model's logits of what is verified, and the drafts' own of one token
    tensor(T::graph_logits, captured * (m_.draft_tokens + 1), m_.vocab, DType::fp32);
    if (at_.flashinfer || !f_.draft_page_tables) return;
    const std::int64_t pages = ceil_div(p_.max_model_len, p_.page_tokens);
    const std::int64_t tables = draft_branches() > 1 ? 5 : 4, backends = draft_steps() + 1;
    const Bytes table = bytes_of(captured * pages, DType::int32);
    set(T::draft_tables, (tables * backends - 1) * table, {tables * backends - 1, captured, pages});
  }
  void flashinfer(const Stage& stage) {
    FlashInferAsk ask{.workspace = f_.flashinfer_workspace, .wrapper = f_.flashinfer_wrapper};
    ask.captured = captures() ? captured_requests() : 0;
    ask.context = p_.max_model_len;
    ask.windows = has_windows(stage);
    if (drafts() && stage.last) {
      ask.draft_tokens = m_.draft_tokens;
      ask.draft_steps = draft_steps();
    }
    const FlashInferBuffers buffers = flashinfer_buffers(ask);
    set(T::attention_workspace, buffers.workspace);
    set(T::draft_tables, buffers.tables);
  }
  std::int64_t captured_requests() const { return std::min(f_.graph_batch[at_.tensor < 4 ? 0 : 1], p_.max_running); }

  /// The highest moment of a forward pass over fewer tokens than a batch can have. Requests that the cache cannot hold together
  /// are preempted one by one and lose their pages; when those that ran to their end give theirs back, as many as fit come again
  /// in one step, from their first token on (vllm/v1/core/sched/scheduler.py schedule and _preempt_request, 0.23).
  void step(const Stage& stage) {
    if (at_.step_tokens <= 0) return;
    const bool preempts = at_.flight_tokens > p_.kv_tokens;
    const std::int64_t tokens = preempts ? std::max(at_.step_tokens, p_.kv_tokens) : at_.step_tokens;
    if (tokens >= p_.batched_tokens) return;
    ServerPlan small;
    ServerPoint at = at_;
    at.step_tokens = 0;
    Planner planner(m_, f_, at, small);
    planner.settings();
    planner.transients(stage, tokens);
    PeakRecorder peak;
    const ServerSites sites = make_sites(peak, small);
    server_program::forward(server_program::Hand<PeakRecorder>{peak, sites}, small);
    tensor(T::step_activations, 1, peak.span().peak / 2, DType::bf16);
  }

  void transients(const Stage& s, std::int64_t tokens) {
    const bool fp32 = m_.compute == DType::fp32;
    const DType d = m_.compute;
    tensor(T::hidden, tokens, m_.hidden, d);
    tensor(T::residual, tokens, m_.hidden, d);
    tensor(T::attention_output, tokens, s.attention, d);
    tensor(T::projected, tokens, m_.hidden, d);
    // SGLang's dense and shared blocks see the tokens of all groups, unless every rank has them whole
    const bool meets = m_.moe && !at_.deepep;
    const bool together = share_.data > 1 && m_.engine == EngineKind::sglang && (meets || share_.dense > 1);
    const std::int64_t met = tokens * share_.data;
    tensor(T::gate_up, together ? met : tokens, s.gate_up, d);
    if (s.unpacked > 0) {
      set(T::unpacked, s.unpacked);
      tensor(T::unpacked_product, tokens, s.activation, d);
    }
    tensor(T::activation, together ? met : tokens, s.activation, d);
    if (share_.data > 1 && (!at_.deepep || (share_.dense > 1 && has_dense_layers()))) tensor(T::gathered, met, m_.hidden, d);
    tensor(T::layer_output, tokens, m_.hidden, d);
    if (m_.draft.states > 0 && s.last) {
      tensor(T::draft_states, tokens, m_.draft.states * m_.hidden, d);
      tensor(T::draft_inputs, tokens, m_.draft.states * m_.hidden, d);
    }
    if (s.context > 0) tensor(T::context_projected, tokens, s.context, d);
    const std::int64_t moe = at_.deepep ? received(met) : f_.moe_chunk_tokens > 0 ? std::min(met, f_.moe_chunk_tokens) : met;
    if (s.workspace2 > 0 &&
        (m_.weights != DType::mxfp4 || m_.compressed)) {  // the mxfp4 kernels write into their own small buffers
      const std::int64_t experts_h = s.workspace2 > 0 ? top_k() * m_.hidden : 0;
      tensor(T::forward_workspace13, moe, std::max(s.workspace13, experts_h), d);
      tensor(T::forward_workspace2, moe, std::max(s.workspace2, m_.engine == EngineKind::vllm ? experts_h : 0), d);
    }
    if (m_.compressed) of_streams(tokens);
    if (at_.pipeline > 1) set(T::intermediate, 2 * bytes_of(tokens * m_.hidden, d), {2, tokens, m_.hidden});
    if (m_.image_tokens > 0 && s.first && m_.engine == EngineKind::vllm) {
      const std::int64_t images = std::max<std::int64_t>(1, tokens / m_.image_tokens);
      tensor(T::image_pixels, images, m_.image_elements, d);
      tensor(T::image_outputs, images * m_.image_tokens, m_.hidden, d);
    }
    if (s.last) m_.labels > 0 ? pooler() : sampler(fp32);
    if (s.last && at_.scored > 0)
      m_.engine == EngineKind::vllm ? prompt_scores(std::min(at_.scored, tokens)) : scores_of_all(tokens);
  }

  /// DeepSeek V4: streams in front of a layer and behind its half, queries and output of as many heads as its kernel takes, and
  /// what is gathered for them in the workspace that experts use too: entries and window in 16 bits for four requests, or keys of
  /// the indexer (vllm/models/deepseek_v4/{attention,nvidia/flashmla}.py forward_mqa, v1/attention/backends/mla/indexer.py
  /// get_max_prefill_buffer_size and model_executor/layers/sparse_attn_indexer.py, 0.24).
  void of_streams(std::int64_t tokens) {
    constexpr std::int64_t kHeads = 64, kRequests = 4, kPrefills = 40;
    constexpr Bytes kScores = 512 * kMiB;  // VLLM_SPARSE_INDEXER_MAX_LOGITS_MB
    const std::int64_t heads = round_up(ceil_div(m_.heads, share_.tensor), kHeads);
    tensor(T::residual, 2 * tokens, m_.streams * m_.hidden, m_.compute);
    tensor(T::attention_output, 2 * tokens, heads * m_.entry_width, m_.compute);
    const std::int64_t read = ceil_div(p_.max_model_len, m_.entry_tokens) + m_.window + p_.batched_tokens;
    const Bytes entries = bytes_of(kRequests * read * m_.entry_width, m_.compute);
    const Bytes keys = m_.index_bytes * (kPrefills * p_.max_model_len / m_.entry_tokens);
    if (m_.index_bytes > 0) set(T::index_scores, kScores);
    const Bytes more = std::max(entries, keys) - p_[T::forward_workspace13] - p_[T::forward_workspace2];
    if (more > 0) set(T::forward_workspace13, p_[T::forward_workspace13] + more);
  }

  bool has_dense_layers() const {
    return std::any_of(m_.kinds.begin(), m_.kinds.end(), [](const ServerLayer& l) { return l.experts == 0; });
  }
  std::int64_t experts_here() const {
    std::int64_t all = 0;
    for (const ServerLayer& l : m_.kinds) all = std::max(all, l.experts);
    return ceil_div(all + f_.redundant_experts, share_.expert);
  }
  /// Tokens whose rows, for each of their experts one, are as many as a rank gets: even routing, and each expert's padded to a
  /// multiple of 128 (sglang/srt/layers/moe/moe_runner/deep_gemm.py, token_dispatcher/deepep.py, 0.5.10).
  std::int64_t received(std::int64_t tokens) const {
    const std::int64_t rows = ceil_div(tokens * top_k(), share_.expert) + 128 * experts_here();
    return ceil_div(rows, std::max<std::int64_t>(1, top_k()));
  }
  /// Of the kernels for decoding: rows of 128 tokens of every rank for each expert here, in fp8 with scales when they come, and
  /// what the products make of them.
  void decoding_rows() {
    if (!at_.deepep_decodes || !captures()) return;
    constexpr std::int64_t kTokens = 128;  // SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK
    const std::int64_t rows = experts_here() * share_.expert * kTokens;
    std::int64_t width = 0;
    for (const ServerLayer& l : m_.kinds) width = std::max(width, l.experts > 0 ? l.expert_width : 0);
    const auto scaled = [&](std::int64_t columns) { return rows * (columns + ceil_div(columns, 128) * 4); };
    const Bytes came = scaled(m_.hidden), inner = bytes_of(rows * 2 * width, DType::bf16), narrow = scaled(width),
                out = bytes_of(rows * m_.hidden, DType::bf16);
    set(T::exchange_rows, std::max({came + inner, inner + narrow, narrow + out}));
  }

  std::int64_t top_k() const {
    std::int64_t out = 0;
    for (const ServerLayer& l : m_.kinds) out = std::max(out, l.experts_per_token);
    return out;
  }

  /// The last token of every request of a step, also in vLLM's profile run (vllm/v1/worker/gpu_model_runner.py
  /// _dummy_pooler_run_task, vllm/model_executor/layers/pooler.py ClassifierPooler, 0.12; sglang/srt/layers/pooler.py).
  void pooler() {
    const std::int64_t rows = std::min(sampler_rows(), p_.batched_tokens);
    tensor(T::sampled_hidden, rows, m_.hidden, m_.compute);
    if (m_.score != m_.compute) tensor(T::pooled, rows, m_.hidden, m_.score);
    tensor(T::scores, rows, m_.labels, m_.score);
  }

  /// One row per request of a step. vLLM's profile run takes max_running rows; generation as many as run at once.
  void sampler(bool fp32) {
    const std::int64_t rows = std::min(sampler_rows() * tokens_of_request(), p_.batched_tokens), V = m_.vocab;
    const std::int64_t padded = round_up(V, f_.vocab_padding);
    // a head that is divided over all ranks computes the logits of all groups (sglang/srt/layers/logits_processor.py, 0.5.10)
    const bool gathers = m_.engine == EngineKind::sglang && share_.data > 1 && !at_.head_by_attention;
    tensor(T::sampled_hidden, gathers ? rows * share_.data : rows, m_.hidden, m_.compute);
    tensor(T::logits, gathers ? rows * share_.data : rows, padded, m_.compute);
    if (!fp32) tensor(T::logits_fp32, rows, V, DType::fp32);
    tensor(T::probabilities, rows, V, DType::fp32);
    tensor(T::noise, rows, V, DType::fp32);
    if (at_.logprobs) tensor(T::log_probs, rows, V, DType::fp32);
    if (m_.engine == EngineKind::sglang) return;
    tensor(T::sampled_random, rows, m_.hidden, m_.compute);
    if (f_.sampler_sorts) {
      tensor(T::sorted, rows, V, DType::fp32);
      tensor(T::sorted_index, rows, V, DType::int64);
      tensor(T::sort_keys, rows, V, DType::fp32);
      set(T::sort_pairs, 2 * bytes_of(rows * V, DType::int64), {2, rows, V});
      tensor(T::cumulative, rows, 2 * V, DType::fp32);
    } else {
      const auto power = static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(std::min(f_.sms, rows))));
      if (rows >= 8) tensor(T::topk_buffer, std::min(power, f_.sms), V, DType::fp32);
    }
  }

  /// Log-probabilities of a prompt's tokens, of one request after the other: logits of the whole vocabulary in the model's
  /// format, and log_softmax in fp32, which casts bf16 first (vllm/v1/worker/gpu_model_runner.py _get_prompt_logprobs_dict,
  /// vllm/v1/sample/sampler.py compute_logprobs, 0.11 to 0.19; aten/src/ATen/native/SoftMax.cpp: of 16 bits fp16 alone is cast
  /// inside the kernel). Ranks gather their parts of the vocabulary first (model_executor/layers/logits_processor.py).
  void prompt_scores(std::int64_t rows) {
    const std::int64_t padded = round_up(m_.vocab, f_.vocab_padding);
    if (share_.tensor > 1) tensor(T::prompt_logits_parts, rows, padded, m_.compute);
    tensor(T::prompt_logits, rows, padded, m_.compute);
    if (m_.compute == DType::bf16) tensor(T::prompt_logits_fp32, rows, m_.vocab, DType::fp32);
    tensor(T::prompt_log_probs, rows, m_.vocab, DType::fp32);
  }

  /// SGLang's: of all requests of a pass at once, or in chunks of rows, whose logits are fp32 before any is picked
  /// (server_program: score_in_place).
  void scores_of_all(std::int64_t tokens) {
    const bool chunks = at_.score_chunk > 0 && at_.score_chunk < tokens && (share_.data == 1 || at_.head_by_attention);
    const std::int64_t rows = chunks ? at_.score_chunk : tokens, padded = round_up(m_.vocab, f_.vocab_padding);
    tensor(T::prompt_hidden, tokens, m_.hidden, m_.compute);
    if (share_.tensor > 1) {
      tensor(T::prompt_logits_own, rows, ceil_div(padded, share_.tensor), m_.compute);
      tensor(T::prompt_logits_parts, rows, padded, m_.compute);
    }
    tensor(T::prompt_logits, rows, padded, m_.compute);
    for (const T t : {T::prompt_logits_fp32, T::prompt_picked, T::prompt_log_probs}) tensor(t, rows, m_.vocab, DType::fp32);
    if (chunks)
      for (const T t : {T::prompt_logits_before, T::prompt_log_probs_before}) tensor(t, rows, m_.vocab, DType::fp32);
  }

  std::int64_t sampler_rows() const {
    if (m_.engine == EngineKind::vllm) return p_.max_running;
    // a teacher's requests end with their prompt: those of one pass, of which the first may be the rest of a longer one
    if (at_.scored > 0) return std::min(p_.max_running, p_.batched_tokens / at_.scored + 1);
    return at_.sequences > 0 ? at_.sequences : p_.max_running;
  }

  /// What the engine may give to the cache. Formulas: docs/engines/{vllm,sglang}.md, "Budget".
  void budget(const Stage& stage) {
    const Bytes free = f_.total - at_.occupied - p_[T::context] - p_[T::nccl];  // behind the communicators
    if (m_.engine == EngineKind::sglang) {
      p_.budget = static_cast<Bytes>(static_cast<double>(free) * p_.fraction);
      p_.kv_pool = p_.budget - p_.weights - (f_.drafts_before_pool ? p_[T::drafts] : 0);
      return;
    }
    PeakRecorder peak;
    const ServerSites sites = make_sites(peak, p_);
    server_program::profile(peak, p_, sites);
    p_.profile_peak = peak.span().peak;
    p_.budget = static_cast<Bytes>(std::ceil(static_cast<double>(f_.total) * p_.fraction));
    graphs(stage);
    p_.non_kv = p_.weights + p_.profile_peak + p_[T::growth];
    Bytes charged = p_.non_kv;
    Bytes free_at_check = free;
    switch (f_.budget) {
      case BudgetRule::everything_counts:
        charged += p_[T::context] + p_[T::nccl] + at_.occupied;
        free_at_check = f_.total;
        break;
      case BudgetRule::first_engine:
        charged += p_[T::nccl];
        free_at_check = f_.total;
        break;
      case BudgetRule::nccl_counts:
        charged += p_[T::nccl];
        free_at_check = free + p_[T::nccl];
        break;
      case BudgetRule::growth_and_graphs:
        if (!f_.second_runner) charged += p_[T::graphs];  // whose profile_cudagraph_memory says 0
        break;
      case BudgetRule::only_growth_counts:
      case BudgetRule::static_of_free:
        break;
    }
    p_.kv_pool = f_.fixed_cache > 0 ? f_.fixed_cache : p_.budget - charged;
    if (f_.fixed_cache == 0 && free_at_check < p_.budget) refuse(ServerRefusal::not_enough_free, p_.budget - free_at_check);
  }

  /// Of every stage the least count of pages or tokens is in force on all.
  void pool(const Stage& stage) {
    const bool vllm = m_.engine == EngineKind::vllm;
    const CacheAsk ask{pool_of_model(stage), p_.max_model_len,   p_.max_running, p_.batched_tokens,
                       m_.draft_tokens,      at_.decode_context, stated_slots(), slots_per_request(f_, at_, drafts())};
    const CachePool found = vllm ? vllm_pool(stage, f_, ask) : sglang_pool(stage, f_, ask);
    p_.kv_tokens = found.tokens;
    p_.kv_pages = found.pages;
    p_.page_tokens = found.page_tokens;
    p_.token_bytes = found.token;
    p_.request_bytes = found.request;
    p_.full_requests = found.full_requests;
    p_.state_slots = found.state_slots;
    table_entries_ = found.table_entries;
    set(T::kv_cache, found.kv, {found.pages, found.page_tokens, 0});
    set(T::state_cache, found.state, {found.state_slots, 0, 0});
    other_stages();
    if (p_.kv_pool <= 0 || p_.kv_tokens <= 0) refuse(ServerRefusal::no_cache, std::max<Bytes>(found.token, -p_.kv_pool));
    if (vllm) one_request(stage, ask);
  }

  /// Without the radix cache there are as many states as requests that may run, where their number is stated.
  std::int64_t stated_slots() const { return !at_.share_prompts && at_.max_running > 0 ? p_.max_running : 0; }

  /// The drafts' cache is a share of the pool: a token takes as many layers more (sglang/srt/model_executor/pool_configurator.py,
  /// 0.5.14).
  Bytes pool_of_model(const Stage& stage) const {
    if (!drafts() || !f_.drafts_before_pool || stage.layers == 0) return p_.kv_pool;
    std::int64_t more = 0;
    for (const ServerLayerRun& run : m_.drafts) more += run.count;
    const double all = static_cast<double>(stage.layers + more);
    return static_cast<Bytes>(static_cast<double>(p_.kv_pool) * static_cast<double>(stage.layers) / all);
  }

  /// vLLM compares one request of max_model_len with the pool, and says how long one could be.
  void one_request(const Stage& stage, const CacheAsk& ask) {
    const bool all = f_.request_rule == RequestRule::all_layers;
    const Stage model = all && at_.pipeline > 1 ? stage_of(m_, f_, share_, 1, 0) : stage;
    const auto needs = [&](std::int64_t tokens) {
      CacheAsk one = ask;
      one.max_model_len = tokens;
      return all ? request_of_all_layers(model, f_, one) : vllm_pool(stage, f_, one).request;
    };
    if (all) p_.request_bytes = needs(p_.max_model_len);
    if (p_.request_bytes <= p_.kv_pool) return;
    refuse(ServerRefusal::request_too_long, p_.request_bytes - p_.kv_pool);
    for (std::int64_t low = 1, high = p_.max_model_len; low <= high;) {
      const std::int64_t middle = low + (high - low) / 2;
      if (needs(middle) <= p_.kv_pool) {
        p_.longest = middle;
        low = middle + 1;
      } else {
        high = middle - 1;
      }
    }
  }

  void other_stages() {
    if (at_.pipeline == 1 || alone_) return;
    for (std::int64_t i = 0; i < at_.pipeline; ++i) {
      if (i == at_.stage) continue;
      ServerPoint other = at_;
      other.stage = i;
      ServerPlan there;
      Planner planner(m_, f_, other, there);
      planner.alone_ = true;
      planner.plan();
      if (there.kv_tokens >= p_.kv_tokens) continue;
      const double share = p_.kv_tokens > 0 ? static_cast<double>(there.kv_tokens) / static_cast<double>(p_.kv_tokens) : 0;
      set(T::kv_cache, static_cast<Bytes>(static_cast<double>(p_[T::kv_cache]) * share), {there.kv_pages, p_.page_tokens, 0});
      p_.kv_tokens = there.kv_tokens;
      p_.kv_pages = there.kv_pages;
      p_.full_requests = std::min(p_.full_requests, there.full_requests);
    }
  }

  void refuse(ServerRefusal why, Bytes missing) {
    if (p_.refusal != ServerRefusal::none) return;
    p_.refusal = why;
    p_.missing = missing;
  }

  /// Sizes that depend upon the pool.
  void derived(const Stage& stage) {
    if (m_.engine == EngineKind::vllm) {
      // tables of page numbers, one per request and group, and the inputs of one step (int64 ids and positions, int64 slots)
      const std::int64_t pages = table_entries_ > 0 ? table_entries_ : ceil_div(p_.max_model_len, p_.page_tokens);
      set(T::request_table, p_.max_running * pages * 4 + p_.batched_tokens * 24);
      // embedded inputs, whether they are used or not (vllm/v1/worker/gpu_model_runner.py GPUModelRunner.__init__, 0.11 to 0.23)
      if (f_.embeds_buffer)
        set(T::buffers, bytes_of(p_.batched_tokens * m_.hidden, m_.compute), {p_.batched_tokens, m_.hidden, 0});
      draft_buffers();
      return;
    }
    const std::int64_t by_tokens = static_cast<std::int64_t>(
        static_cast<double>(p_.kv_tokens) / static_cast<double>(std::max<std::int64_t>(1, p_.max_model_len)) * 512);
    const std::int64_t most = std::clamp<std::int64_t>(by_tokens, 2048, 4096);
    const bool stated = at_.max_running > 0 || drafts();
    p_.max_running = stated ? std::min(p_.max_running, most) : std::min(most, p_.kv_tokens / 2);
    if (const std::int64_t slots = slots_per_request(f_, at_, drafts());
        p_.state_slots > 0 && slots > 0)  // _resolve_max_num_reqs, 0.5.10
      p_.max_running = std::clamp<std::int64_t>(p_.state_slots / slots, 1, p_.max_running);
    tensor(T::request_table, p_.max_running, p_.max_model_len + 4 + (drafts() ? m_.draft_tokens : 0), DType::int32);
    set(T::attention_workspace, f_.attention_workspace);
    graphs(stage);
    set(T::exchange, at_.deepep_bytes);
    decoding_rows();
    if (stage.last && captures()) tensor(T::graph_logits, captured_requests(), m_.vocab, DType::fp32);
    draft_pool(stage);
    if (at_.flashinfer) flashinfer(stage);
    p_.non_kv = f_.total - at_.occupied - p_[T::context] - p_[T::nccl] - p_.kv_pool;
    p_.cache_released = f_.saver_covers_swa || !has_windows(stage);
    if (stage.last) clip_sampler();
  }

  /// What vLLM hands a draft of another checkpoint lies in buffers for a whole batch: the states, and since 0.10 their embeddings
  /// (vllm/v1/spec_decode/eagle.py hidden_states, inputs_embeds, 0.9.2 to 0.19).
  void draft_buffers() {
    if (m_.draft.hidden == 0) return;
    const Bytes each = bytes_of(p_.batched_tokens * m_.draft.hidden, m_.compute);
    set(T::buffers, p_[T::buffers] + each * (f_.embeds_buffer ? 2 : 1), {});
  }

  void clip_sampler() {
    if (at_.sequences > 0) return;
    m_.labels > 0 ? pooler() : sampler(m_.compute == DType::fp32);
  }

  static bool has_windows(const Stage& s) {
    for (int i = 0; i < s.bucket_count; ++i)
      if (s.buckets[static_cast<std::size_t>(i)].kind == CacheKind::sliding) return true;
    return false;
  }

  /// SGLang captures decoding alone (sglang/srt/model_executor/model_runner.py init_device_graphs: is_generation, 0.5.6).
  bool captures() const { return !at_.eager && (m_.engine == EngineKind::vllm || m_.labels == 0); }
  void graphs(const Stage& s) {
    if (!captures()) return;
    if (m_.engine == EngineKind::vllm) {
      set(T::graphs, captured_graphs(m_, f_, s, {at_.tensor, p_.max_running, p_.batched_tokens}));
      return;
    }
    set(T::graphs, f_.graph_base + f_.graph_layer * s.layers + f_.graph_hidden * m_.hidden + (m_.moe ? f_.graph_moe : 0));
  }

  const ServerModel& m_;
  const ServerFacts& f_;
  const ServerPoint& at_;
  ServerPlan& p_;
  RankShare share_;
  Stage drafts_;
  Bytes draft_token_ = 0;           ///< of the drafts' cache
  std::int64_t table_entries_ = 0;  ///< page numbers of one request, where its groups have pages of their own
  bool alone_ = false;
};

}  // namespace

std::int64_t slots_per_request(const ServerFacts& f, const ServerPoint& at, bool drafts) {
  if (f.slots_per_request == 0 || !at.share_prompts) return std::min<std::int64_t>(1, f.slots_per_request);
  const bool buffers = at.state_buffers || (drafts && f.drafts_buffer_states);
  return f.slots_per_request + (!buffers ? 0 : drafts ? f.buffers_beside_drafts : f.buffers_per_request);
}

ServerPoint point_of(const Server& s) {
  ServerPoint out;
  out.tensor = s.layout.tensor;
  out.pipeline = s.layout.pipeline;
  out.expert = s.layout.expert;
  out.attention_data = s.attention_data;
  out.draft_steps = s.draft_steps;
  out.draft_branches = s.draft_branches;
  out.flashinfer = s.flashinfer;
  out.share_prompts = s.share_prompts;
  out.state_buffers = s.state_buffers;
  out.whole_dense = s.whole_dense;
  out.head_by_attention = s.head_by_attention;
  out.deepep = s.exchange != ExpertExchange::collectives;
  out.deepep_decodes = out.deepep && s.exchange != ExpertExchange::deepep_normal;
  out.decode_context = s.decode_context;
  out.fraction = s.memory_fraction;
  out.max_running = s.max_running;
  out.max_model_len = s.max_model_len;
  out.batched_tokens = s.batched_tokens;
  out.eager = s.eager;
  out.score_chunk = s.score_chunk;
  out.sleep_level = s.sleep_level;
  return out;
}

ServerPlan plan(const ServerModel& model, const ServerFacts& facts, const ServerPoint& point) {
  ServerPlan out;
  Planner(model, facts, point, out).plan();
  return out;
}

}  // namespace oomplan
