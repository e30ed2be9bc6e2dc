// Settings of servers.
#include <algorithm>

#include "job/knob_table.hpp"
#include "job/stored_weights.hpp"

namespace oomplan {
namespace {

using namespace knob;

std::string get_weights(const Job&, const Role* r) {
  return serves_as_stored(*r) && r->server.weights == DType::bf16 ? "auto" : std::string(name(r->server.weights));
}
Refusal set_weights(const Knob& k, Job& job, Role* r, std::string_view text) {
  if (text == "auto") {
    r->server.as_stored = true;
    r->server.weights = DType::bf16;
    return {};
  }
  const Refusal result = knob::choice<&Server::weights>().set(k, job, r, text);
  if (!result.refused() && serves_as_stored(*r)) r->server.as_stored = false;
  return result;
}

std::string get_kv(const Job&, const Role* r) { return r->server.kv ? std::string(name(*r->server.kv)) : "auto"; }
Refusal set_kv(const Knob& k, Job&, Role* r, std::string_view text) {
  if (text == "auto") {
    r->server.kv.reset();
    return {};
  }
  const auto value = parse<DType>(text);
  if (!value || std::find(k.choices.begin(), k.choices.end(), text) == k.choices.end()) return refuse_choice(k, text);
  r->server.kv = value;
  return {};
}

std::string get_cpu_offload(const Job&, const Role* r) {
  return r->server.offloaded_weights == 0 ? "none" : exact_bytes_text(r->server.offloaded_weights);
}

std::string get_draft_model(const Job&, const Role* r) { return r->server.draft_model.empty() ? "none" : r->server.draft_model; }
Refusal set_draft_model(const Knob&, Job&, Role* r, std::string_view text) {
  constexpr std::size_t kLongest = 4096;
  if (text.empty() || text.size() > kLongest) return {"a model's name, hub id, directory or config.json, or none", {}, {}};
  const std::string name(text == "none" ? std::string_view() : text);
  if (r->server.draft_model != name) r->server.draft = {};
  r->server.draft_model = name;
  return {};
}

/// Those that a server can have room beside.
std::vector<std::string> slot_targets() {
  return {"all-linear", "q_proj",    "k_proj",       "v_proj",   "o_proj",       "gate_proj",
          "up_proj",    "down_proj", "in_proj_qkvz", "out_proj", "embed_tokens", "lm_head"};
}

}  // namespace

std::vector<Knob> server_rows() {
  using enum KnobType;
  using enum Effect;
  const auto of = KnobOf::serves;
  const auto fraction = [&](std::string_view key, EngineKind engine, std::string_view help) {
    return only_for(zero_is(between(saves(row(key, of, number, number_or_auto<&Server::memory_fraction>(), speed, help),
                                          "leaves more to others on the GPU; a smaller KV cache, so fewer requests at once"),
                                    0.01, 0.99),
                            "auto"),
                    engine);
  };
  return {
      fraction("mem_fraction_static", EngineKind::sglang, "share of the memory free at the start for weights and KV cache"),
      fraction("gpu_memory_utilization", EngineKind::vllm, "share of the whole GPU that the engine may use"),
      zero_is(within(row("concurrency", of, count, count_or_auto<&Server::concurrency>(), speed,
                         "requests in flight that the job asks of all replicas together; auto: unstated"),
                     kRequestLimit, "requests"),
              "auto"),
      saves(zero_is(within(row("max_running_requests", of, count, count_or_auto<&Server::max_running>(), speed,
                               "most requests in one batch of a replica: max_running_requests, max_num_seqs"),
                           kRequestLimit, "requests"),
                    "auto"),
            "smaller batches: fewer and smaller CUDA graphs, less state"),
      zero_is(within(row("max_model_len", of, count, count_or_auto<&Server::max_model_len>(), semantics,
                         "longest request: context_length, max_model_len; auto: the model's"),
                     kTokenLimit, "tokens"),
              "auto"),
      saves(zero_is(within(row("batched_tokens", of, count, count_or_auto<&Server::batched_tokens>(), speed,
                               "most tokens of one forward pass: chunked_prefill_size, max_num_batched_tokens"),
                           kTokenLimit, "tokens"),
                    "auto"),
            "smaller prefill chunks: fewer activations; a longer prefill"),
      one_of(row("weights", of, choice, {get_weights, set_weights}, numerics,
                 "format of the weights; auto: as the checkpoint stores them (quantization_config), else its 16 bits"),
             {"auto", "bf16", "fp16", "fp32", "fp8", "bfloat16", "float16", "float32"}),
      one_of(row("online_quantization", of, choice, knob::choice<&Server::online>(), numerics,
                 "what the engine makes of a checkpoint in 16 bits while it loads it: quantization; fp8 itself is weights: fp8"),
             {"none", "fp8_per_block", "fp8_per_channel", "mxfp8", "experts_int8", "bitsandbytes"}),
      one_of(saves(row("kv", of, choice, {get_kv, set_kv}, numerics,
                       "format of the KV cache; auto: the model's own, or what the checkpoint asks for where the engine does so"),
                   "half the bytes per token of the KV cache; attention reads rounded keys and values"),
             {"auto", "bf16", "fp16", "fp32", "fp8", "nvfp4", "mxfp4", "bfloat16", "float16", "float32"}),
      only_for(row("text_only", of, flag, knob::flag<&Server::text_only>(), semantics,
                   "images are never asked for, so that a model's vision tower is not loaded, nor one of sound: "
                   "language_model_only, limit_mm_per_prompt of zero"),
               EngineKind::vllm),
      only_for(
          row("no_images", of, flag, knob::flag<&Server::no_images>(), semantics,
              "of a model that hears too, the vision tower alone is not loaded: limit_mm_per_prompt of zero images and videos"),
          EngineKind::vllm),
      only_for(row("no_sound", of, flag, knob::flag<&Server::no_sound>(), semantics,
                   "the tower of sound alone is not loaded: limit_mm_per_prompt of zero audio"),
               EngineKind::vllm),
      only_for(row("whole_tower", of, flag, knob::flag<&Server::whole_tower>(), speed,
                   "ranks share images out, so that each has the vision tower whole: mm_enable_dp_encoder"),
               EngineKind::sglang),
      row("kv_token_scales", of, flag, knob::flag<&Server::kv_token_scales>(), numerics,
          "an fp32 scale of the cache for every token and head: kv_cache_dtype fp8_per_token_head"),
      only_for(zero_is(between(row("swa_full_tokens_ratio", of, number, number_or_auto<&Server::swa_ratio>(), speed,
                                   "tokens of the sliding-window pool for one of the full-attention pool"),
                               0.001, 1),
                       "auto"),
               EngineKind::sglang),
      only_for(zero_is(between(row("mamba_full_memory_ratio", of, number, number_or_auto<&Server::state_ratio>(), speed,
                                   "memory of the recurrent states for that of the KV cache"),
                               0.001, 100),
                       "auto"),
               EngineKind::sglang),
      only_for(row("flashinfer_attention", of, flag, knob::flag<&Server::flashinfer>(), speed,
                   "SGLang's attention_backend is flashinfer, also on a GPU where its default is another"),
               EngineKind::sglang),
      only_for(row("first_engine", of, flag, knob::flag<&Server::first_engine>(), semantics,
                   "vLLM's V0 where a release has both engines (0.8 to 0.10.1): VLLM_USE_V1=0, or an attention backend that V1 "
                   "lacks"),
               EngineKind::vllm),
      only_for(within(row("score_chunk", of, count, knob::count<&Server::score_chunk>(), speed,
                          "of a teacher: rows whose log-probs are computed at once, SGLANG_LOGITS_PROCESSER_CHUNK_SIZE where "
                          "SGLANG_ENABLE_LOGITS_PROCESSER_CHUNK is set; 0 is all of a pass"),
                      {0, kTokenLimit.most}, "rows"),
               EngineKind::sglang),
      row("pooling", KnobOf::rewards, flag, knob::flag<&Server::pooling>(), semantics,
          "a number for every request in place of tokens, as a discriminative reward model gives it: vLLM's runner pooling, "
          "SGLang's is_embedding"),
      row("uniform_windows", of, flag, knob::flag<&Server::uniform_windows>(), speed,
          "sliding-window layers keep all tokens: disable_hybrid_kv_cache_manager, disable_hybrid_swa_memory"),
      only_for(zero_is(within(row("max_total_tokens", of, count, count_or_auto<&Server::total_tokens>(), speed,
                                  "most tokens that the cache of a replica holds: max_total_tokens; auto: as many as fit"),
                              kTokenLimit, "tokens"),
                       "auto"),
               EngineKind::sglang),
      only_for(zero_is(within(row("kv_cache_memory", of, KnobType::bytes, bytes_or_auto<&Server::kv_cache_bytes>(), speed,
                                  "the KV cache, whatever gpu_memory_utilization says: kv_cache_memory_bytes"),
                              kMemoryLimit, "bytes"),
                       "auto"),
               EngineKind::vllm),
      zero_is(within(row("page_tokens", of, count, count_or_auto<&Server::page_tokens>(), speed,
                         "tokens of one page of the KV cache: block_size, page_size"),
                     {1, pow2(20)}, "tokens"),
              "auto"),
      saves(zero_is(within(row("graph_batch", of, count, count_or_auto<&Server::graph_batch>(), speed,
                               "largest batch that CUDA graphs are captured for: cuda_graph_max_bs, max_cudagraph_capture_size"),
                           kRequestLimit, "requests"),
                    "auto"),
            "fewer and smaller CUDA graphs; larger batches run without one"),
      zero_is(within(row("draft_tokens", of, count, {none_or<&Server::draft_tokens>, knob::count<&Server::draft_tokens>().set},
                         semantics,
                         "tokens that the model's own MTP blocks, or draft_model, guess ahead: num_speculative_tokens; SGLang: "
                         "speculative_num_draft_tokens, which are verified together"),
                     {1, 64}, "tokens"),
              "none"),
      row("draft_model", of, text, {get_draft_model, set_draft_model}, semantics,
          "a head of another checkpoint that guesses ahead, a name, folder or config.json as for model; none: the model's own "
          "MTP "
          "blocks: speculative_config's model, speculative_draft_model_path"),
      one_of(row("draft_method", of, choice, knob::choice<&Server::draft_method>(), semantics,
                 "what guesses ahead; auto: as the draft's config.json says, mtp without a draft_model"),
             {"auto", "mtp", "eagle", "eagle3"}),
      only_for(zero_is(within(row("draft_steps", of, count, count_or_auto<&Server::draft_steps>(), semantics,
                                  "steps of the drafts for them: speculative_num_steps"),
                              {1, 64}, "steps"),
                       "auto"),
               EngineKind::sglang),
      only_for(zero_is(within(row("draft_branches", of, count, count_or_auto<&Server::draft_branches>(), semantics,
                                  "tokens that every step keeps: speculative_eagle_topk"),
                              {1, 64}, "tokens"),
                       "auto"),
               EngineKind::sglang),
      saves(zero_is(
                within(row("cpu_offload", of, KnobType::bytes, {get_cpu_offload, bytes_or_auto<&Server::offloaded_weights>().set},
                           speed, "weights of the layers that every GPU leaves in host memory: cpu_offload_gb"),
                       kMemoryLimit, "bytes"),
                "none"),
            "weights of the first layers stay in host memory and are read through the bus"),
      only_for(within(row("decode_context", of, count, knob::count<&Server::decode_context>(), speed,
                          "ranks of a tensor-parallel group that share the tokens of the KV cache: decode_context_parallel_size"),
                      {1, 1024}),
               EngineKind::vllm),
      within(row("attention_data", of, count, knob::count<&Server::attention_data>(), speed,
                 "groups of one server's GPUs that attend to requests of their own and share the experts: vLLM "
                 "data_parallel_size, of which d is a multiple; SGLang dp_size with enable_dp_attention, which divides t"),
             {1, 4096}),
      only_for(zero_is(within(row("redundant_experts", of, count,
                                  {none_or<&Server::redundant_experts>, knob::count<&Server::redundant_experts>().set}, speed,
                                  "copies of experts, of all ranks together: ep_num_redundant_experts"),
                              {1, pow2(12)}),
                       "none"),
               EngineKind::sglang),
      only_for(row("whole_dense", of, flag, knob::flag<&Server::whole_dense>(), speed,
                   "every rank has the dense blocks of a model with experts whole: moe_dense_tp_size=1"),
               EngineKind::sglang),
      only_for(row("head_by_attention", of, flag, knob::flag<&Server::head_by_attention>(), speed,
                   "the head is divided over a group of data-parallel attention alone: enable_dp_lm_head"),
               EngineKind::sglang),
      only_for(one_of(row("exchange", of, choice, knob::choice<&Server::exchange>(), speed,
                          "how tokens reach their experts: by collectives, or by DeepEP with its kernels for prefill and "
                          "decoding (moe_a2a_backend, deepep_mode)"),
                      {"collectives", "deepep", "deepep_normal", "deepep_low_latency"}),
               EngineKind::sglang),
      row("expandable_segments", of, flag, knob::flag<&Server::expandable_segments>(), free,
          "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True for the engine's processes"),
      row("share_prompts", of, flag, knob::flag<&Server::share_prompts>(), speed,
          "responses to one prompt hold its pages once: enable_prefix_caching, false with disable_radix_cache"),
      only_for(row("state_buffers", of, flag, knob::flag<&Server::state_buffers>(), speed,
                   "a request has recurrent states to write to, beside the radix cache: mamba_scheduler_strategy=extra_buffer"),
               EngineKind::sglang),
      saves(row("enforce_eager", of, flag, knob::flag<&Server::eager>(), speed, "no CUDA graphs"),
            "no CUDA graphs and no memory for them; slower decoding"),
      saves(within(row("sleep", of, count, knob::count<&Server::sleep_level>(), speed,
                       "what is given back between phases on shared GPUs: 0 nothing, 1 KV cache, weights go to the host, 2 both "
                       "are dropped"),
                   {0, 2}),
            "gives the memory of the server back while others run; waking up takes time"),
      zero_is(
          within(row("lora.slots", of, count, {none_or<&AdapterSlots::slots>, knob::count<&AdapterSlots::slots>().set}, semantics,
                     "LoRA adapters that one batch can use: max_loras_per_batch, max_loras; none: the server takes none"),
                 {1, pow2(10)}),
          "none"),
      zero_is(within(row("lora.rank", of, count, {none_or<&AdapterSlots::rank>, knob::count<&AdapterSlots::rank>().set},
                         semantics, "largest rank that a slot has room for: max_lora_rank"),
                     kAdapterRankLimit),
              "none"),
      one_of(row("lora.targets", of, items, slot_targets_access(), semantics,
                 "SGLang: modules that have slots; vLLM makes them beside every linear layer"),
             slot_targets()),
  };
}

}  // namespace oomplan
