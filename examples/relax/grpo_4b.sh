#!/bin/bash
# GRPO of Qwen3-4B with Relax on one machine with 8 GPUs: trainer and servers take turns on all of them.
set -ex

RESOURCE=${RESOURCE:-'{"actor": [1, 8], "rollout": [1, 8]}'}

MODEL_ARGS=(
   --swiglu
   --num-layers 36
   --hidden-size 2560
   --ffn-hidden-size 9728
   --num-attention-heads 32
   --group-query-attention
   --num-query-groups 8
   --kv-channels 128
   --qk-layernorm
   --normalization RMSNorm
   --norm-epsilon 1e-6
   --disable-bias-linear
   --use-rotary-position-embeddings
   --rotary-base 1000000
   --vocab-size 151936
)
CKPT_ARGS=(
   --hf-checkpoint Qwen/Qwen3-4B
   --ref-load checkpoints/Qwen3-4B
   --megatron-to-hf-mode bridge
)
ROLLOUT_ARGS=(
   --prompt-data data/train.jsonl
   --num-rollout 1000
   --rollout-batch-size 32
   --n-samples-per-prompt 8
   --rollout-max-prompt-len 1024
   --rollout-max-response-len 8192
   --global-batch-size 256
)
PERF_ARGS=(
   --tensor-model-parallel-size 2
   --sequence-parallel
   --recompute-granularity full
   --recompute-method uniform
   --recompute-num-layers 1
   --use-dynamic-batch-size
   --max-tokens-per-gpu 9216
   # --log-probs-max-tokens-per-gpu 18432
)
GRPO_ARGS=(
   --advantage-estimator grpo
   --use-kl-loss
   --kl-loss-coef 0.001
   # --entropy-coef 0.001
)
SGLANG_ARGS=(
   --rollout-num-gpus-per-engine 2
   --sglang-mem-fraction-static 0.7
)
MISC_ARGS=(
   --attention-dropout 0.0
   --hidden-dropout 0.0
   --attention-backend flash
   --lr 1e-6
)

ray job submit --address=http://127.0.0.1:8265 -- python3 -m relax.entrypoints.train \
   --resource "${RESOURCE}" \
   --colocate \
   ${MODEL_ARGS[@]} \
   ${CKPT_ARGS[@]} \
   ${ROLLOUT_ARGS[@]} \
   ${PERF_ARGS[@]} \
   ${GRPO_ARGS[@]} \
   ${SGLANG_ARGS[@]} \
   ${MISC_ARGS[@]} \
   "$@"
