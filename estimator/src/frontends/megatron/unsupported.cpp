// What Megatron runs and the engine does not describe yet.
#include <algorithm>
#include <array>
#include <utility>

#include <fmt/format.h>

#include "frontends/megatron/flag_table.hpp"
#include "frontends/megatron/run.hpp"
#include "frontends/megatron/settings.hpp"

#include <nlohmann/json.hpp>

namespace oomplan::megatron {
namespace {

void refuse(const Arguments& a, std::string_view name, std::string expected, std::string_view what, Complaints& out) {
  const auto& v = a.value(name);
  std::string found = v.is_null() || v.is_boolean() ? "the flag" : v.is_string() ? fmt::format("'{}'", a.text(name)) : v.dump();
  if (!a.given(name)) found = v.is_null() || v == false ? "nothing" : fmt::format("the default, {}", found);
  out.add(a.place(name), std::move(found), std::move(expected), fmt::format("not supported yet: {}", what));
}

/// Arguments that the engine may have a setting for.
constexpr std::array<std::pair<std::string_view, std::string_view>, 3> kSettings{
    {{"mtp_num_layers", "mtp_layers"},
     {"apply_rope_fusion", "rotary_fusion"},
     {"use_precision_aware_optimizer", "precision_aware_optimizer"}}};

bool has_setting(std::string_view argument) {
  return std::any_of(kSettings.begin(), kSettings.end(),
                     [&](const auto& s) { return s.first == argument && engine_has(s.second); });
}

/// Rows of the table that name what is not described.
void refuse_rows(const Arguments& a, const std::vector<std::string_view>& described, Complaints& out) {
  for (const Flag& flag : flags()) {
    if (std::find(described.begin(), described.end(), flag.name) != described.end()) continue;
    if (flag.memory.empty() || flag.memory == "read" || !a.given(flag.name) || has_setting(flag.name)) continue;
    const auto& v = a.value(flag.name);
    const bool nothing = flag.otherwise->is_null() && (v.is_null() || v == false || v == 0);
    if (v == *flag.otherwise || nothing) continue;
    refuse(a, flag.name, "nothing", flag.memory, out);
  }
}

/// Which layers are in 8 bits, and how.
void refuse_fp8(const Arguments& a, Complaints& out) {
  if (!a.has("fp8")) return;
  if (a.text("fp8_recipe") == "custom")
    refuse(a, "fp8_recipe", "delayed, tensorwise, blockwise or mxfp8", "quantizers of one's own", out);
  if (!a.on("fp8_wgrad")) refuse(a, "fp8_wgrad", "nothing", "weight gradients in higher precision beside fp8", out);
}

void refuse_experts(const Arguments& a, Complaints& out) {
  if (!a.on("num_experts")) return;
  if (a.text("moe_token_dispatcher_type") == "flex" && a.text("moe_flex_dispatcher_backend") == "hybridep")
    refuse(a, "moe_flex_dispatcher_backend", "deepep", "HybridEP", out);
  // fused_indices_to_multihot in place of PyTorch's operators (transformer/moe/token_dispatcher.py)
  if (a.text("moe_token_dispatcher_type") == "flex" && a.on("enable_experimental") && a.on("moe_permute_fusion"))
    refuse(a, "enable_experimental", "nothing", "experimental kernels of the flex dispatcher", out);
  if (a.text("moe_router_dtype") == "fp64") refuse(a, "moe_router_dtype", "fp32 or nothing", "a router in fp64", out);
  const auto kinds = a.items("moe_router_load_balancing_type");
  const bool described =
      kinds.size() == 1 && (kinds[0] == "aux_loss" || kinds[0] == "seq_aux_loss" || kinds[0] == "sinkhorn" || kinds[0] == "none");
  if (!described)
    return refuse(a, "moe_router_load_balancing_type", "aux_loss, seq_aux_loss, sinkhorn or none", "other ways of balancing",
                  out);
  if (!balances(a) && !engine_has("router_aux_loss"))
    refuse(a, "moe_aux_loss_coeff", "a coefficient above 0", "a router without an auxiliary loss", out);
}

/// _vocab_size_with_padding (megatron/training/tokenizer/tokenizer.py): described are multiples of 128 for every rank, and what
/// comes out the same.
void refuse_padding(const Arguments& a, const Run& r, Complaints& out) {
  constexpr std::int64_t kDescribed = 128, kMostRows = std::int64_t{1} << 40;
  const std::int64_t unit = a.whole_or("make_vocab_size_divisible_by", kDescribed), rows = a.whole_or("vocab_size", 0);
  const auto padded = [&](std::int64_t to) { return (rows + to * r.tensor - 1) / (to * r.tensor) * (to * r.tensor); };
  if (unit == kDescribed || a.has("padded_vocab_size")) return;
  if (unit > 0 && unit < kMostRows / r.tensor && rows > 0 && rows < kMostRows && padded(unit) == padded(kDescribed)) return;
  refuse(a, "make_vocab_size_divisible_by", "128", "another padding of the vocabulary", out);
}

}  // namespace

void refuse_unsupported(const Arguments& a, const Run& r, Complaints& out, const std::vector<std::string_view>& described) {
  refuse_rows(a, described, out);
  refuse_experts(a, out);
  refuse_fp8(a, out);
  const bool in_fp16 = a.on("fp16") && std::ranges::find(described, "fp16") != described.end();
  if (!a.on("bf16") && !in_fp16)
    refuse(a, a.on("fp16") ? "fp16" : "bf16", "--bf16", "other formats than bf16 with fp32 masters", out);
  if (a.text("optimizer") != "adam") refuse(a, "optimizer", "adam", "other optimizers", out);
  if (a.on("optimizer_cpu_offload") && !a.on("use_distributed_optimizer"))
    refuse(a, "optimizer_cpu_offload", "--use-distributed-optimizer beside it",
           "an optimizer on the host that is not distributed", out);
  if (a.has("pipeline_model_parallel_layout"))
    refuse(a, "pipeline_model_parallel_layout", "even stages, or the layers of the first and last one", "stages by a layout",
           out);
  if (a.on("distribute_saved_activations")) refuse(a, "distribute_saved_activations", "nothing", "distributed inputs", out);
  refuse_padding(a, r, out);
  if (r.chunks > 1 && !a.on("overlap_p2p_comm"))
    refuse(a, "overlap_p2p_comm", "nothing", "the interleaved schedule without overlapped communication", out);
  if (a.text("transformer_impl") == "inference_optimized")
    refuse(a, "transformer_impl", "transformer_engine or local", "layers that are made for inference", out);
  const std::string attention = a.text("attention_backend");
  if (attention == "local" && std::ranges::find(described, "attention_backend") == described.end())
    refuse(a, "attention_backend", "auto, flash, fused or unfused", "Megatron's own attention", out);
  const auto exchange = a.items("cp_comm_type");
  if (r.context > 1 && (exchange.size() != 1 || (exchange[0] != "p2p" && exchange[0] != "a2a")))
    refuse(a, "cp_comm_type", "p2p or a2a", "other exchanges of a context", out);
}

}  // namespace oomplan::megatron
