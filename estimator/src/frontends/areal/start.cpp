#include "frontends/areal/start.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "frontends/areal/releases.hpp"

namespace oomplan::areal {
namespace {

constexpr std::string_view kWrittenRelease = "2.0.0";  // the newest that is no development

// Keys and classes: areal/api/cli_args.py of v1.0.3 to v2.0.0; examples/math and examples/alignment there have the same shape.
constexpr const char* kHead = R"(# {what}, AReaL {release}; written by oomplan.
# {script}
# Memory: oomplan estimate THIS_FILE --framework-version {release} --gpu {gpu}
experiment_name: {name}
trial_name: trial0
seed: 1
total_train_epochs: 1
tokenizer_path: ${{actor.path}}

cluster:
  n_nodes: {nodes}
  n_gpus_per_node: {per_node}
  fileroot: experiments

scheduler:
  type: {scheduler}
)";
// Memory depends on all of these. 64 requests a replica, 0.8 of the memory and a lead of two steps are the example's
// (examples/math/gsm8k_grpo.yaml: 256 over d4); the limit of 256 running requests is ours, the dataclass leaves it to the server.
constexpr const char* kRollout = R"(
rollout:
  experiment_name: ${{experiment_name}}
  trial_name: ${{trial_name}}
  backend: "sglang:d{replicas}t{tensor}"
  max_concurrent_rollouts: {concurrent}
  consumer_batch_size: ${{train_dataset.batch_size}}
  max_head_offpolicyness: 2
{lora}
gconfig:
  n_samples: {samples}
  max_new_tokens: {response}
  max_tokens: {all}
{name}
sglang:
  model_path: ${{actor.path}}
  dtype: ${{actor.dtype}}
  context_length: {context}
  mem_fraction_static: 0.8
  max_running_requests: {running}
{slots})";
constexpr const char* kActor = R"(
actor:
  experiment_name: ${{experiment_name}}
  trial_name: ${{trial_name}}
  backend: "fsdp:d{trainers}"
  path: {model}
  dtype: bfloat16
  gradient_checkpointing: true
  mb_spec:
    max_tokens_per_mb: {tokens}
  optimizer:
    type: adam
    lr: {rate}
    weight_decay: {decay}
    gradient_clipping: {clip}
{more})";
constexpr const char* kBeside = R"(
{role}:
  experiment_name: ${{experiment_name}}
  trial_name: ${{trial_name}}
  backend: ${{actor.backend}}
  path: ${{actor.path}}
  dtype: ${{actor.dtype}}
  mb_spec:
    max_tokens_per_mb: ${{actor.mb_spec.max_tokens_per_mb}}
{more}  scheduling_strategy:
    type: colocation
    target: actor
)";
constexpr const char* kRest = R"(
train_dataset:
  path: {data}
  type: {type}
  batch_size: {batch}
  max_length: {length}

saver:
  experiment_name: ${{experiment_name}}
  trial_name: ${{trial_name}}
  fileroot: ${{cluster.fileroot}}
  freq_epochs: 1

recover:
  experiment_name: ${{experiment_name}}
  trial_name: ${{trial_name}}
  fileroot: ${{cluster.fileroot}}
  mode: disabled

evaluator:
  experiment_name: ${{experiment_name}}
  trial_name: ${{trial_name}}
  fileroot: ${{cluster.fileroot}}

stats_logger:
  experiment_name: ${{experiment_name}}
  trial_name: ${{trial_name}}
  fileroot: ${{cluster.fileroot}}
)";
constexpr const char* kLora = R"(  use_lora: true
  peft_type: lora
  lora_rank: {rank}
  lora_alpha: {rank}
  target_modules: [all-linear]
)";

/// What an algorithm sets in the actor: four mini-batches are the dataclass's (PPOActorConfig), DAPO's clipping is that of
/// examples/math/gsm8k_dapo_dynamic_bs.yaml, beta that of examples/alignment/hhrlhf_dpo.yaml. A reference needs a weight other
/// than 0.
std::string of_algorithm(const Start& s) {
  switch (s.asked.algorithm) {
    case Algorithm::grpo:
    case Algorithm::ppo:
      return fmt::format("  ppo_n_minibatches: 4\n  recompute_logprob: true\n  use_decoupled_loss: true\n  kl_ctl: {}\n",
                         s.asked.reference ? "0.001" : "0.0");
    case Algorithm::dapo:
      return fmt::format(
          "  ppo_n_minibatches: 4\n  recompute_logprob: true\n  use_decoupled_loss: true\n  eps_clip: 0.2\n  eps_clip_higher: "
          "0.28\n"
          "  kl_ctl: {}\n",
          s.asked.reference ? "0.001" : "0.0");
    case Algorithm::sft:
      return "";
    case Algorithm::dpo:
      return "  beta: 0.1\n";
  }
  return "";
}

