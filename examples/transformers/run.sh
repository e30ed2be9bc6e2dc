#!/bin/bash
#SBATCH --nodes=2
#SBATCH --gpus-per-node=8
# Continued pretraining of Qwen2.5 7B by Transformers' own script, ZeRO stage 3 on two nodes.
export OMP_NUM_THREADS=8
BATCH=${BATCH:-2}

srun torchrun --nnodes=2 --nproc_per_node=8 run_clm.py \
    --model_name_or_path Qwen/Qwen2.5-7B \
    --dataset_name wikitext \
    --block_size 4096 \
    --do_train \
    --bf16 \
    --torch_dtype bfloat16 \
    --per_device_train_batch_size $BATCH \
    --gradient_accumulation_steps 1 \
    --gradient_checkpointing \
    --deepspeed zero3.json \
    --output_dir out
