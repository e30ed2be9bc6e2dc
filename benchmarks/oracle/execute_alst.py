"""Makes tests/data/executed_alst.jsonl: long sequences under DeepSpeed's Ulysses and stage 3 of ZeRO, as ArcticTraining trains them.

    python benchmarks/oracle/execute_alst.py ARCTIC [--output tests/data/executed_alst.jsonl]

ARCTIC is a clone of snowflakedb/ArcticTraining: its checkpoint function with a copy on the host and its tiled MLP are read from it and run
as they are, and so do DeepSpeed's UlyssesSPAttentionHF and TiledMLP. A copy on the host is a meta tensor. Otherwise as execute_zero.py; an
exchange does nothing. The model is so small that one tensor of all tokens of a rank is larger than a layer's weights.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

from execute_zero import RANKS, ROOT, residents, stand_in

Row = dict[str, Any]
TOKENS = 1024  # of one rank
CONFIGS: dict[str, Row] = {
    name: {
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": 384,
        "num_hidden_layers": 4,
        "num_attention_heads": 16,
        "num_key_value_heads": keys,
        "head_dim": 16,
        "vocab_size": 64,
        "max_position_embeddings": 16384,
        "tie_word_embeddings": False,
    }
    for name, hidden, keys in (("narrow", 128, 2), ("square", 256, 8), ("wide", 256, 16))
}
SMALL: Row = {
    "stage": 3,
    "reduce_bucket": 200_000,
    "prefetch_bucket": 50_000,
    "max_live": 200_000,
    "persistence_threshold": 1_000,
}
# model, Ulysses, copies of checkpoints on the host, tiled MLP
RUNS: list[tuple[str, bool, bool, bool]] = [
    (model, split, host, tiled)
    for model in CONFIGS
    for split in (False, True)
    for host, tiled in ((False, False), (True, False), (True, True))
]


def patched(arctic: Path) -> Any:
    """ArcticTraining's functions."""

    def source(path: str) -> str:
        return subprocess.run(
            ["git", "-C", str(arctic), "show", f"HEAD:arctic_training/{path}"], capture_output=True, text=True, check=True
        ).stdout

    patches = types.ModuleType("monkey_patches")
    text = source("monkey_patches.py")
    for theirs, ours in (
        ('arg.detach().to("cpu")\n', 'arg.detach().to("meta")\n'),
        ("tensors[i].to(ctx.x_device)", "torch.empty_like(tensors[i], device=ctx.x_device)"),
    ):
        if text.count(theirs) != 1:
            raise SystemExit(f"ArcticTraining does not say {theirs!r} once")
        text = text.replace(theirs, ours)
    exec(compile(text, "monkey_patches.py", "exec"), patches.__dict__)
    tiles = types.ModuleType("tiled_compute")
    exec(compile(source("model/tiled_compute.py"), "tiled_compute.py", "exec"), tiles.__dict__)
    return patches, tiles


def make_engine(arctic: Path, model_name: str, split: bool, host: bool, tiled: bool) -> Any:
    import deepspeed
    import torch
    import transformers
    from deepspeed.runtime.sequence_parallel.ulysses_sp import UlyssesSPAttentionHF
    from execute_parallel import attend

    stand_in(attend)
    config = CONFIGS[model_name]
    patches, tiles = patched(arctic)
    if host:
        patches.monkey_patch_checkpoint_function_with_cpu_offload()
    if tiled:
        from transformers.models.llama import modeling_llama

        modeling_llama.LlamaMLP.forward = tiles.tiled_mlp_forward_common
    fields = {key: value for key, value in config.items() if key != "model_type"}
    settings = transformers.AutoConfig.for_model(config["model_type"], **fields, use_cache=False)
    model = transformers.AutoModelForCausalLM.from_config(settings, dtype=torch.bfloat16, attn_implementation="executed")
    model.train()
    mpu = None
    if split:
        import deepspeed.runtime.sequence_parallel.parallel_state_sp as mpu

        deepspeed.init_distributed(dist_init_required=False)
        mpu.initialize_sequence_parallel(sequence_parallel_size=RANKS)
        ulysses = UlyssesSPAttentionHF(
            attn=attend,
            batch_size=1,
            attn_head_count=config["num_attention_heads"],
            attn_head_size=config["head_dim"],
            kv_head_count=config["num_key_value_heads"],
            num_hidden_layers=config["num_hidden_layers"],
            process_group=mpu.get_sequence_parallel_group(),
            seq_length_is_variable=True,
        )

        def around(module: Any, query: Any, key: Any, value: Any, attention_mask: Any, *args: Any, **kwargs: Any) -> Any:
            kwargs.setdefault("position_ids", torch.zeros(1, TOKENS, dtype=torch.int64))
            return ulysses(module, query, key, value, attention_mask, *args, **kwargs)

        transformers.AttentionInterface.register("executed", around)
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": True})
    spelled = {"reduce_bucket": "reduce_bucket_size", "prefetch_bucket": "stage3_prefetch_bucket_size"}
    spelled |= {"max_live": "stage3_max_live_parameters", "persistence_threshold": "stage3_param_persistence_threshold"}
    settings = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "bf16": {"enabled": True},
        "zero_allow_untested_optimizer": True,
        "zero_optimization": {spelled.get(key, key): value for key, value in SMALL.items()},
    }
    if split:
        settings |= {"sequence_parallel_size": RANKS, "seq_parallel_communication_data_type": "bf16"}
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-5)
    return deepspeed.initialize(model=model, optimizer=optimizer, config=settings, dist_init_required=False, mpu=mpu)[0]