struct Shape {
  const char* what;
  const char* script;
  const char* data;
  const char* type;
  const char* rate;
  const char* decay;
  const char* clip;
};
/// Learning rates, weight decay and clipping are those of AReaL's own examples of the script (inclusionAI/AReaL 1.0.4,
/// examples/math/gsm8k_grpo.yaml, gsm8k_sft.yaml, examples/alignment/hhrlhf_dpo.yaml); memory does not depend on them.
Shape shape_of(Algorithm a) {
  const char* const rl = "python3 examples/math/gsm8k_rl.py --config THIS_FILE";
  switch (a) {
    case Algorithm::sft:
      return {"Supervised fine-tuning",
              "python3 examples/math/gsm8k_sft.py --config THIS_FILE",
              "openai/gsm8k",
              "sft",
              "2e-5",
              "0.05",
              "1.0"};
    case Algorithm::dpo:
      return {"DPO", "python3 examples/alignment/hhrlhf_dpo.py --config THIS_FILE", "Anthropic/hh-rlhf", "dpo", "5e-6", "0.01",
              "10.0"};
    case Algorithm::ppo:
      return {"PPO", rl, "openai/gsm8k", "rl", "1.70e-5", "0.017", "1.0"};
    case Algorithm::dapo:
      return {"DAPO", rl, "openai/gsm8k", "rl", "1.70e-5", "0.017", "1.0"};
    case Algorithm::grpo:
      break;
  }
  return {"GRPO", rl, "openai/gsm8k", "rl", "1.70e-5", "0.017", "1.0"};
}

}  // namespace

std::string written(Start& s) {
  if (s.asked.release.empty()) s.asked.release = kWrittenRelease;
  const StartAsked& a = s.asked;
  const std::string& release = a.release;
  const auto found = find_release(release);
  if (!found || *found < release_named("1.0.3"))
    throw InputError(Problem{{"command line", 0, 0, "--framework-version"},
                             fmt::format("'{}'", release),
                             "1.0.3 or later",
                             {},
                             found ? "not supported yet: files of AReaL before 1.0.3 are read, and not written" : ""});
  const Shape shape = shape_of(a.algorithm);
  const bool rl = s.servers > 0;
  const std::int64_t longest = a.prompt_tokens + a.response_tokens;
  std::string out = fmt::format(
      kHead, fmt::arg("what", fmt::format("{} of {} on {} GPUs", shape.what, s.model_id, a.gpus)), fmt::arg("release", release),
      fmt::arg("script", shape.script), fmt::arg("gpu", a.gpu),
      fmt::arg("name", fmt::format("{}-{}", spelling(a.algorithm), s.model_id.substr(s.model_id.rfind('/') + 1))),
      fmt::arg("nodes", a.nodes), fmt::arg("per_node", s.gpus_per_node), fmt::arg("scheduler", a.nodes > 1 ? "ray" : "local"));
  if (rl)
    out += fmt::format(kRollout, fmt::arg("replicas", s.servers / s.server_tensor), fmt::arg("tensor", s.server_tensor),
                       fmt::arg("concurrent", 64 * (s.servers / s.server_tensor)), fmt::arg("samples", a.samples),
                       fmt::arg("response", a.response_tokens), fmt::arg("all", longest), fmt::arg("context", longest),
                       fmt::arg("running", 256), fmt::arg("lora", a.lora > 0 ? "  use_lora: true\n" : ""),
                       fmt::arg("name", a.lora > 0 ? "  lora_name: adapters\n" : ""),
                       fmt::arg("slots", a.lora > 0 ? "  enable_lora: true\n  max_lora_rank: ${actor.lora_rank}\n" : ""));
  std::string more = of_algorithm(s);
  if (a.lora > 0) more += (rl ? "  weight_update_mode: disk\n" : "") + fmt::format(kLora, fmt::arg("rank", a.lora));
  out += fmt::format(kActor, fmt::arg("trainers", s.trainers), fmt::arg("model", s.model_id),
                     fmt::arg("tokens", std::max<std::int64_t>(16384, longest)), fmt::arg("rate", shape.rate),
                     fmt::arg("decay", shape.decay), fmt::arg("clip", shape.clip), fmt::arg("more", more));
  const auto beside = [&](const char* role, const char* extra) {
    out += fmt::format(kBeside, fmt::arg("role", role), fmt::arg("more", extra));
  };
  if (a.algorithm == Algorithm::ppo)
    beside("critic", "  is_critic: true\n  ppo_n_minibatches: 4\n  optimizer: ${actor.optimizer}\n");
  if ((rl && a.reference) || a.algorithm == Algorithm::dpo) beside("ref", "");
  return out + fmt::format(kRest, fmt::arg("data", shape.data), fmt::arg("type", shape.type), fmt::arg("batch", a.batch),
                           fmt::arg("length", a.prompt_tokens));
}

}  // namespace oomplan::areal
