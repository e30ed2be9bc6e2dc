"""Writes models/frameworks/relax.json: the flags that Relax adds to Megatron's and SGLang's, from the table below.

    python models/frameworks/relax_schema.py > models/frameworks/relax.json

Relax has no tags. Four states of its main branch stand for its releases, each named by its month: the one that brought hybrid mode,
one with supervised training, one with adapters, one with preferences. A command without a version means the newest whose layers were
executed, USUAL, unless only a later one has all of its flags. Facts read in relax/utils/arguments.py, relax/utils/opd/opd_utils.py and
relax/backends/sglang/arguments.py of the commits that STATES names; of 2026.09 the flags of distillation in 92106a46, those of
relax/backends/fsdp/arguments.py in 7a346d39.

A row: flag, kind, default, then what is set: n=* (a list), c=a,b (choices), d=name (of the argument), o=flag (another spelling),
s=first-last or s=first (states that have it). Kinds: i a whole number, f a number, s text, j JSON, b Python's truth of a word,
+ a switch that turns on, - one that turns off, ~ one with a --no- form.
"""

from __future__ import annotations

import json
from typing import Any

STATES = {
    "2026.05": "redai-infra/Relax 7f9fcddb",
    "2026.07": "redai-infra/Relax 05149ae1",
    "2026.08": "redai-studio/Relax 02bf712a",
    "2026.09": "redai-studio/Relax de2b2b75",
}
USUAL = "2026.08"
KINDS = {"i": "int", "f": "float", "s": "text", "j": "json", "b": "truth", "+": "on", "-": "off", "~": "toggle"}

