"""Makes tests/data/executed_reference_fsdp1.jsonl: DPO and KTO with a reference model under FullyShardedDataParallel.

    python benchmarks/oracle/execute_reference_fsdp1.py TRL [--output tests/data/executed_reference_fsdp1.jsonl]

TRL is the folder `trl` of its release 1.12.0, whose own loss functions run (trl_code.py); FSDP's own code runs on the meta device
(execute_fsdp1.py). The reference is wrapped as the policy is (trl/models/utils.py `prepare_fsdp`), and only evaluated. Levels are
those of the second step. Lines are those of execute.py.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
from pathlib import Path

import execute_fsdp1
import torch
import torch.distributed as dist
import transformers
import trl_code
from execute import ROOT, Row
from execute_fsdp1 import USUAL, Resized, make_model
from execute_preference import Lives, patch, settings_of, step
from row_lines import write_rows
from torch.testing._internal.distributed.fake_pg import FakeStore

SEQUENCES, TOKENS = 4, 160
LLAMA: Row = {
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 1024,
    "num_hidden_layers": 5,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
}
MODELS: dict[str, Row] = {"llama": {**LLAMA, "vocab_size": 4096}, "llama, narrow": {**LLAMA, "vocab_size": 256}}
HALF: Row = {"storage": "bf16", "reduce": "bf16"}
CASES: list[tuple[str, Row]] = [
    *(
        ("trl_dpo", how)
        for how in (
            {},
            HALF,
            {"recompute": "nonreentrant"},
            {"recompute": "reentrant"},
            {"strategy": "SHARD_GRAD_OP"},
            {"strategy": "NO_SHARD"},
            {"forward_prefetch": True},
            {"backward_prefetch": "post", "use_orig_params": True},
            {"micro_batches": 2},
            {"micro_batches": 3, "no_sync": True},
        )
    ),
    *(("trl_kto", how) for how in ({}, HALF, {"recompute": "nonreentrant"})),
    *(("trl_dpo", how | {"reference": "none"}) for how in ({}, HALF)),
]


class Followed(Resized, Lives):
    """What FSDP resizes is followed, and the parts inside of kernels."""


def execute(trl: Path, config: Row, head: str, case: Row) -> Row:
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=case["ranks"])
    policy = make_model(config, case)
    other = make_model(config, case | {"recompute": "none"}).eval() if case["reference"] == "model" else None
    made = trl_code.trainer(trl, head, lambda _: False)
    settings_of(made, head, TOKENS - 1)
    made.accelerator.device = torch.device("meta")
    made.model, made.ref_model = policy, other
    made.precompute_ref_logps = other is None
    gc.collect()
    gc.disable()
    storages = Followed()
    models = [policy] if other is None else [policy, other]
    everything = [tensor for model in models for tensor in [*model.parameters(), *model.buffers()]]
    own = [tensor for tensor in everything if tensor.untyped_storage().nbytes() > 0]
    resident = sum(storages.own(tensor) for tensor in own)
    del own, everything
    optimizer = torch.optim.SGD(policy.parameters(), foreach=False)
    Resized.now = storages
    peaks = {"forward": 0, "backward": 0}
    for _ in range(2):
        with storages:
            peaks = dict.fromkeys(peaks, 0)
            for number in range(case["micro_batches"]):
                ids = torch.empty(SEQUENCES, TOKENS, dtype=torch.int64, device="meta")
                storages.highest = storages.live
                deferred = case["no_sync"] and number < case["micro_batches"] - 1
                with policy.no_sync() if deferred else contextlib.nullcontext():
                    with torch.device("meta"):
                        loss = step(made, head, policy, ids, TOKENS - 1)
                    peaks["forward"] = max(peaks["forward"], storages.highest)
                    storages.highest = storages.live
                    loss.backward()
                peaks["backward"] = max(peaks["backward"], storages.highest)
                del loss
            optimizer.step()
            optimizer.zero_grad()
            del ids
    Resized.now = None
    gc.enable()
    dist.destroy_process_group()
    return {phase: resident + level for phase, level in peaks.items()}


def job_of(head: str, case: Row) -> Row:
    job = execute_fsdp1.job_of(case)
    job["trainer"] |= {"head": head, "sequences_per_micro_batch": SEQUENCES, "sequence_tokens": TOKENS}
    job["trainer"]["reference"] = case["reference"]
    return job


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trl", type=Path)
    parser.add_argument("--output", type=Path, default=ROOT / "tests" / "data" / "executed_reference_fsdp1.jsonl")
    options = parser.parse_args()
    patch()
    execute_fsdp1.stand_in()
    by = f"torch {torch.__version__.split('+')[0]}, transformers {transformers.__version__}, TRL 1.12.0 executed on the meta device"
    lines: list[Row] = []
    for name, config in MODELS.items():
        lines.append({"config": name, "fields": config})
        for head, changes in CASES:
            case = USUAL | {"reference": "model"} | changes
            words = "/".join([head, *(f"{key}={value}" for key, value in changes.items())])
            row = {"id": f"{name}/{words}", "config": name, "job": job_of(head, case), "source": by}
            lines.append(row | {"peaks": execute(options.trl, config, head, case)})
            print(lines[-1]["id"], lines[-1]["peaks"], flush=True)
    write_rows(options.output, lines)


if __name__ == "__main__":
    main()
