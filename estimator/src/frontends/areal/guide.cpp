#include "frontends/areal/guide.hpp"

#include <array>

#include <fmt/format.h>

namespace oomplan::areal {
namespace {

struct GuideRow {
  std::string_view knob;
  std::string_view text;
};
constexpr std::array<GuideRow, 13> kGuide{{
    {"rollout.layout",
     "tensor parallelism of the servers: each GPU holds less of the weights; its GPUs exchange the results of every layer"},
    {"mem_fraction_static", "SGLang leaves more of the GPU free; a smaller KV cache, so fewer requests run at once"},
    {"gpu_memory_utilization", "vLLM leaves more of the GPU free; a smaller KV cache, so fewer requests run at once"},
    {"sleep",
     "the server gives its memory back while others run on its GPUs: torch_memory_saver in SGLang, sleep mode in vLLM; waking up "
     "takes time"},
    {"max_running_requests", "fewer requests in one batch of a server: fewer CUDA graphs; others wait"},
    {"tokens_per_micro_batch",
     "smaller micro-batches: fewer activations and logits at once; more of them, so a longer step. Not below the longest "
     "sequence (max_length + max_new_tokens)"},
    {"recompute", "the backward pass computes every layer again in place of keeping its activations: about a third more compute"},
    {"layout", "Ulysses (c) splits every sequence over c GPUs, which must divide the attention heads; more communication"},
    {"megatron.layout",
     "Megatron's degrees: t divides every layer within a node, p divides the layers into stages, c divides every sequence "
     "(context parallelism); more communication, and with p stages that wait"},
    {"offload", "parameters and optimizer states go to the host while other roles run; every phase begins and ends with a copy"},
    {"cpu_offload_policy",
     "parameters, gradients and Adam stay on the host: little is left on the GPU, and the step is much slower"},
    {"memory_efficient_load",
     "only rank 0 loads the model, on the host, and sends it: the start takes longer, training does not"},
    {"sync.by",
     "weights go to the servers through files in cluster.fileroot, which all nodes must see: no buckets, a slower update"},
}};

}  // namespace

std::string_view guide_text(std::string_view knob, bool megatron) {
  const std::string_view rest = knob.substr(knob.find('.') + 1);
  if (megatron && rest == "layout") return guide_text("megatron.layout", false);
  for (const auto& row : kGuide)
    if (row.knob == knob || (row.knob == rest && knob != "rollout.layout" && knob != "megatron.layout")) return row.text;
  return {};
}

// Launchers name a log by what they start: llm_server and trainer (areal/launcher/local.py 0.4.1: log_path_of). Schedulers, which
// 1.0.0 made the rule, name it by the role (areal/infra/scheduler/local.py 1.0.4: create_workers).
std::string log_of(std::string_view role, const Meaning& m, const compose::Node& root) {
  if (m.release <= release_named("0.3.0")) return {};
  const auto* scheduler = root.at("scheduler.type");
  const bool named = scheduler != nullptr && scheduler->kind == compose::Node::Kind::text && !scheduler->text.empty();
  if (m.release >= release_named("1.0.0") || named) {
    const std::string_view name = role == "trainer" ? "actor" : role;
    return fmt::format("{}.log", name);
  }
  return role == "rollout" ? "llm_server.log" : "trainer.log";
}

}  // namespace oomplan::areal
