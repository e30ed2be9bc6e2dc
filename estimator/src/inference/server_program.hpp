// The memory program of a server: which storages appear and go, in order. Included by server.hpp.
//
// Sources: vllm/v1/worker/gpu_model_runner.py (profile_run, _dummy_sampler_run), vllm/v1/sample/sampler.py,
// vllm/v1/sample/ops/topk_topp_{sampler,triton}.py, 0.19; sglang/srt/layers/{sampler,logits_processor}.py,
// sglang/srt/model_executor/model_runner.py, 0.5.10. PyTorch's segmented sort: aten/src/ATen/native/cuda/Sort.cpp.
#pragma once
#include "inference/server.hpp"

namespace oomplan {
namespace server_program {

template <class R>
struct Hand {
  R& r;
  const ServerSites& sites;
  void alloc(ServerTensor t) {
    const SiteRef& s = sites[static_cast<std::size_t>(t)];
    if (s.bytes > 0) r.alloc(s);
  }
  void free(ServerTensor t) {
    const SiteRef& s = sites[static_cast<std::size_t>(t)];
    if (s.bytes > 0) r.free(s);
  }
};

inline constexpr ServerTensor kWeights[] = {ServerTensor::embedding,     ServerTensor::mixers,  ServerTensor::absorbed,
                                            ServerTensor::feed_forwards, ServerTensor::experts, ServerTensor::norms,
                                            ServerTensor::head,          ServerTensor::tower,   ServerTensor::rope};
inline constexpr ServerTensor kCache[] = {ServerTensor::kv_cache, ServerTensor::state_cache};
/// SGLang's second worker has weights and a cache in the same regions of the memory saver as the first
/// (sglang/srt/model_executor/model_runner.py load_model, mem_cache/memory_pool.py MHATokenToKVPool, 0.5.6 to 0.5.12).
inline constexpr ServerTensor kDraftWeights = ServerTensor::drafts, kDraftCache = ServerTensor::draft_cache;
/// SGLang makes it in the cache's region, too (ReqToTokenPool, mem_cache/memory_pool.py, 0.5.5 to 0.5.12).
inline bool table_sleeps(const ServerPlan& p) { return p.engine == EngineKind::sglang; }

/// One forward pass over `batched_tokens` tokens. The widest layer stands for all: no layer leaves anything behind but its
/// output, which replaces the input, and what a draft reads of it. `hidden` and `draft_states` stay.
template <class R>
void forward(Hand<R> h, const ServerPlan& p) {
  using T = ServerTensor;
  const bool workspace_per_call = p.engine == EngineKind::sglang;  // vLLM keeps one
  h.alloc(T::hidden);
  h.alloc(T::draft_states);
  h.alloc(T::residual);
  h.alloc(T::context_projected);
  h.alloc(T::attention_output);
  h.alloc(T::index_scores);
  h.free(T::index_scores);
  h.free(T::context_projected);
  h.alloc(T::projected);
  h.alloc(T::gate_up);
  h.alloc(T::unpacked);
  h.alloc(T::unpacked_product);
  h.free(T::unpacked_product);
  h.free(T::unpacked);
  h.alloc(T::activation);
  h.free(T::gate_up);
  h.alloc(T::layer_output);
  h.free(T::activation);
  if (p[T::gathered] > 0) {  // the attention output is gone when the groups' tokens meet
    h.free(T::projected);
    h.free(T::attention_output);
    h.alloc(T::gathered);
  }
  if (workspace_per_call) {
    h.alloc(T::forward_workspace13);
    h.alloc(T::forward_workspace2);
    h.free(T::forward_workspace2);
    h.free(T::forward_workspace13);
  }
  if (p[T::gathered] > 0) {
    h.free(T::gathered);
  } else {
    h.free(T::projected);
    h.free(T::attention_output);
  }
  h.free(T::layer_output);
  h.free(T::residual);
}

/// From the hidden state of every request's last token to its score.
template <class R>
void pool(Hand<R> h) {
  using T = ServerTensor;
  h.alloc(T::sampled_hidden);
  h.alloc(T::pooled);
  h.alloc(T::scores);
  h.free(T::scores);
  h.free(T::pooled);
  h.free(T::sampled_hidden);
}

/// From the hidden states of the sampled positions to a token each; vLLM.
template <class R>
void sample_vllm(Hand<R> h, const ServerPlan& p, bool dummy) {
  using T = ServerTensor;
  if (p[T::scores] > 0) return pool(h);
  h.alloc(T::sampled_hidden);
  if (dummy) h.alloc(T::sampled_random);
  h.alloc(T::logits);
  if (!dummy) h.alloc(T::log_probs);
  h.alloc(T::logits_fp32);
  if (p.sampler_sorts) {
    h.alloc(T::sorted);
    h.alloc(T::sorted_index);
    h.alloc(T::sort_keys);
    h.alloc(T::sort_pairs);
    h.free(T::sort_pairs);
    h.free(T::sort_keys);
    h.alloc(T::cumulative);
    h.free(T::cumulative);
    h.free(T::sorted_index);
    h.free(T::sorted);
  } else if (dummy) {
    h.alloc(T::topk_buffer);  // cached for good
  }
  h.alloc(T::probabilities);
  h.alloc(T::noise);
  h.free(T::noise);
  h.free(T::probabilities);
  h.free(T::logits_fp32);
  if (!dummy) h.free(T::log_probs);
  h.free(T::logits);
  if (dummy) h.free(T::sampled_random);
  h.free(T::sampled_hidden);
}

/// The same in SGLang: probabilities replace the logits in place, behind a temporary of the same size.
template <class R>
void sample_sglang(Hand<R> h, const ServerPlan& p) {
  using T = ServerTensor;
  if (p[T::scores] > 0) return pool(h);
  h.alloc(T::sampled_hidden);
  h.alloc(T::logits);
  h.alloc(T::logits_fp32);
  h.free(T::logits);
  h.alloc(T::probabilities);
  h.free(T::probabilities);
  h.alloc(T::noise);
  h.free(T::noise);
  h.alloc(T::log_probs);
  h.free(T::log_probs);
  h.free(T::logits_fp32);
  h.free(T::sampled_hidden);
}

/// vLLM's profile run: one forward pass over dummy tokens, then the sampler on one row per request.
template <class R>
void profile(R& r, const ServerPlan& p, const ServerSites& sites) {
  using T = ServerTensor;
  Hand<R> h{r, sites};
  h.alloc(T::blas);
  h.alloc(T::image_pixels);
  h.alloc(T::image_outputs);
  h.alloc(T::forward_workspace13);
  h.alloc(T::forward_workspace2);
  h.alloc(T::intermediate);
  forward(h, p);
  h.free(T::draft_states);
  sample_vllm(h, p, true);
  h.free(T::hidden);
  h.free(T::image_outputs);
  h.free(T::image_pixels);
}

template <class R>
void load(Hand<R> h, const ServerPlan& p) {
  h.alloc(ServerTensor::context);
  h.alloc(ServerTensor::nccl);
  h.alloc(ServerTensor::buffers);
  for (const ServerTensor t : kWeights) h.alloc(t);
  if (p.engine == EngineKind::vllm) {
    h.alloc(ServerTensor::draft_loaded);
    h.free(ServerTensor::draft_loaded);
  }
  h.alloc(ServerTensor::adapters);
  h.alloc(ServerTensor::host_offloaded);
  h.r.trim();
}

template <class R>
void start(R& r, const ServerPlan& p, const ServerSites& sites) {
  using T = ServerTensor;
  Hand<R> h{r, sites};
  h.alloc(T::growth);
  if (p.engine == EngineKind::vllm) {
    profile(r, p, sites);
    r.trim();
  }
  for (const ServerTensor t : kCache) h.alloc(t);
  h.alloc(T::request_table);
  h.alloc(T::drafts);
  if (p.engine == EngineKind::sglang && p[T::draft_loaded] > 0) {
    h.alloc(T::draft_loaded);
    h.free(T::draft_loaded);
    r.trim();  // set_embed empties the cache
  }
  h.alloc(T::draft_cache);
  h.alloc(T::draft_tables);
  h.alloc(T::attention_workspace);
  if (p.engine == EngineKind::sglang) {
    h.alloc(T::blas);
    h.alloc(T::graph_logits);
  }
  h.alloc(T::exchange);  // made by the first pass that needs it
  h.alloc(T::exchange_rows);
  h.alloc(T::graphs);
  h.alloc(T::late_growth);
  if (p.engine == EngineKind::vllm) {  // the sampler is warmed up once more, outside of the budget
    h.alloc(T::hidden);
    sample_vllm(h, p, false);
    h.free(T::hidden);
  }
}

/// vLLM, behind the sampler, whose logits are still held: the log-probabilities of a prompt.
template <class R>
void score_prompt(Hand<R> h) {
  using T = ServerTensor;
  h.alloc(T::logits);
  h.alloc(T::prompt_logits_parts);
  h.alloc(T::prompt_logits);
  h.free(T::prompt_logits_parts);
  h.alloc(T::prompt_logits_fp32);
  h.alloc(T::prompt_log_probs);
  h.free(T::prompt_logits_fp32);
  h.free(T::prompt_log_probs);
  h.free(T::prompt_logits);
  h.free(T::logits);
}

/// SGLang, in place of the logits of the last tokens: those of all tokens of the pass, cast to fp32 before the rows are picked.
/// In chunks the logits and log-probabilities of one are there until the next has its own (sglang/srt/layers/logits_processor.py
/// forward, process_input_logprobs and process_input_logprobs_by_chunk, 0.5.9 and 0.5.15; all_gather in
/// sglang/srt/distributed/parallel_state.py).
template <class R>
void score_in_place(Hand<R> h, const ServerPlan& p) {
  using T = ServerTensor;
  const bool chunks = p[T::prompt_logits_before] > 0;
  h.alloc(T::prompt_hidden);
  h.alloc(T::prompt_logits_before);
  h.alloc(T::prompt_log_probs_before);
  h.alloc(T::prompt_logits_own);
  h.alloc(T::prompt_logits_parts);
  h.alloc(T::prompt_logits);
  h.free(T::prompt_logits_parts);
  h.free(T::prompt_logits_own);
  h.alloc(T::prompt_logits_fp32);
  h.free(T::prompt_logits);
  h.free(T::prompt_logits_before);
  h.alloc(T::prompt_picked);
  h.free(T::prompt_log_probs_before);
  if (!chunks) h.free(T::prompt_logits_fp32);
  h.alloc(T::prompt_log_probs);
  h.free(T::prompt_picked);
  h.free(T::prompt_log_probs);
  if (chunks) h.free(T::prompt_logits_fp32);
  h.free(T::prompt_hidden);
}

template <class R>
void generate(R& r, const ServerPlan& p, const ServerSites& sites) {
  Hand<R> h{r, sites};
  if (p[ServerTensor::step_activations] > 0) {  // the prompts in flight do not fill a batch
    h.alloc(ServerTensor::step_activations);
    h.free(ServerTensor::step_activations);
  } else {
    forward(h, p);
    if (p.engine == EngineKind::sglang && p[ServerTensor::prompt_log_probs] > 0) score_in_place(h, p);
    // vLLM joins them behind the sampler, SGLang in front of it (vllm/v1/worker/gpu_model_runner.py propose_draft_token_ids,
    // 0.19; sglang/srt/layers/logits_processor.py, 0.5.10): either way the same are held throughout
    h.alloc(ServerTensor::draft_inputs);
    h.free(ServerTensor::draft_states);
    h.free(ServerTensor::hidden);
  }
  if (p.engine == EngineKind::vllm) {
    sample_vllm(h, p, false);
    if (p[ServerTensor::prompt_log_probs] > 0) score_prompt(h);
  } else {
    sample_sglang(h, p);
  }
  if (p[ServerTensor::step_activations] == 0) h.free(ServerTensor::draft_inputs);
}

/// vLLM makes the slots while it loads the weights, in the same pool (vllm/v1/worker/gpu_model_runner.py load_model, 0.14);
/// SGLang outside of the memory saver's regions (sglang/srt/model_executor/model_runner.py init_lora_manager, 0.5.9).
inline bool adapters_sleep(const ServerPlan& p) { return p.engine == EngineKind::vllm; }

/// Cache contents are lost. Weights move to pinned host memory at level 1 (SGLang: with a host backup), else they are lost too.
template <class R>
void sleep(Hand<R> h, const ServerPlan& p) {
  if (p.sleep_level <= 0) return;
  if (p.cache_released) {
    for (const ServerTensor t : kCache) h.free(t);
    h.free(kDraftCache);
  }
  if (table_sleeps(p)) h.free(ServerTensor::request_table);
  if (p.sleep_level == 1) h.alloc(ServerTensor::host_weights);
  for (const ServerTensor t : kWeights) h.free(t);
  h.free(kDraftWeights);
  if (adapters_sleep(p)) h.free(ServerTensor::adapters);
  h.r.trim();
}

template <class R>
void wake_weights(Hand<R> h, const ServerPlan& p) {
  if (p.sleep_level <= 0) return;
  for (const ServerTensor t : kWeights) h.alloc(t);
  h.alloc(kDraftWeights);
  if (adapters_sleep(p)) h.alloc(ServerTensor::adapters);
  if (p.sleep_level == 1) h.free(ServerTensor::host_weights);
}

template <class R>
void wake_cache(Hand<R> h, const ServerPlan& p) {
  if (p.sleep_level <= 0) return;
  if (table_sleeps(p)) h.alloc(ServerTensor::request_table);
  if (!p.cache_released) return;
  for (const ServerTensor t : kCache) h.alloc(t);
  h.alloc(kDraftCache);
}

}  // namespace server_program

template <class R>
void record(R& r, const ServerPlan& p, const ServerSites& sites, ServerPhase phase) {
  server_program::Hand<R> h{r, sites};
  switch (phase) {
    case ServerPhase::load:
      server_program::load(h, p);
      return;
    case ServerPhase::start:
      server_program::start(r, p, sites);
      return;
    case ServerPhase::generate:
      server_program::generate(r, p, sites);
      return;
    case ServerPhase::sleep:
      server_program::sleep(h, p);
      return;
    case ServerPhase::wake_weights:
      server_program::wake_weights(h, p);
      return;
    case ServerPhase::wake_cache:
      server_program::wake_cache(h, p);
      return;
  }
}

}  // namespace oomplan
