"""Random training jobs, executed and written as rows of a corpus: they judge the mapping of benchmarks/accuracy too.

    PYTHONPATH=build/python python benchmarks/oracle/fuzz_rows.py FOLDER [--seed 1] [--jobs 50] [--engines single fsdp2] [--minutes 10]
    python benchmarks/accuracy/run.py --corpus FOLDER/rows.jsonl

Jobs are drawn and executed as fuzz.py does it, and the row says what was drawn in the words of the schema `oracle`; configs lie in
FOLDER/model_configs. A softmax is PyTorch's own for CUDA: of bf16 with a result in fp32 its input is cast in front of it (fuzz.py
stands in one kernel, which CUDA has for fp16 alone). What the schema has no word for is not executed.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import fuzz
import fuzz_fsdp
import torch
import torch.nn.functional as F
import transformers
from execute import Row
from execute_scaler import item_of
from fuzz_models import FAMILIES, draw_model, some
from fuzz_optimizers import BY_ELEMENT, DECAY, parts_of

HEADS = {"hf_loss", "logprob_fp32", "logprob_bf16", "logprob_lse"}
DTYPES = {
    "autocast": "fp32_autocast_bf16",
    "autocast_fp16": "fp32_autocast_fp16",
    "autocast_of_bf16": "bf16_autocast_bf16",
}
UNSAID = {"policy": None, "offload": False, "cast_inputs": True, "output": None, "forward_only": False}  # unless as here


class NoWord(Exception):
    """What the schema cannot say."""


def sharding_of(case: Row) -> Row | None:
    if case["engine"] == "single":
        return None
    groups = case.get("groups", 1)
    out: Row = {"engine": case["engine"], "world": case["ranks"] * groups}
    out |= {"param_dtype": case["compute"], "reduce_dtype": case["reduce"]}
    out |= {"no_sync": case["deferred"], "forward_prefetch": case["forward_prefetch"]}
    if groups > 1:
        out["replicate"] = groups
    if case["engine"] == "fsdp1":
        prefetch = case["backward_prefetch"]
        out |= {"strategy": case["strategy"], "backward_prefetch": None if prefetch == "none" else prefetch.upper()}
        return out | {"use_orig_params": case["use_orig_params"]}
    out |= {"wrap_embedding": case["wrap_embedding"], "wrap_head": case["wrap_head"]}
    if case["reshard"] and case["root_reshard"]:
        out["reshard"] = case.get("kept_over") or True
    elif not case["reshard"]:
        if case["root_reshard"]:
            raise NoWord("a root alone that is resharded")
        out["reshard"] = False
    return out


def row_of(name: str, case: Row) -> Row:
    """The settings of a row. Raises NoWord."""
    lora = case["lora"]
    optimizer, switches = parts_of(case["optimizer"])
    if case["attention"] == "flash_attention_2" or case["head"] not in HEADS or optimizer not in BY_ELEMENT:
        raise NoWord("attention, head or optimizer")  # the stand-in of flash-attention makes what a corpus leaves out
    if switches & {"amsgrad", "nesterov"} or any(name in case and case[name] != UNSAID[name] for name in UNSAID):
        raise NoWord("a switch of the optimizer, or of the policy")
    if case["every"] > 1 or case.get("keep_gradients") or (lora and (lora["verl"] or set(lora) - {*LORA, "verl"})):
        raise NoWord("checkpoints of several layers, kept gradients or adapters")
    if case["keep_outputs"] and case["head"] != "hf_loss":
        raise NoWord("outputs that are kept")
    form = next(iter(switches & {"loop", "fused"}), "foreach")
    row: Row = {"model": name, "dtype": DTYPES.get(case["dtype"], case["dtype"]), "attention": case["attention"]}
    row |= {"batch": case["sequences"], "seq": case["tokens"], "padding_mask": case["padding"]}
    row |= {"checkpointing": case["recompute"], "optimizer": optimizer, "optimizer_impl": form, "clip": case["clip"]}
    row["versions"] = {"torch": torch.__version__.split("+")[0], "transformers": transformers.__version__}
    row["weight_decay"] = DECAY if "decay" in switches else 0
    row |= {"loss": case["head"] + ("_keep_outputs" if case["keep_outputs"] else ""), "grad_accum": case["micro_batches"]}
    row |= {"logits_to_keep": case.get("kept") or 0, "autocast": bool(case.get("autocast")), "sharding": sharding_of(case)}
    row["peft"] = lora and {
        "r": lora["rank"],
        "targets": lora["targets"] if lora["targets"] == "all-linear" else lora["targets"].split(),
        "dropout": lora["dropout"],
        "fp32_adapters": lora["format"] == "fp32",
    }
    return row


LORA = {"rank", "targets", "dropout", "format"}


def softmax_of_cuda(x: torch.Tensor, dim: Any = None, _stacklevel: int = 3, dtype: Any = None) -> torch.Tensor:
    """aten/src/ATen/native/SoftMax.cpp, 2.13: one kernel for fp16 alone."""
    if dtype == torch.float32 and x.dtype == torch.float16:
        return torch.ops.aten._softmax(x, dim, True)  # type: ignore[no-any-return]
    return fuzz.in_fp32_under_autocast(fuzz.PLAIN_SOFTMAX, torch.ops.aten._softmax)(x, dim, dtype=dtype)  # type: ignore[no-any-return]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=50)
    parser.add_argument("--engines", nargs="+", default=["single", "single", "fsdp1", "fsdp2"])
    parser.add_argument("--minutes", type=float, default=float("inf"), help="no job begins after them")
    options = parser.parse_args()
    item_of["number"] = 1.0
    fuzz.stand_in()
    F.softmax = softmax_of_cuda
    configs = options.folder / "model_configs"
    configs.mkdir(parents=True, exist_ok=True)
    counted: Counter[str] = Counter()
    families, end = list(FAMILIES), time.monotonic() + 60 * options.minutes
    with (options.folder / "rows.jsonl").open("a", encoding="utf-8") as out:
        for number in range(options.jobs):
            if time.monotonic() > end:
                break
            rng = random.Random(f"{options.seed}/{number}")
            family = families[number % len(families)]
            config = draw_model(family, rng)
            case = fuzz.draw_case(rng, config, some(rng, *options.engines))
            name = f"fuzz/{family}-{options.seed}-{number}"
            try:
                row = row_of(name, case)
                peaks = fuzz.execute_case(config, case)
            except NoWord:
                counted["no word"] += 1
                continue
            except Exception as error:
                counted["not executed"] += 1
                fuzz_fsdp.clean_up()
                gc.enable()
                print(f"NOT EXECUTED {name} {type(error).__name__} {str(error)[:200]}", flush=True)
                continue
            counted["executed"] += 1
            (configs / f"{name.replace('/', '__')}.json").write_text(json.dumps(config), encoding="utf-8")
            figures = {phase: {"bytes": level} for phase, level in peaks.items()}
            row |= {"peaks_by_phase": figures, "peak_bytes": max(peaks.values())}
            out.write(json.dumps({"id": f"{name}/{fuzz.words_of(case)}", **row}, separators=(",", ":")) + "\n")
            out.flush()
    print(dict(counted), file=sys.stderr)


if __name__ == "__main__":
    main()
