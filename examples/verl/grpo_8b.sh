#!/bin/bash
# GRPO of Qwen3-8B with verl 0.8 on one machine with 8 GPUs: actor, reference and vLLM take turns on all of them.
set -xeuo pipefail

MODEL=${MODEL:-Qwen/Qwen3-8B}
MAX_PROMPT=1024
MAX_RESPONSE=${MAX_RESPONSE:-4096}

python3 -m verl.trainer.main_ppo \
    algorithm.adv_estimator=grpo \
    data.train_files=data/train.parquet \
    data.val_files=data/test.parquet \
    data.train_batch_size=256 \
    data.max_prompt_length=${MAX_PROMPT} \
    data.max_response_length=${MAX_RESPONSE} \
    actor_rollout_ref.model.path="${MODEL}" \
    actor_rollout_ref.actor.strategy=fsdp2 \
    actor_rollout_ref.actor.ppo_mini_batch_size=64 \
    actor_rollout_ref.actor.use_dynamic_bsz=True \
    actor_rollout_ref.actor.ppo_max_token_len_per_gpu=$(( 3 * (MAX_PROMPT + MAX_RESPONSE) )) \
    actor_rollout_ref.actor.use_kl_loss=True \
    actor_rollout_ref.actor.fsdp_config.param_offload=True \
    actor_rollout_ref.actor.fsdp_config.optimizer_offload=True \
    actor_rollout_ref.ref.log_prob_use_dynamic_bsz=True \
    actor_rollout_ref.rollout.name=vllm \
    actor_rollout_ref.rollout.n=8 \
    actor_rollout_ref.rollout.tensor_model_parallel_size=2 \
    actor_rollout_ref.rollout.gpu_memory_utilization=0.8 \
    actor_rollout_ref.rollout.log_prob_use_dynamic_bsz=True \
    trainer.n_gpus_per_node=8 \
    trainer.nnodes=1 \
    "$@"