FLAGS = """
--resource j
--ref-actor-config j
--only-load-weight +
--fully-async +
--hybrid +
--checkpoint-engine-backend s nccl
--rlsp-server-port i 8234
--rotate-ckpt +
--max-actor-ckpt-to-keep i
--num-data-storage-units i 1
--per-rank-fetch + s=2026.07
--max-staleness i 0
--polling-mode b true
--num-iters-per-train-update i 1
--actor-num-nodes i 1
--actor-num-gpus-per-node i 8
--critic-num-nodes i
--critic-num-gpus-per-node i
--rollout-num-gpus i
--rollout-num-gpus-per-engine i 1
--num-gpus-per-node i 8
--colocate +
--offload +
--offload-train ~
--offload-rollout ~
--train-backend s megatron c=megatron s=2026.05-2026.08
--train-backend s megatron c=megatron,fsdp s=2026.09
--debug-rollout-only +
--debug-train-only +
--load-debug-rollout-data s
--skip-hf-validate +
--qkv-format s thd c=thd,bshd
--true-on-policy-mode +
--train-env-vars j {}
--train-memory-margin-bytes i 1073741824
--selective-offload + s=2026.08
--disable-weights-backuper - d=enable_weights_backuper
--megatron-to-hf-mode s raw c=raw,bridge
--warm-hf-checkpoint-page-cache +
--disable-s3-model-download + s=2026.08
--disable-s3-model-cleanup + s=2026.08
--s3-model-download-workers i 20 s=2026.08
--s3-model-shm-root s /dev/shm s=2026.08
--custom-model-provider-path s
--freeze-language-model +
--freeze-vision-model +
--freeze-vision-projection +
--vit-lr f s=2026.09
--freeze-audio-model + s=2026.07
--freeze-audio-projection + s=2026.07
--vision-dp-when-tp +
--recompute-loss-function +
--recompute-loss-function-use-reentrant ~ true s=2026.07
--log-probs-chunk-size i -1
--sft-logits-chunk-size i 1024 s=2026.07
--sft-chunked-logits ~ false s=2026.07
--only-train-params-name-list s n=*
--freeze-params-name-list s n=*
--allgather-cp +
--preference-chosen-key s chosen s=2026.09
--preference-rejected-key s rejected s=2026.09
--preference-max-length i 1024 s=2026.09
--preference-max-completion-length i 512 s=2026.09
--dpo-beta f 0.1 s=2026.09
--dpo-reference-free ~ false s=2026.09
--custom-dataset-class s d=custom_dataset_class_path o=--custom-dataset-class-path s=2026.07
--eval-size f s=2026.07
--sft-max-in-flight-steps i s=2026.07
--sft-train-data-prefetch + s=2026.09
--sft-async-prepack + s=2026.09
--sft-training-mode s sft c=sft,cpt s=2026.09
--sft-cpt-template s raw c=raw,qwen3_5 s=2026.09
--sft-loss-last-turn-only + s=2026.09
--sft-ignore-empty-think + s=2026.09
--sft-prefetch-buffer-size i 256 s=2026.07
--sft-prefetch-chunk-size i 32 s=2026.07
--sft-prefetch-num-workers i 4 s=2026.07
--sft-oversize-strategy s keep c=skip,keep,truncate_left,truncate_right,custom s=2026.07
--sft-oversize-custom-function-path s s=2026.07
--sft-invalid-multimodal-strategy s error c=error,skip s=2026.08
--sft-tq-timeout-minutes i s=2026.07
--sft-predict-interval i s=2026.07
--no-use-precision-aware-optimizer - d=use_precision_aware_optimizer_off s=2026.08
--no-store-param-remainders - d=store_param_remainders_off s=2026.08
--hf-checkpoint s
--sglang-hf-checkpoint s
--model-name s
--rollout-function-path s relax.engine.rollout.sglang_rollout.generate_rollout
--rollout-temperature f 1.0
--rollout-top-p f 1.0
--rollout-top-k i -1
--rollout-max-context-len i
--rollout-max-prompt-len i
--rollout-max-response-len i
--rollout-skip-special-tokens +
--rollout-stop s n=+
--rollout-stop-token-ids i n=+
--rollout-shuffle +
--rollout-seed i 42
--over-sampling-batch-size i
--dynamic-sampling-filter-path s
--partial-rollout +
--partial-rollout-max-aborted-count i
--mask-offpolicy-in-partial-rollout +
--custom-generate-function-path s
--custom-rollout-log-function-path s
--custom-eval-rollout-log-function-path s
--buffer-filter-path s
--update-weight-buffer-size i 536870912
--colocate-expert-weight-routing + s=2026.09
--update-weights-interval i 1
--keep-old-actor +
--rollout-data-postprocess-path s
--rollout-external +
--rollout-external-engine-addrs s n=+
--use-fault-tolerance +
--use-health-check +
--max-global-restart i 3
--rollout-health-check-interval f 30.0
--rollout-health-check-timeout f 30.0
--rollout-http-timeout f 120.0 s=2026.08
--rollout-health-check-first-wait f 0
--rollout-health-check-max-consecutive-failures i 2
--rollout-engine-init-timeout f 3600.0
--scale-out-timeout f 300.0
--scale-out-partial-success-policy s rollback_all c=rollback_all,keep_partial
--scale-weight-sync-precheck ~ true s=2026.08
--scale-in-drain-timeout f 30.0
--scale-in-shutdown-timeout f 30.0
--use-streaming-dataset +
--streaming-buffer-size i 10000
--prefetch-chunk-size i 32
--prefetch-max-cached i 256
--prefetch-num-workers i 1
--num-rollout i
--num-epoch i
--disable-rollout-global-dataset - d=rollout_global_dataset
--data-source-path s relax.engine.rollout.data_source.RolloutDataSourceWithBuffer
--prompt-data s
--apply-chat-template +
--apply-chat-template-kwargs j {}
--input-key s input
--label-key s
--task-type s causal_lm c=causal_lm,seq_cls s=2026.08
--num-labels i s=2026.08
--problem-type s single_label_classification c=single_label_classification,multi_label_classification s=2026.08
--classification-threshold f 0.5 s=2026.08
--multimodal-keys j
--conversation-key-map j s=2026.07
--use-audio-in-video +
--image-max-token-num i
--image-min-token-num i
--video-min-token-num i
--video-max-token-num i
--video-fps f
--video-fps-min-frames i
--video-fps-max-frames i
--image-resize-scale-factor i
--audio-sample-rate i
--frame-factor i
--mm-processor-pool-size i 0
--encode-max-workers i s=2026.08
--custom-prompt-path s
--metadata-key s metadata
--tool-key s tools
--start-rollout-id i
--rollout-batch-size i
--n-samples-per-prompt i 1
--num-steps-per-rollout i
--balance-data +
--use-dynamic-batch-size +
--max-tokens-per-gpu i
--log-probs-max-tokens-per-gpu i
--system-prompt s
--use-agentic-rollout + s=2026.07
--agent-command s s=2026.07
--agent-cwd s s=2026.07
--agent-timeout f 1800.0 s=2026.07
--agent-env s [] n=+ s=2026.07
--agentic-tool-call-parser s s=2026.07
--agentic-reasoning-parser s s=2026.07
--agentic-prepare-pool-size i s=2026.07-2026.07
--agentic-eval-prepare-pool-size i s=2026.07-2026.07
--agentic-custom-advantage-path s s=2026.08
--agentic-concurrency i s=2026.08
--agentic-eval-concurrency i s=2026.08
--agentic-prelaunch + s=2026.08
--agentic-session-lifecycle + s=2026.08
--agentic-program-admission + s=2026.08
--agentic-admission-headroom f 0.9 s=2026.08
--agentic-admission-expected-decode-cap i s=2026.08
--agentic-admission-pressure-threshold f 0.92 s=2026.08
--agentic-admission-max-wait-s f 30.0 s=2026.08
--agentic-admission-scope s train c=train,all s=2026.08
--eval-function-path s
--eval-prompt-data s n=+
--eval-config s
--skip-eval-before-train +
--eval-input-key s
--eval-label-key s
--eval-tool-key s
--n-samples-per-eval-prompt i 1
--eval-temperature f
--eval-top-p f
--eval-top-k i
--eval-max-response-len i
--eval-max-prompt-len i
--eval-min-new-tokens i
--eval-max-context-len i
--ref-load s
--ref-ckpt-step i
--lora-rank i 0 s=2026.08
--lora-alpha i 32 s=2026.08
--lora-target-modules s ["linear_qkv","linear_proj"] n=+ s=2026.08
--lora-scope s all c=all,language,vision s=2026.08
--lora-dropout f 0.0 s=2026.08
--lora-merge-mode + s=2026.08
--lora-adapter-mode + s=2026.08
--save-lora-only + s=2026.09
--save-hf s
--save-hf-dtype s bf16 c=bf16,fp8 s=2026.08
--save-hf-fp8-quant-mode s block c=block,channel,tensor s=2026.08
--save-hf-fp8-block-size i n=2 s=2026.08
--save-hf-post-hook-path s s=2026.08
--num-critic-only-steps i 0
--critic-load s
--critic-save s
--critic-lr f
--critic-train-only +
--critic-lr-warmup-iters i 0
--eps-clip f 0.2
--eps-clip-high f
--eps-clip-c f
--value-clip f 0.2
--kl-coef f 0.0
--loss-type s policy_loss c=policy_loss,sft_loss,custom_loss s=2026.05-2026.05
--loss-type s policy_loss c=policy_loss,sft,sft_loss,sft-loss,custom_loss s=2026.07-2026.08
--loss-type s policy_loss c=policy_loss,sft,dpo,rm,sft_loss,sft-loss,custom_loss s=2026.09
--custom-loss-function-path s
--kl-loss-type s k1 c=k1,k2,k3,low_var_kl
--advantage-estimator s grpo c=grpo,gspo,reinforce_plus_plus,reinforce_plus_plus_baseline,ppo,sapo s=2026.05-2026.05
--advantage-estimator s grpo c=grpo,gspo,reinforce_plus_plus,reinforce_plus_plus_baseline,ppo,sapo,cispo s=2026.07-2026.07
--advantage-estimator s grpo c=grpo,gspo,reinforce_plus_plus,reinforce_plus_plus_baseline,ppo,sapo,cispo,m2po,rloo s=2026.08
--sapo-tau-pos f 1.0
--sapo-tau-neg f 1.05
--m2po-kl2-budget f 0.01 s=2026.08
--m2po-miniclip-low f 0.3 s=2026.08
--m2po-miniclip-high f 0.5 s=2026.08
--disable-compute-advantages-and-returns - d=compute_advantages_and_returns
--use-kl-loss +
--kl-loss-coef f 0.0
--use-unbiased-kl +
--ref-update-interval i
--entropy-coef f 0.0
--gamma f 1.0
--lambd f 1.0
--normalize-advantages +
--disable-grpo-std-normalization - d=grpo_std_normalization
--disable-rewards-normalization - d=rewards_normalization
--use-rollout-entropy +
--get-mismatch-metrics +
--reset-optimizer-states +
--use-rollout-logprobs +
--use-tis +
--tis-clip f 2.0
--tis-clip-low f 0
--custom-tis-function-path s
--custom-pg-loss-reducer-function-path s
--use-routing-replay +
--use-rollout-routing-replay +
--use-rollout-indexer-replay + s=2026.09
--optimize-routing-replay +
--use-opsm +
--opsm-delta f 0.0001
--use-opd +
--opd-type s c=sglang,megatron
--opd-kl-coef f 1.0
--opd-loss-coef f 0.0 s=2026.07
--opd-only-reward + s=2026.05-2026.05
--opd-only-reward + o=--opd-disable-rl-reward s=2026.07
--opd-teacher-load s
--opd-teacher-ckpt-step i
--opd-teacher-url s s=2026.07
--opd-teacher-key s data_source s=2026.07-2026.08
--opd-teacher-key s s=2026.09
--teacher-hf-checkpoint s s=2026.07
--teacher-num-gpus-per-engine i s=2026.07
--opd-teacher-routes s s=2026.07
--opd-teacher-timeout-s f 30.0
--opd-log-prob-top-k i 0
--opd-kl-type s reverse_kl c=reverse_kl,forward_kl,low_var_kl,jsd s=2026.07
--opd-jsd-alpha f 0.5 s=2026.07
--opd-norm-mode s tail c=tail,norm,trunc s=2026.07
--opd-fkl-entropy-gate + s=2026.09
--opd-fkl-entropy-threshold f 0.8 s=2026.09
--opd-student-eos-token-id i s=2026.09
--opd-teacher-eos-token-id i s=2026.09
--opd-teacher-response-prefix-token-ids i n=* s=2026.09
--opd-log-prob-min-clamp f s=2026.07
--opd-token-selection s student_sampled c=student_sampled,student_topk,teacher_topk,union s=2026.07
--opd-teacher-prompt-key s s=2026.07
--opd-teacher-image-key s s=2026.07
--opd-teacher-video-key s s=2026.07
--opd-teacher-audio-key s s=2026.07
--opd-per-token-clip f s=2026.07
--opd-is-clip f s=2026.07
--use-slime-router +
--slime-router-middleware-paths s n=+
--slime-router-timeout f
--slime-router-max-connections i
--slime-router-health-check-failure-threshold i 3
--slime-router-sticky + s=2026.07
--slime-router-sticky-idle-secs f 600.0 s=2026.07
--use-wandb +
--wandb-mode s c=online,offline,disabled
--wandb-dir s
--wandb-key s
--wandb-host s
--wandb-team s
--wandb-group s
--disable-wandb-random-suffix - d=wandb_random_suffix
--wandb-always-use-train-step +
--log-multi-turn +
--log-passrate +
--log-reward-category s
--log-correct-samples + s=2026.05-2026.07
--wandb-run-id s
--use-tensorboard + s=2026.05-2026.05
--use-tensorboard ~ true s=2026.07
--tb-project-name s
--tb-experiment-name s
--use-clearml +
--notify-urls s
--use-metrics-service ~ true
--timeline-dump-dir s
--save-debug-rollout-data s
--load-forge-rollout-data s s=2026.08
--load-debug-rollout-data-subsample f
--save-debug-train-data s
--dump-details s
--rollout-result-dir s
--memory-snapshot-dir s
--memory-snapshot-num-steps i
--profile-target s ["train_overall"] n=+ c=train_overall,train_actor,train_log_probs
--profile-with-stack +
--profile-with-memory +
--profile-with-flops +
--memory-recorder s torch c=torch,memray
--check-weight-update-equal +
--enable-cuda-memory-check +
--http-proxy s
--use-distributed-post +
--rm-type s
--rm-type-fallback s zero s=2026.07-2026.07
--rm-type-fallback s s=2026.08
--rm-type-infer + s=2026.08
--reward-key s
--eval-reward-key s
--group-rm +
--rm-url s
--custom-rm-path s
--custom-reward-post-process-path s
--defer-reward-to-post-process + s=2026.07
--custom-convert-samples-to-train-data-path s
--reward-max-concurrency i 64
--reward-num-workers i 16
--genrm-model-path s
--genrm-num-gpus i 1
--genrm-num-gpus-per-engine i 1
--genrm-engine-config j
--genrm-sampling-config j
--genrm-instances j s=2026.09
--rollout-buffer-url s
--fetch-trajectory-retry-times i -1
--min-batch-collection-ratio f 1
--rollout-task-type s math
--loss-mask-type s qwen c=qwen,qwen3,distill_qwen
--data-pad-size-multiplier i 128
--rollout-sample-filter-path s
--rollout-all-samples-process-path s
--disable-rollout-trim-samples +
--use-dynamic-global-batch-size +
--enable-mtp-training +
--mtp-detach-paths s ["embedding","backbone","lm-head"] n=+ c=embedding,backbone,lm-head,none s=2026.08
--mtp-only-training + s=2026.08
--ci-test +
--ci-disable-kl-checker +
--ci-save-grad-norm s
--ci-load-grad-norm s
--autoscaler-config s
--enable-affinity ~ true s=2026.08
--custom-megatron-init-path s
--custom-megatron-before-log-prob-hook-path s
--custom-megatron-before-train-step-hook-path s
--custom-config-path s
--normalize-bbox ~ true
--sglang-router-ip s
--sglang-router-port i
--sglang-router-policy s
--sglang-router-request-timeout-secs i 14400
--sglang-server-concurrency i 512
--sglang-profile +
--sglang-profile-output-dir s
--sglang-profile-num-steps i 3
--sglang-profile-activities s ["CPU","GPU"] n=+
--sglang-profile-by-stage +
--sglang-profile-with-stack +
--sglang-profile-record-shapes +
--sglang-profile-steps i n=+
--sglang-profile-step-start i
--sglang-profile-step-end i
--prefill-num-servers i
--sglang-config s
--dynamic-context-parallel +
--linear-cp-mode s headwise c=headwise,chunkwise,all_gather s=2026.09
--fsdp-trainable-mode s full c=full,lora s=2026.09
--fsdp-trainable-attr s transformer s=2026.09
--fsdp-param-dtype s bf16 c=bf16,fp32 s=2026.09
--fsdp-reduce-dtype s fp32 c=bf16,fp32 s=2026.09
--fsdp-master-dtype s c=fp32,bf16 s=2026.09
--no-fsdp-reshard-after-forward - d=fsdp_reshard_after_forward s=2026.09
--fsdp-activation-checkpointing + s=2026.09
--fsdp-cpu-offload + s=2026.09
--fsdp-debug-fingerprint + s=2026.09
--fsdp-load-wave-size i 0 s=2026.09
--fsdp-lr-scheduler s constant c=constant,linear,cosine s=2026.09
--num-updates-per-batch i 1 s=2026.09
--generation-task s c=t2i s=2026.09
--model-path s s=2026.09
--model-revision s s=2026.09
--model-adapter-path s s=2026.09
--rollout-engine-class-path s s=2026.09
--artifact-root s s=2026.09
--artifact-retention-rollouts i 2 s=2026.09
--sampling-config j s=2026.09
--generation-seed i 1234 s=2026.09
--reward-runtime s cpu c=colocate,cpu,remote s=2026.09
--reward-scorer-path s s=2026.09
--reward-model-path s s=2026.09
--reward-required-components j s=2026.09
--reward-component-weights j s=2026.09
--reward-endpoint s s=2026.09
--generative-advantage-std-mode s c=group,batch,none s=2026.09
--weight-sync-mode s full c=full,adapter s=2026.09
--weight-sync-wire-dtype s bf16 c=bf16 s=2026.09
--weight-sync-bucket-size-mb i 512 s=2026.09
"""


