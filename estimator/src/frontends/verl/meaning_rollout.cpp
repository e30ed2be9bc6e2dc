// What verl's servers get (verl/workers/rollout).
#include <fmt/format.h>

#include "frontends/verl/meaning_parts.hpp"

namespace oomplan::verl {

void tell_server(Telling& t, Release release, const ServerAt& server) {
  const std::string at = server.path, fact = server.fact;
  const auto take = [&](const char* name, const char* key, FactValue otherwise) {
    t.take(fact + name, fmt::format("{}.{}", at, key), std::move(otherwise));
  };
  const bool merged = t.text(at + ".name") == "sglang_async";  // verl/workers/fsdp_workers.py, megatron_workers.py, 0.4
  if (merged)
    t.derived(fact + "engine", FactValue("sglang"), "'sglang_async' is the older name of sglang", at + ".name");
  else
    t.take(fact + "engine", at + ".name");
  t.take(fact + "model", server.model);
  t.derived(fact + "gpus", server.gpus, server.gpus_by);
  const std::int64_t gpus_of_one = gpus_of_a_server(t, at);
  t.derived(fact + "layout.replicas", server.gpus / std::max<std::int64_t>(1, gpus_of_one), "gpus/(tp*dp*pp)",
            at + ".tensor_model_parallel_size");
  take("layout.tp", "tensor_model_parallel_size", FactValue(2));
  take("layout.dp", "data_parallel_size", FactValue(1));
  take("layout.ep", "expert_parallel_size", FactValue(1));
  take("layout.pp", "pipeline_model_parallel_size", FactValue(1));
  take("memory_fraction", "gpu_memory_utilization", FactValue(0.5));
  t.code(fact + "memory_fraction_meaning",
         merged || t.text(at + ".name") == "sglang" ? "SGLang mem_fraction_static: share of memory free at server start"
                                                    : "vLLM: share of total device memory",
         "verl rollout");
  if (release >= release_named("0.6.0"))
    take("max_running_requests", "max_num_seqs", FactValue(1024));
  else
    t.code(fact + "max_running_requests", "the engine's own",
           "max_num_seqs is parsed, and handed to no engine (verl/workers/rollout, 0.3 to 0.5)");
  take("max_batched_tokens", "max_num_batched_tokens", FactValue(8192));
  const bool stated = t.has(at + ".max_model_len") && release != release_named("0.7.0");
  if (stated)
    take("max_model_len", "max_model_len", nullptr);
  else if (release >= release_named("0.7.0"))
    t.code(fact + "max_model_len", "max_position_embeddings of the model",
           "null -> max_position_embeddings (verl/workers/rollout/vllm_rollout/vllm_async_server.py)");
  else
    t.derived(fact + "max_model_len", t.whole("data.max_prompt_length", 512) + t.whole("data.max_response_length", 512),
              "null -> prompt_length + response_length", at + ".max_model_len");
  take("enforce_eager", "enforce_eager", FactValue(false));
  take("cudagraph_capture_sizes", "cudagraph_capture_sizes", nullptr);
  take("free_cache_engine", "free_cache_engine", FactValue(true));
  take("enable_chunked_prefill", "enable_chunked_prefill", FactValue(true));
  take("enable_prefix_caching", "enable_prefix_caching", FactValue(true));
  take("dtype", "dtype", FactValue("bfloat16"));
  take("load_format", "load_format", FactValue("dummy"));
  const compose::Node* kwargs = t.at(at + ".engine_kwargs");
  t.derived(fact + "engine_kwargs", kwargs != nullptr ? value_of(*kwargs) : FactValue::map(), at + ".engine_kwargs",
            at + ".engine_kwargs");
  take("quantization", "quantization", nullptr);
  t.code(fact + "placement", server.placement, server.placed_by);
}

std::int64_t gpus_of_a_server(const Telling& t, const std::string& path) {
  return t.whole(path + ".tensor_model_parallel_size", 2) * t.whole(path + ".data_parallel_size", 1) *
         t.whole(path + ".pipeline_model_parallel_size", 1);
}

}  // namespace oomplan::verl
