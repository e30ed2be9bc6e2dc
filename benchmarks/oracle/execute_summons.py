"""Makes tests/data/executed_summons.jsonl: how verl gathers adapters for its servers under FSDP1, executed on the meta device.

    python benchmarks/oracle/execute_summons.py VERL [--output tests/data/executed_summons.jsonl]

VERL is a clone with its history (a bare one will do). Its own get_fsdp_wrap_policy and collect_lora_params run
(verl/utils/fsdp_utils.py), on FSDP's own code as execute_fsdp1.py has it, with a mesh as verl gives one, so that SHARDED_STATE_DICT
makes DTensors. Without adapters it is state_dict(), from which tensor after tensor is gathered then. peft's get_peft_model_state_dict is a stand-in that takes what is called lora_, as peft does. What goes to the host is
not counted. A line: `summon`, the highest level above the shards, and `kept`, what is alive behind it, in bytes.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import subprocess
import sys
import types
import warnings
from pathlib import Path
from typing import Any, ClassVar

import execute_fsdp1
import peft
import torch
import torch.distributed as dist
import transformers
from execute import ROOT, SMALL, Row
from execute_fsdp1 import FORMATS, Resized
from row_lines import write_rows
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    FullStateDictConfig,
    FullyShardedDataParallel,
    MixedPrecision,
    ShardedStateDictConfig,
    ShardingStrategy,
    StateDictType,
)
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import _disable_current_modes

MODELS: dict[str, Row] = {
    "llama": {"model_type": "llama", **SMALL, "num_hidden_layers": 5},
    "llama, tied": {"model_type": "llama", **SMALL, "num_hidden_layers": 3, "vocab_size": 512, "tie_word_embeddings": True},
    "qwen2": {"model_type": "qwen2", **SMALL, "num_hidden_layers": 2},
}
RELEASES = ("v0.7.0", "v0.9.0")
CASES: list[Row] = [
    {"storage": storage, "ranks": ranks, "what": what}
    for storage in ("fp32", "bf16")
    for ranks in (4, 3, 1)
    for what in ("layered", "whole", "state")
]
RANK = 8


class Anything(types.ModuleType):
    """A module of which names are imported and nothing is asked."""

    __path__: ClassVar[list[str]] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *a, **_: a[0] if a and callable(a[0]) else None


def verl_functions(clone: Path, tag: str) -> Any:
    text = subprocess.run(
        ["git", "-C", str(clone), "show", f"{tag}:verl/utils/fsdp_utils.py"], check=True, capture_output=True, text=True
    ).stdout
    for name in ("verl", "verl.utils", "verl.utils.device", "verl.utils.model"):
        sys.modules[name] = Anything(name)
    device: Any = sys.modules["verl.utils.device"]
    device.get_torch_device = lambda: types.SimpleNamespace(empty_cache=lambda: None)
    device.get_device_name = lambda: "meta"
    made = types.ModuleType("verl.utils.fsdp_utils")
    exec(compile(text, made.__name__, "exec"), made.__dict__)
    return made


def adapters_of(model: Any, state_dict: Row | None = None, **_: Any) -> Row:
    return {name: value for name, value in (state_dict or model.state_dict()).items() if "lora_" in name}


def stand_in() -> None:
    execute_fsdp1.stand_in()
    device: Any = execute_fsdp1.Device
    device.synchronize = device.empty_cache = lambda *_: None
    device.current_device = lambda *_: 0
    device.device_count = lambda *_: 8
    peft.utils.save_and_load.get_peft_model_state_dict = adapters_of  # type: ignore[assignment]

    def to_host(handle: Any, *_: Any, **__: Any) -> None:
        with _disable_current_modes():
            host = torch.empty_like(handle.flat_param)
        if Resized.now is not None:
            Resized.now.own(host)  # of size 0
        handle.flat_param.data = host

    torch.distributed.fsdp._flat_param.FlatParamHandle.flat_param_to = to_host  # type: ignore[method-assign]
    torch.Tensor.cpu = lambda self, *_a, **_k: torch.empty(0)  # type: ignore[method-assign,assignment]


def make_model(verl: Any, config: Row, case: Row) -> Any:
    fields = {key: value for key, value in config.items() if key != "model_type"}
    settings = transformers.AutoConfig.for_model(config["model_type"], **fields)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(settings, dtype=FORMATS[case["storage"]])
        if case["what"] != "state":
            model = peft.get_peft_model(
                model,
                peft.LoraConfig(task_type="CAUSAL_LM", r=RANK, lora_alpha=16, target_modules="all-linear", bias="none"),
                autocast_adapter_dtype=False,
            )
    out = FullyShardedDataParallel(
        model,
        auto_wrap_policy=verl.get_fsdp_wrap_policy(model, config={}, is_lora=case["what"] != "state"),
        sharding_strategy=ShardingStrategy.FULL_SHARD,
        mixed_precision=MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32, buffer_dtype=torch.float32),
        use_orig_params=False,
        device_mesh=init_device_mesh("cpu", (case["ranks"],), mesh_dim_names=("fsdp",)),
    )
    # verl/workers/fsdp_workers.py, 0.7: FULL_STATE_DICT on one GPU
    kind, settings = (
        (StateDictType.FULL_STATE_DICT, FullStateDictConfig())
        if case["ranks"] == 1
        else (StateDictType.SHARDED_STATE_DICT, ShardedStateDictConfig())
    )
    FullyShardedDataParallel.set_state_dict_type(out, state_dict_type=kind, state_dict_config=settings)
    return out


def execute(verl: Any, config: Row, case: Row) -> Row:
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=case["ranks"])
    model = make_model(verl, config, case)
    with contextlib.suppress(AttributeError):
        torch.distributed.fsdp._runtime_utils._lazy_init(model, model)
    gc.collect()
    gc.disable()
    storages = Resized()
    own = [tensor for tensor in [*model.parameters(), *model.buffers()] if tensor.untyped_storage().nbytes() > 0]
    for tensor in own:
        storages.own(tensor)
    del own
    Resized.now = storages
    with storages:
        before = storages.live
        storages.highest = before
        if case["what"] == "state":
            found = model.state_dict()
        else:
            found = verl.collect_lora_params(module=model, layered_summon=case["what"] == "layered", base_sync_done=True)
            assert len(found) == config["num_hidden_layers"] * 14, len(found)
        out = {"summon": storages.highest - before, "kept": storages.live - before}
        del found
    Resized.now = None
    gc.enable()
    dist.destroy_process_group()
    return out


def job_of(release: str, case: Row) -> Row:
    trainer: Row = {
        "engine": "fsdp1",
        "layout": f"d{case['ranks']}",
        "kernels": "hf_eager",
        "precision": {"storage": case["storage"], "compute": "bf16", "reduce": "fp32"},
        "sequences_per_micro_batch": 1,
        "sequence_tokens": 32,
    }
    if case["what"] != "state":
        trainer["lora"] = {
            "rank": RANK,
            "targets": "all-linear",
            "format": "fp32",  # peft makes them so
            "layered_summon": case["what"] == "layered",
        }
    return {"framework": f"verl {release[1:]}", "trainer": trainer}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("verl", type=Path)
    parser.add_argument("--output", type=Path, default=ROOT / "tests" / "data" / "executed_summons.jsonl")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    stand_in()
    lines: list[Row] = []
    for name, config in MODELS.items():
        lines.append({"config": name, "fields": config})
        for release in RELEASES:
            verl = verl_functions(options.verl, release)
            by = f"torch {torch.__version__.split('+')[0]}, peft {peft.__version__}, verl {release[1:]} executed on the meta device"
            for case in CASES:
                if case["ranks"] == 1 and case["what"] == "layered" and release == "v0.9.0":
                    continue  # torch refuses it: offload_to_cpu with NO_SHARD
                words = "/".join(f"{key}={value}" for key, value in case.items())
                row = {"id": f"{name}/{release[1:]}/{words}", "config": name, "job": job_of(release, case), "source": by}
                lines.append(row | execute(verl, config, case))
                print(lines[-1]["id"], lines[-1]["summon"], lines[-1]["kept"], flush=True)
    write_rows(options.output, lines)


if __name__ == "__main__":
    main()
