#include "inference/server_facts.hpp"

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include <oomplan/units/errors.hpp>

#include "job/first_engine.hpp"

namespace oomplan {
namespace {

using Conditions = std::map<std::string, std::string>;

class Reader {
 public:
  Reader(const Facts& facts, std::string_view engine, std::string_view version, std::string_view sm)
      : facts_(facts), engine_(engine), version_(version), sm_(sm) {}
  double number(std::string_view fact, const Conditions& when = {}) const { return of(engine_, version_, fact, when); }
  std::int64_t whole(std::string_view fact, const Conditions& when = {}) const {
    return static_cast<std::int64_t>(number(fact, when));
  }
  bool flag(std::string_view fact) const { return number(fact) != 0; }
  Bytes torch(std::string_view fact) const { return static_cast<Bytes>(of("torch", "", fact, {})); }

 private:
  double of(std::string_view engine, std::string_view version, std::string_view fact, const Conditions& when) const {
    return facts_.find(engine, fact, {std::string(version), std::string(sm_), when}).value;
  }
  const Facts& facts_;
  std::string_view engine_, version_, sm_;
};

constexpr std::array<std::string_view, kGroupSizes> kGroups{"1", "2", "4", "8", "16"};

std::array<Bytes, kGroupSizes> by_group(const Reader& read, std::string_view fact, Conditions when) {
  std::array<Bytes, kGroupSizes> out{};
  for (std::size_t i = 0; i < kGroups.size(); ++i) {
    when["gpus"] = kGroups[i];
    out[i] = static_cast<Bytes>(read.number(fact, when));
  }
  return out;
}

/// vllm/config/vllm.py _is_default_v2_model_runner_model, 0.23: some classes that generate, with weights in 16 bits.
bool takes_second_runner(const Reader& read, const ServerModel& model) {
  const auto has_scales = [](const ServerLayer& l) {
    return std::any_of(l.scales.begin(), l.scales.end(), [](const FusedMatrix& m) { return m.split + m.kv_head + m.whole > 0; });
  };
  const bool packed = row(model.weights).bits < 16 || std::any_of(model.kinds.begin(), model.kinds.end(), has_scales);
  return !packed && !model.moe && model.labels == 0 && read.number("second_runner", {{"family", model.family}}) != 0;
}

/// DeepSeek V4 has kernels of its own: pages, experts in 4 bits, and no buffers of other latent attention.
void compressed(ServerFacts& f, const Reader& read) {
  f.compressed_cache = static_cast<CompressedCache>(read.whole("compressed_cache"));
  if (f.compressed_cache == CompressedCache::none)
    throw InputError(
        Problem{{}, "a cache of compressed entries", "vLLM 0.20 or later", "", "older releases have no class for it"});
  f.page_tokens = read.whole("compressed_page_tokens");
  f.latent_workspace = 0;
  f.mxfp4_width_step = read.whole("fp4_experts_width_step");
  f.mxfp4_hidden_step = read.whole("fp4_experts_hidden_step");
  f.mxfp4_keeps_scales = false;
}

void vllm(ServerFacts& f, const Reader& read, const ServerModel& model) {
  f.tokens_by_request = read.flag("kv_tokens_by_request");
  f.state_pages_as_asked = read.flag("state_pages_as_asked");
  f.sampler_sorts = read.flag("sampler_sorts");
  f.moe_chunk_tokens = read.whole("moe_chunk_tokens");
  f.uniform_swa = read.flag("uniform_sliding_window");
  f.request_rule = static_cast<RequestRule>(read.whole("request_rule"));
  f.group_ratio = read.number("group_ratio");
  f.growth = by_group(read, "growth_bytes", {{"split", "tensor"}});
  f.growth_pipeline = by_group(read, "growth_bytes", {{"split", "pipeline"}});
  f.late_growth = static_cast<Bytes>(read.number("late_growth_bytes"));
  const Conditions gpu{{"gpu_gib", std::to_string(f.total / kGiB)}};
  f.batched_tokens = read.whole("max_num_batched_tokens", gpu);
  f.max_running = read.whole("max_num_seqs", gpu);
  f.graph_batch = {read.whole("graph_max_batch"), read.whole("graph_max_batch")};
  f.adapter_graph_sets = read.whole("graph_sets_with_adapters");
  f.last_rank_takes_rest = read.flag("last_rank_takes_rest_of_experts");
  f.experts_split_tokens = read.flag("experts_split_tokens");
  f.graph_experts = read.whole("graph_experts_bytes");
  f.graph_shared_experts = read.whole("graph_shared_experts_bytes");
  // of what is pooled nothing is captured whole (vllm/config/vllm.py VllmConfig.__post_init__, 0.12 to 0.24)
  f.graph_modes = model.labels > 0 ? 1 : read.whole("graph_modes");
  f.graph_wide_step = read.whole("graph_wide_step");
  f.graph_splits = model.compute == DType::fp32 ? 0 : read.whole("graph_splits");  // FlashAttention 3 takes 16 bits
  f.second_runner = takes_second_runner(read, model);
  f.embeds_buffer = !f.second_runner && read.flag("inputs_embeds_buffer");
  if (model.compressed) compressed(f, read);
}

void sglang(ServerFacts& f, const Reader& read, const Conditions& model) {
  f.fraction_rule = static_cast<FractionRule>(read.whole("fraction_rule"));
  const std::string gib = std::to_string(f.smi_mib / 1024);
  f.batched_tokens = read.whole("chunked_prefill_size", {{"gpu_gib", gib}});
  f.graph_batch = {read.whole("cuda_graph_max_bs", {{"gpu_gib", gib}, {"tensor_parallel", "1"}}),
                   read.whole("cuda_graph_max_bs", {{"gpu_gib", gib}, {"tensor_parallel", "4"}})};
  f.prefill_tokens = read.whole("max_prefill_tokens");
  f.max_running = read.whole("max_running_requests");
  f.attention_workspace = read.whole("attention_workspace_bytes");
  f.graph_base = read.whole("graph_base_bytes");
  f.graph_hidden = read.whole("graph_hidden_bytes");
  f.graph_moe = read.whole("graph_moe_bytes");
  f.swa_ratio = read.number("swa_full_tokens_ratio");
  f.state_ratio = read.number("mamba_full_memory_ratio");
  f.slots_per_request = read.whole("mamba_slots_per_request");
  f.buffers_per_request = read.whole("mamba_buffers_per_request");
  f.buffers_beside_drafts = read.whole("mamba_buffers_beside_drafts");
  f.uniform_swa = read.number("uniform_sliding_window", model) != 0;
  f.stages_cache_all_layers = read.number("stages_cache_all_layers", model) != 0;
  f.rope_tables = static_cast<std::int64_t>(read.number("rope_tables", model));
  f.router_bits = static_cast<std::int64_t>(read.number("router_bits", model));
  f.tower_off = read.number("tower_off", model) != 0;
  f.tower_positions_cut = read.number("tower_positions_cut", model) != 0;
  f.tower_positions_follow = read.flag("tower_positions_follow");
  f.saver_covers_swa = read.flag("saver_covers_sliding_window");
  f.attention_data_repeats_embedding = read.number("attention_data_repeats_embedding", model) != 0;
  f.reserve_drafts = read.number("reserve_mib_drafts");
  f.drafts_before_pool = read.flag("drafts_before_pool");
  f.drafts_buffer_states = read.flag("drafts_buffer_states");
  f.draft_running = read.whole("draft_running_requests");
  f.draft_page_tables = read.flag("draft_page_tables");
  f.flashinfer_workspace = static_cast<Bytes>(read.number("flashinfer_workspace_mib", model)) * kMiB;
  f.flashinfer_wrapper = static_cast<Bytes>(read.number("flashinfer_wrapper_mib")) * kMiB;
  f.reserve_attention_data_gib = read.number("reserve_gib_attention_data");
  if (f.fraction_rule != FractionRule::reserve_mib) return;
  f.reserve_base = read.number("reserve_base_mib");
  f.reserve_token = read.number("reserve_mib_per_token");
  f.reserve_graph = read.number("reserve_mib_per_graph_batch");
  f.reserve_gpu = read.number("reserve_mib_per_gpu");
  f.reserve_floor = read.number("reserve_floor_mib");
  f.reserve_attention_data = read.number("reserve_mib_per_graph_batch_and_group");
  f.reserve_attention_data_large = read.number("reserve_mib_per_large_graph_batch_and_group");
  f.reserve_prefill_graph = read.number("reserve_mib_per_prefill_graph");
  f.reserve_prefill_graphs_latent = read.number("reserve_mib_prefill_graphs_latent");
}

[[noreturn]] void refuse_version(const Facts& facts, std::string_view engine, std::string_view version) {
  std::string known;
  for (const Fact& row : facts.rows())
    if (row.engine == engine && row.fact == "budget_rule") known += (known.empty() ? "" : " or ") + row.versions;
  throw InputError(
      Problem{{}, std::string(engine) + " " + std::string(version), std::string(engine) + " " + known, "", "not supported yet"});
}

}  // namespace

ServerFacts resolve(const Facts& facts, EngineKind engine, const Server& server, const Gpu& gpu, const ServerModel& model) {
  const std::string version = facts_version(engine, server, gpu.sm);
  ServerFacts f = resolve(facts, engine, version, gpu, model);
  if (version != server.version) {  // both engines of a release have its models, and its stages
    const ServerFacts own = resolve(facts, engine, server.version, gpu, model);
    f.extra_layers = own.extra_layers;
    f.embedding_every_stage = own.embedding_every_stage;
    f.head_every_stage = own.head_every_stage;
  }
  if (server.swa_ratio > 0) f.swa_ratio = server.swa_ratio;
  if (server.state_ratio > 0) f.state_ratio = server.state_ratio;
  f.uniform_swa = f.uniform_swa || server.uniform_windows;
  f.expandable_segments = server.expandable_segments;
  f.offloaded_weights = server.offloaded_weights;
  f.fixed_cache = server.kv_cache_bytes;
  f.most_tokens = server.total_tokens;
  if (server.page_tokens > 0) f.page_tokens = server.page_tokens;
  f.redundant_experts = server.redundant_experts;
  if (server.graph_batch > 0) f.graph_batch = {server.graph_batch, server.graph_batch};
  return f;
}

ServerFacts resolve(const Facts& facts, EngineKind engine, std::string_view asked, const Gpu& gpu, const ServerModel& model) {
  const std::string_view name = engine == EngineKind::vllm ? "vllm" : "sglang";
  const std::string version = facts.answering(name, asked);
  if (version.empty()) refuse_version(facts, name, asked);
  const Reader read(facts, name, version, gpu.sm);
  const Conditions about{{"moe", model.moe ? "true" : "false"},
                         {"family", model.family},
                         {"latent", model.mla ? "true" : "false"},
                         {"latent_yarn", model.latent_yarn ? "true" : "false"}};
  ServerFacts f;
  f.engine = engine;
  f.total = gpu.usable;
  f.smi_mib = gpu.smi_mib;
  f.sms = gpu.sms;
  f.budget = static_cast<BudgetRule>(read.whole("budget_rule"));
  f.fraction = read.number("memory_fraction");
  f.page_tokens = read.whole("page_tokens", {{"latent", model.mla ? "true" : "false"},
                                             {"sparse", model.sparse ? "true" : "false"},
                                             {"cache_fp8", model.kv == DType::fp8 ? "true" : "false"}});
  f.vocab_padding = read.whole("vocab_padding");
  f.extra_layers = static_cast<ExtraLayers>(read.whole("extra_layers"));
  f.rope_bits = read.whole("rope_table_bits", {{"latent", model.mla ? "true" : "false"}});
  if (model.compute == DType::fp32) f.rope_bits = 32;  // 16: the model's own format
  const auto tables = static_cast<int>(read.number("tables_on_every_stage", {{"family", model.family}}));
  f.embedding_every_stage = (tables & 1) != 0;
  f.head_every_stage = (tables & 2) != 0;
  f.context = read.torch("context_bytes");
  f.blas = read.torch("cublas_workspace_bytes");
  f.nccl = by_group(read, "nccl_bytes", {{"moe", about.at("moe")}});
  f.load_max_split = read.whole("load_max_split_bytes");
  f.latent_workspace = read.whole("latent_workspace_bytes");
  f.mxfp4_width_step = read.whole("mxfp4_width_step");
  f.mxfp4_hidden_step = read.whole("mxfp4_hidden_step");
  f.mxfp4_keeps_scales = read.flag("mxfp4_keeps_scales");
  f.shared_expert_replicas = read.flag("shared_expert_replicas");
  f.graph_layer = read.whole("graph_layer_bytes");
  if (engine == EngineKind::vllm) {
    vllm(f, read, model);
  } else {
    sglang(f, read, about);
  }
  return f;
}

}  // namespace oomplan
