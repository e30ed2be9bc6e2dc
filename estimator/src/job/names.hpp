// Spellings of every enum of a Job: printing, parsing and the lists in error messages come from these rows.
#pragma once
#include <oomplan/job.hpp>

#include "units/enums.hpp"

namespace oomplan {

template <>
inline constexpr std::array<std::pair<JobKind, std::string_view>, 3> kNames<JobKind>{
    {{JobKind::rl, "rl"}, {JobKind::sft, "sft"}, {JobKind::serving, "serving"}}};

/// Also the keys of the roles in a job file.
template <>
inline constexpr std::array<std::pair<RoleKind, std::string_view>, 9> kNames<RoleKind>{{{RoleKind::rollout, "rollout"},
                                                                                        {RoleKind::actor, "actor"},
                                                                                        {RoleKind::reference, "ref"},
                                                                                        {RoleKind::critic, "critic"},
                                                                                        {RoleKind::reward, "reward"},
                                                                                        {RoleKind::teacher, "teacher"},
                                                                                        {RoleKind::trainer, "trainer"},
                                                                                        {RoleKind::server, "server"},
                                                                                        {RoleKind::generator, "generator"}}};

template <>
inline constexpr std::array<std::pair<EngineKind, std::string_view>, 9> kNames<EngineKind>{{{EngineKind::fsdp2, "fsdp2"},
                                                                                            {EngineKind::single, "single"},
                                                                                            {EngineKind::sglang, "sglang"},
                                                                                            {EngineKind::vllm, "vllm"},
                                                                                            {EngineKind::fsdp1, "fsdp1"},
                                                                                            {EngineKind::ddp, "ddp"},
                                                                                            {EngineKind::deepspeed, "deepspeed"},
                                                                                            {EngineKind::megatron, "megatron"},
                                                                                            {EngineKind::archon, "archon"}}};

template <>
inline constexpr std::array<std::pair<Framework, std::string_view>, 6> kNames<Framework>{{{Framework::areal, "areal"},
                                                                                          {Framework::verl, "verl"},
                                                                                          {Framework::agilerl, "agilerl"},
                                                                                          {Framework::torch, "torch"},
                                                                                          {Framework::slime, "slime"},
                                                                                          {Framework::relax, "relax"}}};

template <>
inline constexpr std::array<std::pair<Kernels, std::string_view>, 10> kNames<Kernels>{
    {{Kernels::hf_flash, "hf_flash"},
     {Kernels::hf_sdpa, "hf_sdpa"},
     {Kernels::hf_eager, "hf_eager"},
     {Kernels::torchtitan, "torchtitan"},
     {Kernels::litgpt, "litgpt"},
     {Kernels::litgpt_0_4_5, "litgpt_0_4_5"},
     {Kernels::transformer_engine, "transformer_engine"},
     {Kernels::torchtune, "torchtune"},
     {Kernels::torchtune_packed, "torchtune_packed"},
     {Kernels::archon, "archon"}}};

template <>
inline constexpr std::array<std::pair<TeAttention, std::string_view>, 4> kNames<TeAttention>{{{TeAttention::fused, "fused"},
                                                                                              {TeAttention::flash, "flash"},
                                                                                              {TeAttention::unfused, "unfused"},
                                                                                              {TeAttention::local, "local"}}};

template <>
inline constexpr std::array<std::pair<RecomputeMethod, std::string_view>, 2> kNames<RecomputeMethod>{
    {{RecomputeMethod::uniform, "uniform"}, {RecomputeMethod::block, "block"}}};

template <>
inline constexpr std::array<std::pair<TeRelease, std::string_view>, 3> kNames<TeRelease>{
    {{TeRelease::v2_9, "2.9"}, {TeRelease::v2_11, "2.11"}, {TeRelease::v2_14, "2.14"}}};

template <>
inline constexpr std::array<std::pair<ModelMaker, std::string_view>, 3> kNames<ModelMaker>{
    {{ModelMaker::mbridge, "mbridge"}, {ModelMaker::megatron_bridge, "megatron-bridge"}, {ModelMaker::verl, "verl"}}};

template <>
inline constexpr std::array<std::pair<CoreRelease, std::string_view>, 2> kNames<CoreRelease>{
    {{CoreRelease::v0_12, "0.12"}, {CoreRelease::v0_16, "0.16"}}};

template <>
inline constexpr std::array<std::pair<TransformerImpl, std::string_view>, 2> kNames<TransformerImpl>{
    {{TransformerImpl::transformer_engine, "transformer_engine"}, {TransformerImpl::local, "local"}}};

template <>
inline constexpr std::array<std::pair<Fp8Recipe, std::string_view>, 5> kNames<Fp8Recipe>{{{Fp8Recipe::none, "none"},
                                                                                          {Fp8Recipe::delayed, "delayed"},
                                                                                          {Fp8Recipe::tensorwise, "tensorwise"},
                                                                                          {Fp8Recipe::blockwise, "blockwise"},
                                                                                          {Fp8Recipe::mxfp8, "mxfp8"}}};

template <>
inline constexpr std::array<std::pair<MegatronFsdpStrategy, std::string_view>, 5> kNames<MegatronFsdpStrategy>{
    {{MegatronFsdpStrategy::off, "off"},
     {MegatronFsdpStrategy::no_shard, "no_shard"},
     {MegatronFsdpStrategy::optim, "optim"},
     {MegatronFsdpStrategy::optim_grads, "optim_grads"},
     {MegatronFsdpStrategy::optim_grads_params, "optim_grads_params"}}};
template <>
inline constexpr std::array<std::pair<ExpertExchange, std::string_view>, 4> kNames<ExpertExchange>{
    {{ExpertExchange::collectives, "collectives"},
     {ExpertExchange::deepep, "deepep"},
     {ExpertExchange::deepep_normal, "deepep_normal"},
     {ExpertExchange::deepep_low_latency, "deepep_low_latency"}}};
template <>
inline constexpr std::array<std::pair<TokenDispatcher, std::string_view>, 3> kNames<TokenDispatcher>{
    {{TokenDispatcher::alltoall, "alltoall"}, {TokenDispatcher::allgather, "allgather"}, {TokenDispatcher::flex, "flex"}}};

template <>
inline constexpr std::array<std::pair<MegatronLoss, std::string_view>, 11> kNames<MegatronLoss>{
    {{MegatronLoss::te, "te"},
     {MegatronLoss::native, "native"},
     {MegatronLoss::unfused, "unfused"},
     {MegatronLoss::slime, "slime"},
     {MegatronLoss::slime_whole, "slime_whole"},
     {MegatronLoss::slime_samples, "slime_samples"},
     {MegatronLoss::slime_sliced, "slime_sliced"},
     {MegatronLoss::slime_divided, "slime_divided"},
     {MegatronLoss::areal_whole, "areal_whole"},
     {MegatronLoss::verl_fused, "verl_fused"},
     {MegatronLoss::verl_undivided, "verl_undivided"}}};

template <>
inline constexpr std::array<std::pair<ContextExchange, std::string_view>, 2> kNames<ContextExchange>{
    {{ContextExchange::p2p, "p2p"}, {ContextExchange::a2a, "a2a"}}};

template <>
inline constexpr std::array<std::pair<Recompute, std::string_view>, 3> kNames<Recompute>{
    {{Recompute::none, "none"}, {Recompute::full, "full"}, {Recompute::selective, "selective"}}};

template <>
inline constexpr std::array<std::pair<OffloadActivations, std::string_view>, 7> kNames<OffloadActivations>{
    {{OffloadActivations::none, "none"},
     {OffloadActivations::verl, "verl"},
     {OffloadActivations::save_on_cpu, "save_on_cpu"},
     {OffloadActivations::save_on_cpu_pinned, "save_on_cpu_pinned"},
     {OffloadActivations::offload_wrapper, "offload_wrapper"},
     {OffloadActivations::trl, "trl"},
     {OffloadActivations::torchtune, "torchtune"}}};

template <>
inline constexpr std::array<std::pair<RmsNorm, std::string_view>, 2> kNames<RmsNorm>{
    {{RmsNorm::fused, "fused"}, {RmsNorm::by_hand, "by_hand"}}};

template <>
inline constexpr std::array<std::pair<Float8, std::string_view>, 4> kNames<Float8>{
    {{Float8::none, "none"}, {Float8::tensorwise, "tensorwise"}, {Float8::rowwise, "rowwise"}, {Float8::blockwise, "blockwise"}}};

template <>
inline constexpr std::array<std::pair<Experts, std::string_view>, 4> kNames<Experts>{{{Experts::automatic, "auto"},
                                                                                      {Experts::grouped_mm, "grouped_mm"},
                                                                                      {Experts::batched_mm, "batched_mm"},
                                                                                      {Experts::eager, "eager"}}};

template <>
inline constexpr std::array<std::pair<LinearAttention, std::string_view>, 3> kNames<LinearAttention>{
    {{LinearAttention::torch, "torch"}, {LinearAttention::fla, "fla"}, {LinearAttention::fla_conv, "fla_conv"}}};

template <>
inline constexpr std::array<std::pair<OptimizerKind, std::string_view>, 15> kNames<OptimizerKind>{
    {{OptimizerKind::adamw, "adamw"},
     {OptimizerKind::adam, "adam"},
     {OptimizerKind::sgd, "sgd"},
     {OptimizerKind::sgd_momentum, "sgd_momentum"},
     {OptimizerKind::adafactor, "adafactor"},
     {OptimizerKind::torch_adafactor, "torch_adafactor"},
     {OptimizerKind::muon, "muon"},
     {OptimizerKind::apollo_adamw, "apollo_adamw"},
     {OptimizerKind::adamw_8bit, "adamw_8bit"},
     {OptimizerKind::paged_adamw_8bit, "paged_adamw_8bit"},
     {OptimizerKind::paged_adamw_32bit, "paged_adamw_32bit"},
     {OptimizerKind::lion_32bit, "lion_32bit"},
     {OptimizerKind::lion_8bit, "lion_8bit"},
     {OptimizerKind::paged_lion_32bit, "paged_lion_32bit"},
     {OptimizerKind::paged_lion_8bit, "paged_lion_8bit"}}};

template <>
inline constexpr std::array<std::pair<OptimizerForm, std::string_view>, 3> kNames<OptimizerForm>{
    {{OptimizerForm::foreach, "foreach"}, {OptimizerForm::fused, "fused"}, {OptimizerForm::loop, "loop"}}};

template <>
inline constexpr std::array<std::pair<BackwardPrefetch, std::string_view>, 3> kNames<BackwardPrefetch>{
    {{BackwardPrefetch::pre, "pre"}, {BackwardPrefetch::post, "post"}, {BackwardPrefetch::none, "none"}}};

template <>
inline constexpr std::array<std::pair<AdapterKind, std::string_view>, 5> kNames<AdapterKind>{
    {{AdapterKind::lora, "lora"},
     {AdapterKind::vera, "vera"},
     {AdapterKind::ia3, "ia3"},
     {AdapterKind::adapter, "adapter"},
     {AdapterKind::adapter_v2, "adapter_v2"}}};
template <>
inline constexpr std::array<std::pair<AdapterFormat, std::string_view>, 2> kNames<AdapterFormat>{
    {{AdapterFormat::fp32, "fp32"}, {AdapterFormat::storage, "storage"}}};
template <>
inline constexpr std::array<std::pair<AdapterScope, std::string_view>, 2> kNames<AdapterScope>{
    {{AdapterScope::all, "all"}, {AdapterScope::language, "language"}}};

template <>
inline constexpr std::array<std::pair<OnlineFormat, std::string_view>, 6> kNames<OnlineFormat>{
    {{OnlineFormat::none, "none"},
     {OnlineFormat::fp8_per_block, "fp8_per_block"},
     {OnlineFormat::fp8_per_channel, "fp8_per_channel"},
     {OnlineFormat::mxfp8, "mxfp8"},
     {OnlineFormat::experts_int8, "experts_int8"},
     {OnlineFormat::bitsandbytes, "bitsandbytes"}}};

template <>
inline constexpr std::array<std::pair<DraftMethod, std::string_view>, 4> kNames<DraftMethod>{
    {{DraftMethod::auto_, "auto"}, {DraftMethod::mtp, "mtp"}, {DraftMethod::eagle, "eagle"}, {DraftMethod::eagle3, "eagle3"}}};

template <>
inline constexpr std::array<std::pair<BaseFormat, std::string_view>, 5> kNames<BaseFormat>{{{BaseFormat::full, "full"},
                                                                                            {BaseFormat::nf4, "nf4"},
                                                                                            {BaseFormat::fp4, "fp4"},
                                                                                            {BaseFormat::int8, "int8"},
                                                                                            {BaseFormat::gptq, "gptq"}}};

template <>
inline constexpr std::array<std::pair<LossHead, std::string_view>, 56> kNames<LossHead>{
    {{LossHead::hf_loss, "hf_loss"},
     {LossHead::logprob_fp32, "logprob_fp32"},
     {LossHead::logprob_bf16, "logprob_bf16"},
     {LossHead::logprob_lse, "logprob_lse"},
     {LossHead::logprob_rows, "logprob_rows"},
     {LossHead::logprob_chunked, "logprob_chunked"},
     {LossHead::logprob_entropy_fp32, "logprob_entropy_fp32"},
     {LossHead::logprob_entropy_nograd, "logprob_entropy_nograd"},
     {LossHead::logprob_temperature, "logprob_temperature"},
     {LossHead::verl_flash_ce, "verl_flash_ce"},
     {LossHead::verl_entropy_compiled, "verl_entropy_compiled"},
     {LossHead::verl_entropy_eager, "verl_entropy_eager"},
     {LossHead::verl_entropy_checkpoint, "verl_entropy_checkpoint"},
     {LossHead::verl_entropy_chunked, "verl_entropy_chunked"},
     {LossHead::verl_entropy_chunked_checkpoint, "verl_entropy_chunked_checkpoint"},
     {LossHead::verl_flash_ce_div_in_place, "verl_flash_ce_div_in_place"},
     {LossHead::verl_entropy_eager_div_in_place, "verl_entropy_eager_div_in_place"},
     {LossHead::verl_fp32_flash_ce, "verl_fp32_flash_ce"},
     {LossHead::verl_fp32_entropy_eager, "verl_fp32_entropy_eager"},
     {LossHead::verl_fused, "verl_fused"},
     {LossHead::verl_fused_entropy, "verl_fused_entropy"},
     {LossHead::verl_fused_log_softmax, "verl_fused_log_softmax"},
     {LossHead::verl_fused_log_softmax_entropy, "verl_fused_log_softmax_entropy"},
     {LossHead::verl_fused_triton, "verl_fused_triton"},
     {LossHead::verl_fused_triton_entropy, "verl_fused_triton_entropy"},
     {LossHead::verl_rows, "verl_rows"},
     {LossHead::areal_compiled, "areal_compiled"},
     {LossHead::areal_eager, "areal_eager"},
     {LossHead::areal_clamped, "areal_clamped"},
     {LossHead::agilerl_fused, "agilerl_fused"},
     {LossHead::cross_entropy, "cross_entropy"},
     {LossHead::cross_entropy_chunked, "cross_entropy_chunked"},
     {LossHead::cross_entropy_compiled, "cross_entropy_compiled"},
     {LossHead::value, "value"},
     {LossHead::liger_ce, "liger_ce"},
     {LossHead::liger_fused_ce, "liger_fused_ce"},
     {LossHead::litgpt, "litgpt"},
     {LossHead::torchtune, "torchtune"},
     {LossHead::torchtune_chunked, "torchtune_chunked"},
     {LossHead::foak_ce, "foak_ce"},
     {LossHead::trl_dpo, "trl_dpo"},
     {LossHead::trl_simpo, "trl_simpo"},
     {LossHead::trl_orpo, "trl_orpo"},
     {LossHead::trl_grpo, "trl_grpo"},
     {LossHead::trl_kto, "trl_kto"},
     {LossHead::trl_dpo_0_18, "trl_dpo_0_18"},
     {LossHead::trl_dpo_0_29, "trl_dpo_0_29"},
     {LossHead::trl_kto_0_18, "trl_kto_0_18"},
     {LossHead::trl_grpo_1_0, "trl_grpo_1_0"},
     {LossHead::trl_gkd, "trl_gkd"},
     {LossHead::trl_sft, "trl_sft"},
     {LossHead::trl_sft_1_3, "trl_sft_1_3"},
     {LossHead::reward_pairs, "reward_pairs"},
     {LossHead::slime_fsdp, "slime_fsdp"},
     {LossHead::next_token, "next_token"},
     {LossHead::lm_eval, "lm_eval"}}};

template <>
inline constexpr std::array<std::pair<ReferencePass, std::string_view>, 3> kNames<ReferencePass>{
    {{ReferencePass::none, "none"}, {ReferencePass::model, "model"}, {ReferencePass::adapters_off, "adapters_off"}}};
template <>
inline constexpr std::array<std::pair<ZeroLoad, std::string_view>, 3> kNames<ZeroLoad>{
    {{ZeroLoad::split, "split"}, {ZeroLoad::whole, "whole"}, {ZeroLoad::whole_fp32, "whole_fp32"}}};

template <>
inline constexpr std::array<std::pair<TowerTraining, std::string_view>, 3> kNames<TowerTraining>{
    {{TowerTraining::all, "all"}, {TowerTraining::projector, "projector"}, {TowerTraining::none, "none"}}};

template <>
inline constexpr std::array<std::pair<SyncBy, std::string_view>, 4> kNames<SyncBy>{
    {{SyncBy::none, "none"}, {SyncBy::nccl, "nccl"}, {SyncBy::disk, "disk"}, {SyncBy::ipc, "ipc"}}};

template <>
inline constexpr std::array<std::pair<Effect, std::string_view>, 4> kNames<Effect>{
    {{Effect::free, "free"}, {Effect::speed, "speed"}, {Effect::numerics, "numerics"}, {Effect::semantics, "semantics"}}};

template <>
inline constexpr std::array<std::pair<Origin::Kind, std::string_view>, 4> kNames<Origin::Kind>{
    {{Origin::Kind::file, "file"},
     {Origin::Kind::override_, "override"},
     {Origin::Kind::default_, "default"},
     {Origin::Kind::derived, "derived"}}};

/// Formats that a tensor of a training or serving role can have; the first spelling is ours, the second PyTorch's.
template <>
inline constexpr std::array<std::pair<DType, std::string_view>, 11> kNames<DType>{{{DType::bf16, "bf16"},
                                                                                   {DType::fp32, "fp32"},
                                                                                   {DType::fp16, "fp16"},
                                                                                   {DType::fp64, "fp64"},
                                                                                   {DType::fp8, "fp8"},
                                                                                   {DType::nvfp4, "nvfp4"},
                                                                                   {DType::mxfp4, "mxfp4"},
                                                                                   {DType::bf16, "bfloat16"},
                                                                                   {DType::fp32, "float32"},
                                                                                   {DType::fp16, "float16"},
                                                                                   {DType::fp64, "float64"}}};

}  // namespace oomplan