def default_of(kind: str, text: str | None) -> Any:
    if text is None:
        return {"+": False, "-": True}.get(kind)
    if text[0] in "[{" or kind in "ifb~":
        value = json.loads(text)
        return json.dumps(value) if kind == "j" else value
    return text


def row_of(line: str) -> dict[str, Any]:
    flag, kind, *rest = line.split(" ")
    text = next((word for word in rest if word[1:2] != "="), None)
    said = {word[0]: word[2:] for word in rest if word[1:2] == "="}
    names = list(STATES)
    first, _, last = said.get("s", names[0]).partition("-")
    spellings = [flag, *([said["o"]] if "o" in said else []), *(["--no-" + flag[2:]] if kind == "~" else [])]
    row: dict[str, Any] = {"first": first, "last": last or names[-1], "flags": spellings}
    row |= {"dest": said.get("d", flag[2:].replace("-", "_")), "type": KINDS[kind]}
    if "n" in said:
        row["nargs"] = said["n"]
    if "c" in said:
        row["choices"] = said["c"].split(",")
    if (value := default_of(kind, text)) is not None:
        row["default"] = value
    return row


def main() -> None:
    rows = [row_of(line) for line in FLAGS.strip().splitlines()]
    names = list(STATES)
    assert all(row["first"] in names and row["last"] in names for row in rows)
    source = "relax/utils/arguments.py: " + ", ".join(f"{name}: {commit}" for name, commit in STATES.items())
    body = ",\n  ".join(json.dumps(row, ensure_ascii=False) for row in rows)
    print(f'{{"source": {json.dumps(source)},\n "releases": {json.dumps(names)}, "usual": "{USUAL}",\n "flags": [\n  {body}\n]}}')


if __name__ == "__main__":
    main()