def execute(arctic: Path, run: tuple[str, bool, bool, bool]) -> Row:
    import gc

    import torch
    from execute import Storages

    class OnTheDevice(Storages):
        """Without what lies on the host."""

        def born(self, tensor: torch.Tensor) -> None:
            if tensor.device.type != "meta":
                super().born(tensor)

    engine = make_engine(arctic, *run)
    gc.collect()
    gc.disable()
    storages = OnTheDevice()
    residents(storages)
    peaks = {"forward": 0, "backward": 0}
    for _ in range(3):
        peaks = dict.fromkeys(peaks, 0)
        with storages:
            ids = torch.zeros(1, TOKENS, dtype=torch.int64)
            positions, labels = torch.zeros_like(ids), torch.zeros_like(ids)
            storages.highest = storages.live
            loss = engine(input_ids=ids, position_ids=positions, labels=labels).loss
            peaks["forward"] = max(peaks["forward"], storages.highest)
            storages.highest = storages.live
            engine.backward(loss)
            peaks["backward"] = max(peaks["backward"], storages.highest)
            del loss, ids, labels, positions
            engine.step()
    return peaks


def job_of(_model: str, split: bool, host: bool, tiled: bool) -> Row:
    trainer: Row = {
        "engine": "deepspeed",
        "layout": f"d1c{RANKS}" if split else f"d{RANKS}",
        "kernels": "hf_flash",
        "precision": {"storage": "bf16", "compute": "bf16", "reduce": "bf16"},
        "recompute": "full",
        "reentrant": True,
        "offload_checkpoints": host,
        "tiled_mlp": tiled,
        "optimizer": "sgd",
        "head": "hf_loss",
        "sequences_per_micro_batch": 1,
        "sequence_tokens": TOKENS * (RANKS if split else 1),
        "micro_batches": 1,
        "kernel_internals": False,
        "zero": SMALL,
    }
    # plain SGD, which no job has under DeepSpeed, leaves nothing but the engine's own buffers
    return {"framework": "torch", "trainer": trainer, "apart": {"forward_only": False, "beyond": ["optimizer"]}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("arctic", type=Path, help="clone of snowflakedb/ArcticTraining")
    parser.add_argument("--output", type=Path, default=ROOT / "tests" / "data" / "executed_alst.jsonl")
    parser.add_argument("--run", type=int, help="execute one run and print its peaks")
    options = parser.parse_args()
    if options.run is not None:
        print("peaks " + json.dumps(execute(options.arctic, RUNS[options.run])))
        return
    from importlib import metadata

    versions = ", ".join(f"{name} {metadata.version(name).split('+')[0]}" for name in ("deepspeed", "torch", "transformers"))
    place = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": str(RANKS), "LOCAL_WORLD_SIZE": str(RANKS), "DS_ACCELERATOR": "cpu"}
    place |= {"MASTER_ADDR": "localhost", "MASTER_PORT": "29998", "OMP_NUM_THREADS": "1"}
    lines: list[Row] = [{"config": name, "fields": fields} for name, fields in CONFIGS.items()]
    for number, run in enumerate(RUNS):
        command = [sys.executable, __file__, str(options.arctic), "--run", str(number)]
        told = subprocess.run(command, env=os.environ | place, capture_output=True, text=True, check=True).stdout
        peaks = json.loads(next(line for line in told.splitlines() if line.startswith("peaks "))[6:])
        model, split, host, tiled = run
        words = ["zero3", model] + ["ulysses"] * split + ["host"] * host + ["tiled"] * tiled
        row = {"id": "/".join(words), "config": model, "job": job_of(*run)}
        lines.append(row | {"source": f"{versions} executed on the fake process group", "peaks": peaks})
        print("/".join(words), peaks, flush=True)
        with options.output.open("w", encoding="utf-8") as file:
            for line in lines:
                file.write(json.dumps(line, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
