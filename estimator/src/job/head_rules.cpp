#include "job/head_rules.hpp"

#include <algorithm>

#include "catalog/architecture.hpp"
#include "job/kernel_sets.hpp"

namespace oomplan {
namespace {

/// AReaL packs pairs: a value of every token, of which each sequence's last one counts.
void check_packed(const Role& role, std::vector<Clash>& out) {
  if (role.trainer.layout.tensor > 1) out.push_back({"layout", "t1", "not supported yet: tensor parallelism of a value model"});
}

void check_batch(const Role& role, std::vector<Clash>& out) {
  const Trainer& t = role.trainer;
  const bool pairs = is_preference(t.head) || t.head == LossHead::reward_pairs;
  if (t.head == LossHead::reward_pairs && t.loop.packs_pairs && t.sequences_per_micro_batch == 0) return check_packed(role, out);
  if (t.loop.of_framework) out.push_back({"head", "a head of the framework", "TRL's trainers are PyTorch's alone"});
  if (!of_transformers(t.kernels)) out.push_back({"kernels", "hf_flash, hf_sdpa or hf_eager", "TRL trains transformers' models"});
  if (t.sequences_per_micro_batch == 0)
    out.push_back(
        {"sequences_per_micro_batch", "padded sequences", "TRL pads its batches: chosen and rejected ones count as two"});
  else if (pairs && t.sequences_per_micro_batch % 2 != 0)
    out.push_back({"sequences_per_micro_batch", "an even number",
                   is_kto(t.head) ? "half of the completions are taken as desirable"
                                  : "a pair is two sequences, a chosen and a rejected one"});
  if (t.layout.tensor > 1 || t.layout.context > 1)
    out.push_back({"layout", "data parallelism alone", "not supported yet: this head on split sequences or vocabularies"});
  const bool by_rows = t.head == LossHead::trl_kto || t.head == LossHead::trl_dpo_0_29;
  if (by_rows && t.sequences_per_micro_batch * (t.sequence_tokens - 1) < 128)
    out.push_back({"sequence_tokens", "longer sequences", "not supported yet: this head on fewer than 128 tokens"});
  if (t.tiled_mlp) out.push_back({"tiled_mlp", "false", "not supported yet: TiledMLP with this head"});
  if (t.keep_outputs) out.push_back({"keep_outputs", "false", "the trainer keeps them as it does"});
  if (pairs && t.logits_to_keep > 0) out.push_back({"logits_to_keep", "auto", "the trainer asks for all logits"});
}

void check_reference(const Role& role, std::vector<Clash>& out) {
  const Trainer& t = role.trainer;
  const auto refuse = [&](std::string why) { out.push_back({"reference", "none", std::move(why)}); };
  if (!is_dpo(t.head) && !is_kto(t.head) && t.head != LossHead::trl_gkd)
    return refuse(is_grpo(t.head) ? "GRPO's reference has a pass of its own: a role ref"
                                  : "this loss has no reference inside of its step");
  if (t.reference == ReferencePass::adapters_off && t.lora.rank == 0)
    refuse("without adapters the policy is no reference: lora.rank, or reference: model");
  const bool adapters_off = t.reference == ReferencePass::adapters_off;
  if (adapters_off && role.engine == EngineKind::fsdp1)
    refuse("not supported yet: a policy without its adapters as its reference under FSDP1");
  if (role.engine == EngineKind::deepspeed && t.zero.stage == 3 && t.lora.rank > 0 && t.recompute != Recompute::none)
    refuse("not supported yet: adapters beside a reference's pass and checkpoints under ZeRO stage 3");
  if (role.engine == EngineKind::deepspeed && t.zero.offload_parameters)
    refuse("not supported yet: a reference beside parameters on the host");
  if (t.cpu_offload_policy || t.offload_parameters) refuse("not supported yet: a reference beside parameters on the host");
}

/// huggingface/trl trl/experimental/gkd/gkd_trainer.py compute_loss, 1.4.
void check_teacher(const Role& role, std::vector<Clash>& out) {
  const Trainer& t = role.trainer;
  if (t.reference != ReferencePass::model) out.push_back({"reference", "model", "the teacher is a second model"});
  if (t.loop.of_framework) out.push_back({"head", "a head of the framework", "TRL's trainers are PyTorch's alone"});
  if (!of_transformers(t.kernels)) out.push_back({"kernels", "hf_flash, hf_sdpa or hf_eager", "TRL trains transformers' models"});
  if (t.sequences_per_micro_batch == 0) out.push_back({"sequences_per_micro_batch", "padded sequences", "TRL pads its batches"});
  if (t.layout.tensor > 1 || t.layout.context > 1)
    out.push_back({"layout", "data parallelism alone", "not supported yet: this head on split sequences or vocabularies"});
  if (role.engine == EngineKind::deepspeed)
    out.push_back({"engine", "another engine", "not supported yet: a teacher under DeepSpeed"});
  if (t.tiled_mlp) out.push_back({"tiled_mlp", "false", "not supported yet: TiledMLP with this head"});
  if (t.keep_outputs) out.push_back({"keep_outputs", "false", "the trainer keeps them as it does"});
  if (t.logits_to_keep > 0) out.push_back({"logits_to_keep", "auto", "the trainer asks for all logits"});
  if (t.reference_format && *t.reference_format != t.storage)
    out.push_back({"reference_format", "none", "not supported yet: a teacher in another format than the student"});
  const Architecture* other = t.other.architecture.get();
  if (other != nullptr && role.architecture != nullptr && other->vocab != role.architecture->vocab)
    out.push_back({"reference_model", "a model with the same vocabulary",
                   "its log-probs and the policy's are subtracted from one another, word by word"});
}

constexpr const char* kNotGathered =
    "from 0.7.1 on verl makes an output layer with a weight of its own a unit of FSDP2, and its fused kernels read that weight "
    "where nobody has gathered it: the run fails";
constexpr const char* kGathers = "not supported yet: an output layer of FSDP2 that verl's fused kernels gather themselves";
/// verl/utils/experimental/torch_functional.py, _fused_linear_for_ppo_bwd: autocast is left by then, and PyTorch multiplies no
/// bf16 by fp32.
constexpr const char* kMixes =
    "verl's fused kernels for Qwen3-VL gather the output layer's weight as it is stored; in backward they multiply it by hidden "
    "states in the compute format, and the run fails";

bool is_qwen3_5(const Architecture& a) {
  return std::any_of(a.runs.begin(), a.runs.end(),
                     [](const LayerRun& r) { return r.layer.mixer.kind == MixerKind::gated_delta; });
}

bool of_triton(LossHead head) { return head == LossHead::verl_fused_triton || head == LossHead::verl_fused_triton_entropy; }

/// full_tensor() of the weight: verl/models/transformers/qwen3_vl.py (torch's backend) and qwen3_5.py, 0.9 and 0.10.
bool gathers_by_itself(const Role& role) {
  if (role.architecture == nullptr || role.architecture->tower.kind != "qwen3_vl") return false;
  return is_qwen3_5(*role.architecture) || !of_triton(role.trainer.head);
}

/// Why an output layer that is a unit of FSDP2 does not go with verl's fused kernels. Qwen3.5's forward pass casts its hidden
/// states to the weight's format, Qwen3-VL's does not.
const char* refused_unit(const Role& role) {
  const Trainer& t = role.trainer;
  if (!gathers_by_itself(role)) return kNotGathered;
  const bool mixes = t.storage != t.compute && !is_qwen3_5(*role.architecture) && role.kind != RoleKind::reference;
  return mixes ? kMixes : kGathers;
}

/// verl puts its own forward pass in place of transformers' (verl/models/transformers/dense_common.py, 0.5 to 0.10).
void check_fused(const Role& role, std::vector<Clash>& out) {
  const Trainer& t = role.trainer;
  if (role.kind != RoleKind::actor && role.kind != RoleKind::reference && role.kind != RoleKind::trainer) return;
  if (!t.loop.fuses_head) out.push_back({"head", "a head of the framework", "verl alone has its fused kernels"});
  if (!of_transformers(t.kernels))
    out.push_back({"kernels", "hf_flash, hf_sdpa or hf_eager", "verl trains transformers' models"});
  if (t.logits_to_keep > 0) out.push_back({"logits_to_keep", "auto", "verl's fused kernels take all tokens"});
  if (t.autocast && t.compute == DType::fp32)
    out.push_back({"autocast", "false", "not supported yet: verl's fused kernels with fp32 weights under autocast"});
  const bool tied = role.architecture != nullptr && role.architecture->tied;
  if (role.engine == EngineKind::fsdp2 && t.wrap_head && !tied)
    out.push_back({"head", "another head, or engine: fsdp1 (verl's strategy: fsdp)", refused_unit(role)});
  if (of_triton(t.head) && role.architecture != nullptr && role.architecture->hidden % 128 != 0)
    out.push_back({"head", "verl_fused", "verl's Triton kernels take hidden sizes that are multiples of 128"});
}

}  // namespace

bool is_verl_fused(LossHead head) {
  switch (head) {
    case LossHead::verl_fused:
    case LossHead::verl_fused_entropy:
    case LossHead::verl_fused_log_softmax:
    case LossHead::verl_fused_log_softmax_entropy:
    case LossHead::verl_fused_triton:
    case LossHead::verl_fused_triton_entropy:
      return true;
    default:
      return false;
  }
}

bool is_preference(LossHead head) {
  return is_dpo(head) || is_kto(head) || head == LossHead::trl_simpo || head == LossHead::trl_orpo;
}

bool is_dpo(LossHead head) {
  return head == LossHead::trl_dpo || head == LossHead::trl_dpo_0_18 || head == LossHead::trl_dpo_0_29;
}
bool is_kto(LossHead head) { return head == LossHead::trl_kto || head == LossHead::trl_kto_0_18; }
bool is_grpo(LossHead head) { return head == LossHead::trl_grpo || head == LossHead::trl_grpo_1_0; }

bool is_trl_sft(LossHead head) { return head == LossHead::trl_sft || head == LossHead::trl_sft_1_3; }

bool takes_sequences(LossHead head) { return is_preference(head) || is_grpo(head); }

bool goes_by_sequence(LossHead head) { return takes_sequences(head) || head == LossHead::logprob_rows; }

std::vector<Clash> head_clashes(const Role& role) {
  const Trainer& t = role.trainer;
  std::vector<Clash> out;
  if (takes_sequences(t.head) || t.head == LossHead::reward_pairs) check_batch(role, out);
  if (is_verl_fused(t.head)) check_fused(role, out);
  if (is_trl_sft(t.head) && t.tiled_mlp) out.push_back({"tiled_mlp", "false", "not supported yet: TiledMLP with this head"});
  if (t.head == LossHead::trl_gkd) check_teacher(role, out);
  if (t.reference != ReferencePass::none) check_reference(role, out);
  if (t.reference_format && t.reference != ReferencePass::model)
    out.push_back({"reference_format", "none", "nothing has it without reference: model"});
  if (t.reference_format && role.engine == EngineKind::deepspeed)
    out.push_back({"reference_format", "none", "DeepSpeed casts a second model as it does the policy"});
  if (!t.reference_model.empty() && t.reference != ReferencePass::model)
    out.push_back({"reference_model", "none", "nothing runs it without reference: model"});
  if (t.head == LossHead::reward_pairs && t.lora.rank > 0)
    out.push_back({"lora.rank", "none", "not supported yet: LoRA of a value model"});
  return out;
}

}  // namespace oomplan
