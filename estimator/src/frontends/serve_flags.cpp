#include "frontends/serve_flags.hpp"

#include <array>

namespace oomplan {
namespace {

using M = FlagMeans;

constexpr FlagRow kVllm[] = {
    {"model", M::model, ""},
    {"tensor-parallel-size|tp", M::tensor, "layout"},
    {"pipeline-parallel-size|pp", M::pipeline, "layout"},
    {"data-parallel-size|dp", M::data, "layout"},
    {"enable-expert-parallel|ep", M::all_experts, "layout"},
    {"gpu-memory-utilization", M::text, "gpu_memory_utilization"},
    {"max-model-len", M::tokens, "max_model_len"},
    {"max-num-seqs", M::tokens, "max_running_requests"},
    {"max-num-batched-tokens", M::tokens, "batched_tokens"},
    {"kv-cache-dtype", M::kv_dtype, "kv"},
    {"dtype", M::dtype, "weights"},
    {"quantization|q", M::quantization, "weights"},
    {"enforce-eager", M::on, "enforce_eager"},
    {"block-size", M::tokens, "page_tokens"},
    {"kv-cache-memory-bytes|kv-cache-memory", M::bytes, "kv_cache_memory"},
    {"disable-hybrid-kv-cache-manager", M::on, "uniform_windows"},
    {"max-cudagraph-capture-size", M::tokens, "graph_batch"},
    {"speculative-config", M::speculative, "draft_tokens"},
    {"enable-sleep-mode", M::sleeps, "sleep"},
    {"enable-lora", M::lora, "lora.slots"},
    {"max-loras", M::tokens, "lora.slots"},
    {"max-lora-rank", M::tokens, "lora.rank"},
    {"cpu-offload-gb", M::none, "weights in host memory"},
    {"num-gpu-blocks-override", M::none, "a stated number of pages"},
    {"decode-context-parallel-size|dcp", M::one, "decode context parallelism"},
    {"prefill-context-parallel-size|pcp", M::one, "prefill context parallelism"},
    {"hf-overrides", M::none, "another config.json"},
    {"fully-sharded-loras", M::never, "adapters split over all ranks"},
    {"host", M::ignored, ""},
    {"port", M::ignored, ""},
    {"api-key", M::ignored, ""},
    {"served-model-name", M::ignored, ""},
    {"download-dir", M::ignored, ""},
    {"chat-template", M::ignored, ""},
    {"tool-call-parser", M::ignored, ""},
    {"reasoning-parser", M::ignored, ""},
    {"tokenizer", M::ignored, ""},
    {"tokenizer-mode", M::ignored, ""},
    {"revision", M::ignored, ""},
    {"load-format", M::ignored, ""},
    {"seed", M::ignored, ""},
    {"swap-space", M::ignored, ""},
    {"distributed-executor-backend", M::ignored, ""},
    {"uvicorn-log-level", M::ignored, ""},
    {"generation-config", M::ignored, ""},
    {"nnodes", M::ignored, ""},
    {"node-rank", M::ignored, ""},
    {"master-addr", M::ignored, ""},
    {"limit-mm-per-prompt", M::ignored, ""},
    {"trust-remote-code", M::ignored_switch, ""},
    {"enable-auto-tool-choice", M::ignored_switch, ""},
    {"enable-prefix-caching", M::ignored_switch, ""},
    {"no-enable-prefix-caching", M::ignored_switch, ""},
    {"enable-chunked-prefill", M::ignored_switch, ""},
    {"async-scheduling", M::ignored_switch, ""},
    {"disable-custom-all-reduce", M::ignored_switch, ""},
    {"disable-log-requests", M::ignored_switch, ""},
    {"disable-log-stats", M::ignored_switch, ""},
};

constexpr FlagRow kSglang[] = {
    {"model-path|model", M::model, ""},
    {"tp-size|tp|tensor-parallel-size", M::tensor, "layout"},
    {"pp-size|pp|pipeline-parallel-size", M::pipeline, "layout"},
    {"dp-size|dp|data-parallel-size", M::data, "layout"},
    {"ep-size|ep|expert-parallel-size", M::expert, "layout"},
    {"mem-fraction-static", M::text, "mem_fraction_static"},
    {"context-length", M::tokens, "max_model_len"},
    {"max-running-requests", M::tokens, "max_running_requests"},
    {"chunked-prefill-size", M::tokens, "batched_tokens"},
    {"kv-cache-dtype", M::kv_dtype, "kv"},
    {"dtype", M::dtype, "weights"},
    {"quantization", M::quantization, "weights"},
    {"disable-cuda-graph", M::on, "enforce_eager"},
    {"cuda-graph-max-bs", M::tokens, "graph_batch"},
    {"page-size", M::tokens, "page_tokens"},
    {"swa-full-tokens-ratio", M::text, "swa_full_tokens_ratio"},
    {"mamba-full-memory-ratio", M::text, "mamba_full_memory_ratio"},
    {"disable-hybrid-swa-memory", M::on, "uniform_windows"},
    {"enable-memory-saver", M::sleeps, "sleep"},
    {"enable-lora", M::lora, "lora.slots"},
    {"max-loras-per-batch", M::tokens, "lora.slots"},
    {"max-lora-rank", M::tokens, "lora.rank"},
    {"max-total-tokens", M::none, "a stated number of tokens"},
    {"cpu-offload-gb", M::none, "weights in host memory"},
    {"speculative-algorithm|speculative-algo", M::none, "speculative decoding with SGLang"},
    {"enable-dp-attention", M::never, "data-parallel attention"},
    {"enable-hierarchical-cache", M::never, "a hierarchical cache"},
    {"json-model-override-args", M::none, "another config.json"},
    {"host", M::ignored, ""},
    {"port", M::ignored, ""},
    {"api-key", M::ignored, ""},
    {"served-model-name", M::ignored, ""},
    {"download-dir", M::ignored, ""},
    {"chat-template", M::ignored, ""},
    {"tool-call-parser", M::ignored, ""},
    {"reasoning-parser", M::ignored, ""},
    {"tokenizer-path", M::ignored, ""},
    {"load-format", M::ignored, ""},
    {"random-seed", M::ignored, ""},
    {"log-level", M::ignored, ""},
    {"schedule-policy", M::ignored, ""},
    {"attention-backend", M::ignored, ""},
    {"nnodes", M::ignored, ""},
    {"node-rank", M::ignored, ""},
    {"dist-init-addr", M::ignored, ""},
    {"trust-remote-code", M::ignored_switch, ""},
    {"enable-metrics", M::ignored_switch, ""},
    {"disable-radix-cache", M::ignored_switch, ""},
    {"disable-overlap-schedule", M::ignored_switch, ""},
    {"disable-custom-all-reduce", M::ignored_switch, ""},
};

}  // namespace

std::span<const FlagRow> serve_flags(EngineKind engine) {
  return engine == EngineKind::vllm ? std::span<const FlagRow>(kVllm) : std::span<const FlagRow>(kSglang);
}

bool is_switch(FlagMeans means) {
  switch (means) {
    case M::all_experts:
    case M::on:
    case M::sleeps:
    case M::lora:
    case M::never:
    case M::ignored_switch:
      return true;
    default:
      return false;
  }
}

}  // namespace oomplan
