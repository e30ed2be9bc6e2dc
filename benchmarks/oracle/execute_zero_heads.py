"""Makes tests/data/executed_zero_heads.jsonl: TRL's losses under DeepSpeed's ZeRO, executed by DeepSpeed itself.

    python benchmarks/oracle/execute_zero_heads.py TRL [--output tests/data/executed_zero_heads.jsonl]

TRL is the folder `trl` of its release 1.12.0, whose own loss functions run (trl_code.py). The engine is that of execute_zero.py, and
so is what is judged: the third step, computed on the CPU. A second model is the reference as TRL's `prepare_deepspeed` makes it
(trl/models/utils.py): an engine of its own without an optimizer, in stage 3 where the policy is, in stage 0 elsewhere. With adapters
the policy without them is the reference. Needs peft. Every run has a process of its own. Lines are those of execute.py.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from execute_zero import LLAMA as WIDE
from execute_zero import RANKS, ROOT, SMALL, SPELLINGS, Row, stand_in, third_step, trainer_of
from fuzz_zero import fullest
from row_lines import write_rows

RANK = 16
ADAPTED = ("adapters_off", "model-lora", "none-lora", "none-few")
FEW = ["q_proj", "v_proj"]
CONFIGS: dict[str, Row] = {"llama": WIDE, "narrow": {**WIDE, "vocab_size": 256}}
STAGES: dict[str, Row] = {
    "1": {"stage": 1, "reduce_bucket": 2_500_000},
    "2": {"stage": 2, "reduce_bucket": 2_500_000},
    "2/overlap_comm": {"stage": 2, "reduce_bucket": 2_500_000, "overlap_comm": True},
    "3": {"stage": 3, **SMALL},
    "3/one by one": {"stage": 3, **SMALL, "prefetch_bucket": 0, "max_reuse_distance": 0},
}
HEADS = ("trl_dpo", "trl_kto", "trl_simpo", "trl_orpo", "trl_grpo", "reward_pairs")
# head, config, stage, checkpointing, reference, micro-batches
Case = tuple[str, str, str, str, str, int]
CASES: list[Case] = [
    *((head, "llama", stage, "none", "none", 1) for head in HEADS for stage in ("1", "2", "3")),
    *((head, "narrow", "3", "none", "none", 1) for head in HEADS if head != "trl_kto"),
    *((head, config, "3", "none", "model", 1) for head in ("trl_dpo", "trl_kto") for config in CONFIGS),
    *((head, "narrow", stage, "none", "model", 1) for head in ("trl_dpo", "trl_kto") for stage in ("1", "2")),
    *(("trl_dpo", "narrow", stage, "none", "model", n) for stage, n in (("2/overlap_comm", 2), ("3", 2), ("3/one by one", 1))),
    *(("trl_dpo", config, "2", how, "adapters_off", 1) for config in CONFIGS for how in ("none", "reentrant")),
    ("trl_kto", "narrow", "2", "none", "adapters_off", 1),
    *(("trl_dpo", "narrow", stage, "none", how, 1) for stage in ("2", "3") for how in ("model-lora", "none-lora")),
    *(("trl_dpo", "llama", "3", "none", how, 1) for how in ("model-lora", "none-lora")),
    *(("trl_dpo", config, stage, "none", "none-few", 1) for config in CONFIGS for stage in ("2", "3")),
    *((head, "llama", "3", "none", "adapters_off", 1) for head in ("trl_dpo", "trl_kto")),
    *(
        ("trl_dpo", "narrow", stage, mode, how, 1)
        for stage in ("3", "3/one by one")
        for mode in ("reentrant", "nonreentrant")
        for how in ("none-lora", "none-few")
    ),
    ("trl_simpo", "narrow", "3", "nonreentrant", "none-lora", 1),
]
SEQUENCES, TOKENS = 4, 256


def config_of(zero: Row, micro_batches: int) -> Row:
    return {
        "train_micro_batch_size_per_gpu": SEQUENCES,
        "gradient_accumulation_steps": micro_batches,
        "bf16": {"enabled": True},
        "zero_allow_untested_optimizer": True,
        "zero_optimization": {SPELLINGS[key]: value for key, value in zero.items()},
    }


def make(head: str, fields: Row, checkpointing: str) -> Any:
    import torch
    import transformers

    settings = transformers.AutoConfig.for_model(
        fields["model_type"], **{key: value for key, value in fields.items() if key != "model_type"}
    )
    settings.use_cache, settings.pad_token_id = False, 0
    kind: Any = transformers.AutoModelForCausalLM
    if head == "reward_pairs":
        settings.num_labels = 1
        kind = transformers.AutoModelForSequenceClassification
    model = kind.from_config(settings, dtype=torch.bfloat16, attn_implementation="executed")
    model.train()
    if checkpointing != "none":
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": checkpointing == "reentrant"})
    return model


def execute(trl: Path, case: Case) -> Row:
    import deepspeed
    import peft
    import torch
    import trl_code
    from execute_parallel import attend
    from execute_preference import Lives, settings_of, step

    head, config, stage, checkpointing, reference, micro_batches = case
    zero, fields = STAGES[stage], CONFIGS[config]
    stand_in(attend)
    policy = make(head, fields, checkpointing)
    other = make(head, fields, "none") if reference.startswith("model") else None
    if reference in ADAPTED:
        if checkpointing != "none":
            policy.enable_input_require_grads()
        targets = FEW if reference == "none-few" else "all-linear"
        adapters = peft.LoraConfig(task_type="CAUSAL_LM", r=RANK, target_modules=targets)
        policy = peft.get_peft_model(policy, adapters, autocast_adapter_dtype=False)
    asked = config_of(zero, micro_batches)
    trained = [parameter for parameter in policy.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-5, foreach=True)
    engine = deepspeed.initialize(model=policy, optimizer=optimizer, config=asked, dist_init_required=False)[0]
    if other is not None:
        own = config_of(zero | {"stage": 3 if zero["stage"] == 3 else 0}, micro_batches)
        other = deepspeed.initialize(model=other, config=own, dist_init_required=False)[0]
        other.eval()
    made = trl_code.trainer(trl, head, lambda m: hasattr(getattr(m, "module", m), "peft_config"))
    made.accelerator.unwrap_model = lambda model: getattr(model, "module", model)
    settings_of(made, head, TOKENS - 1)
    made.model, made.ref_model = policy, other
    made.precompute_ref_logps = reference.startswith("none")
    made.args.gradient_checkpointing_kwargs = {"use_reentrant": checkpointing == "reentrant"}
    return third_step(
        engine, SEQUENCES, TOKENS, micro_batches, lambda _, ids, __: step(made, head, engine, ids, TOKENS - 1), Lives()
    )


def job_of(case: Case) -> Row:
    head, _, stage, checkpointing, reference, micro_batches = case
    trainer = trainer_of(checkpointing, {"optimizer": "adamw", "optimizer_form": "foreach"}, head) | {
        "sequences_per_micro_batch": SEQUENCES,
        "sequence_tokens": TOKENS,
        "micro_batches": micro_batches,
        "kernel_internals": False,
        "zero": STAGES[stage],
    }
    if not reference.startswith("none"):
        trainer["reference"] = reference.removesuffix("-lora")
    if reference in ADAPTED:
        trainer["lora"] = {"rank": RANK, "format": "storage"} | ({"targets": FEW} if reference == "none-few" else {})
    return {"framework": "torch", "trainer": trainer, "apart": {"forward_only": False}}


def name_of(case: Case) -> str:
    head, config, stage, checkpointing, reference, micro_batches = case
    words = [config, head, f"zero{stage}", *([] if reference == "none" else [reference])]
    return "/".join([*words, *([] if checkpointing == "none" else [checkpointing]), str(micro_batches)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trl", type=Path)
    parser.add_argument("--only", nargs="+", default=[""])
    parser.add_argument("--output", type=Path, default=ROOT / "tests" / "data" / "executed_zero_heads.jsonl")
    parser.add_argument("--run", type=int, help="execute one run and print its peaks")
    options = parser.parse_args()
    if options.run is not None:
        import torch

        # attention leaves its results as it found them, and a step that overflows is skipped: no optimizer's states
        torch.empty_like, torch.empty = torch.zeros_like, torch.zeros
        print("peaks " + json.dumps(execute(options.trl, CASES[options.run])))
        return
    from importlib import metadata

    versions = ", ".join(f"{name} {metadata.version(name).split('+')[0]}" for name in ("deepspeed", "torch", "transformers"))
    place = {"LOCAL_RANK": "0", "WORLD_SIZE": str(RANKS), "LOCAL_WORLD_SIZE": str(RANKS), "DS_ACCELERATOR": "cpu"}
    place |= {"MASTER_ADDR": "localhost", "MASTER_PORT": "29998"}
    by = f"{versions}, TRL 1.12.0 executed on the fake process group"
    lines: list[Row] = [{"config": name, "fields": config} for name, config in CONFIGS.items()]
    for number, case in enumerate(CASES):
        if not any(word in ("", name_of(case)) for word in options.only):
            continue
        rank = fullest(CONFIGS[case[1]]) if STAGES[case[2]]["stage"] == 2 else 0
        command = [sys.executable, __file__, str(options.trl), "--run", str(number)]
        told = subprocess.run(command, env=os.environ | place | {"RANK": str(rank)}, capture_output=True, text=True, check=False)
        found = [line for line in told.stdout.splitlines() if line.startswith("peaks ")]
        if not found:
            print(f"NOT EXECUTED {name_of(case)}: {told.stderr.strip().splitlines()[-1]}", flush=True)
            continue
        of_step = json.loads(found[0][6:])
        peaks = {phase: of_step[phase] for phase in ("forward", "backward")}  # execute_zero.py judges the optimizer's step
        lines.append({"id": name_of(case), "config": case[1], "job": job_of(case), "source": by, "peaks": peaks})
        print(name_of(case), peaks, flush=True)
    write_rows(options.output, lines)


if __name__ == "__main__":
    main()
