// The table of a server's storages, and their sites for both recorders.
#include <algorithm>

#include <oomplan/units/errors.hpp>

#include "inference/server.hpp"

namespace oomplan {
namespace {

using T = ServerTensor;
constexpr Holder kStays = Holder::resident;

constexpr std::array<ServerTensorRow, kServerTensorCount> kRows{{
    {T::context, "context", Category::context, Pool::driver, kStays},
    {T::nccl, "nccl", Category::nccl, Pool::driver, kStays},
    {T::growth, "kernels and collective workspaces", Category::workspace, Pool::driver, kStays},
    {T::late_growth, "kernels loaded behind the profile run", Category::workspace, Pool::driver, kStays},
    {T::embedding, "embedding", Category::weights, Pool::pausable, kStays},
    {T::mixers, "attention weights", Category::weights, Pool::pausable, kStays},
    {T::absorbed, "latent attention: kv_b in 16 bits, workspace", Category::weights, Pool::pausable, kStays},
    {T::feed_forwards, "feed-forward weights", Category::weights, Pool::pausable, kStays},
    {T::experts, "expert weights", Category::weights, Pool::pausable, kStays},
    {T::norms, "norms", Category::weights, Pool::pausable, kStays},
    {T::head, "head", Category::weights, Pool::pausable, kStays},
    {T::tower, "vision tower", Category::weights, Pool::pausable, kStays},
    {T::rope, "cos/sin table", Category::weights, Pool::pausable, kStays},
    {T::adapters, "LoRA slots", Category::weights, Pool::pausable, kStays},
    {T::exchange, "DeepEP's buffers", Category::communication, Pool::driver, kStays},
    {T::exchange_rows, "rows of DeepEP in the CUDA graphs", Category::activations, Pool::torch, kStays},
    {T::drafts, "draft weights", Category::weights, Pool::pausable, kStays},
    {T::draft_loaded, "tables that a draft loads and gives up for the model's", Category::weights, Pool::pausable, Holder::local},
    {T::buffers, "input buffers", Category::buffers, Pool::torch, kStays},
    {T::host_weights, "weights on the host", Category::host_copy, Pool::pinned, kStays},
    {T::host_offloaded, "weights left on the host", Category::host_copy, Pool::pinned, kStays},
    {T::blas, "cuBLAS workspace", Category::workspace, Pool::torch, kStays},
    {T::forward_workspace13, "experts' workspace 1", Category::workspace, Pool::torch, Holder::local},
    {T::forward_workspace2, "experts' workspace 2", Category::workspace, Pool::torch, Holder::local},
    {T::gathered, "hidden states of all data-parallel ranks", Category::activations, Pool::torch, Holder::local},
    {T::topk_buffer, "top-k/top-p buffer", Category::workspace, Pool::torch, kStays},
    {T::attention_workspace, "attention workspace", Category::workspace, Pool::torch, kStays},
    {T::kv_cache, "KV cache", Category::kv_cache, Pool::pausable, kStays},
    {T::state_cache, "recurrent states", Category::kv_cache, Pool::pausable, kStays},
    {T::draft_cache, "KV cache of the drafts", Category::kv_cache, Pool::pausable, kStays},
    {T::request_table, "tables of requests", Category::buffers, Pool::pausable, kStays},
    {T::draft_tables, "page tables of the graphs", Category::buffers, Pool::torch, kStays},
    {T::graphs, "CUDA graphs", Category::graphs, Pool::driver, kStays},
    {T::graph_logits, "logits of the CUDA graphs", Category::logits, Pool::torch, kStays},
    {T::image_pixels, "dummy images", Category::inputs, Pool::torch, Holder::local},
    {T::image_outputs, "encoded dummy images", Category::activations, Pool::torch, Holder::local},
    {T::intermediate, "inputs from the stage before", Category::activations, Pool::torch, kStays},
    {T::hidden, "hidden states", Category::activations, Pool::torch, Holder::local},
    {T::residual, "residual", Category::activations, Pool::torch, Holder::local},
    {T::attention_output, "attention output", Category::activations, Pool::torch, Holder::local},
    {T::projected, "output projection", Category::activations, Pool::torch, Holder::local},
    {T::gate_up, "gate and up", Category::activations, Pool::torch, Holder::local},
    {T::unpacked, "matrices unpacked to 16 bits", Category::temporaries, Pool::torch, Holder::local},
    {T::unpacked_product, "product of an unpacked matrix", Category::temporaries, Pool::torch, Holder::local},
    {T::activation, "activation", Category::activations, Pool::torch, Holder::local},
    {T::layer_output, "down projection", Category::activations, Pool::torch, Holder::local},
    {T::context_projected, "projected latent context", Category::activations, Pool::torch, Holder::local},
    {T::index_scores, "scores of an indexer", Category::activations, Pool::torch, Holder::local},
    {T::draft_states, "hidden states of layers for the draft", Category::activations, Pool::torch, Holder::local},
    {T::draft_inputs, "the same side by side", Category::activations, Pool::torch, Holder::local},
    {T::step_activations, "activations of one step", Category::activations, Pool::torch, Holder::local},
    {T::sampled_hidden, "hidden states to sample from", Category::logits, Pool::torch, Holder::local},
    {T::sampled_random, "random hidden states of the dummy run", Category::logits, Pool::torch, Holder::local},
    {T::pooled, "hidden states to score", Category::logits, Pool::torch, Holder::local},
    {T::scores, "scores", Category::logits, Pool::torch, Holder::caller},
    {T::logits, "logits", Category::logits, Pool::torch, Holder::caller},
    {T::logits_fp32, "logits in fp32", Category::logits, Pool::torch, Holder::local},
    {T::log_probs, "log-probabilities", Category::logits, Pool::torch, Holder::local},
    {T::prompt_hidden, "a prompt's hidden states to score", Category::logits, Pool::torch, Holder::local},
    {T::prompt_logits_own, "a prompt's logits of this rank's part of the vocabulary", Category::logits, Pool::torch,
     Holder::local},
    {T::prompt_logits_parts, "a prompt's logits, gathered from all ranks", Category::logits, Pool::torch, Holder::local},
    {T::prompt_logits, "a prompt's logits", Category::logits, Pool::torch, Holder::local},
    {T::prompt_logits_fp32, "a prompt's logits in fp32", Category::logits, Pool::torch, Holder::local},
    {T::prompt_picked, "a prompt's logits of the rows that are asked for", Category::logits, Pool::torch, Holder::local},
    {T::prompt_log_probs, "a prompt's log-probabilities", Category::logits, Pool::torch, Holder::local},
    {T::prompt_logits_before, "a prompt's logits of the chunk before", Category::logits, Pool::torch, Holder::local},
    {T::prompt_log_probs_before, "a prompt's log-probabilities of the chunk before", Category::logits, Pool::torch,
     Holder::local},
    {T::probabilities, "probabilities", Category::logits, Pool::torch, Holder::local},
    {T::noise, "exponential noise", Category::logits, Pool::torch, Holder::local},
    {T::sorted, "sorted logits", Category::logits, Pool::torch, Holder::local},
    {T::sorted_index, "order of the sorted logits", Category::logits, Pool::torch, Holder::local},
    {T::sort_keys, "sort keys", Category::temporaries, Pool::torch, Holder::local},
    {T::sort_pairs, "sort pairs", Category::temporaries, Pool::torch, Holder::local},
    {T::cumulative, "sorted probabilities and their sum", Category::temporaries, Pool::torch, Holder::local},
}};

constexpr bool in_order() {
  for (std::size_t i = 0; i < kRows.size(); ++i)
    if (kRows[i].tensor != static_cast<ServerTensor>(i)) return false;
  return true;
}
static_assert(in_order(), "kRows must list ServerTensor in order");

/// Only a server that sleeps has a pool that can be unmapped; graphs of vLLM outside it are never given back.
Pool pool_of(const ServerTensorRow& r, const ServerPlan& p) {
  if (r.pool != Pool::pausable) return r.pool;
  if (r.tensor == T::adapters && p.engine == EngineKind::sglang) return Pool::torch;  // made outside of the saver's regions
  const bool of_sglang = r.tensor == T::draft_loaded || r.tensor == T::request_table;
  if (of_sglang && p.engine == EngineKind::vllm) return Pool::torch;
  const bool cache = r.tensor == T::kv_cache || r.tensor == T::state_cache || r.tensor == T::draft_cache;
  return p.pausable && (!cache || p.cache_released) ? Pool::pausable : Pool::torch;
}

}  // namespace

const ServerTensorRow& row(ServerTensor t) { return kRows[static_cast<std::size_t>(t)]; }

ServerSites make_sites(PeakRecorder&, const ServerPlan& p) {
  ServerSites out;
  for (std::size_t i = 0; i < kServerTensorCount; ++i) out[i] = {0, p.bytes[i], pool_of(kRows[i], p)};
  return out;
}

ServerSites make_sites(ProgramWriter& writer, const ServerPlan& p) {
  ServerSites out;
  for (std::size_t i = 0; i < kServerTensorCount; ++i) {
    if (p.bytes[i] == 0) continue;
    Site site;
    site.name = "server." + std::string(kRows[i].name);
    for (const std::int64_t axis : p.shape[i])
      if (axis > 0) site.shape.push_back(axis);
    site.bytes = p.bytes[i];
    site.dtype = p.dtype[i];
    site.category = kRows[i].category;
    site.pool = pool_of(kRows[i], p);
    site.holder = kRows[i].holder;
    out[i] = writer.site(std::move(site));
  }
  return out;
}

}  // namespace oomplan
