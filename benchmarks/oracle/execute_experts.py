"""Makes tests/data/executed_experts.jsonl: training steps of models with experts, by every implementation that transformers has.

    python benchmarks/oracle/execute_experts.py [--only FAMILY...] [--implementations eager batched_mm] [--append]

As execute.py. Which expert a token goes to is data, which a tensor without memory has not; the loop over experts is executed with
tokens that are spread evenly: of R routed rows E experts get R / E each, the first R % E one more. Everything else is transformers'
own code. Under a release 4 of transformers the only implementation is the loop, over modules of their own: run it once more with
that release on PYTHONPATH and --append.
"""

from __future__ import annotations

import argparse
import contextlib
import json
from pathlib import Path
from typing import Any

import execute
import torch
import transformers
from execute import MODELS, ROOT, RUNS, SMALL, Row, as_on_cuda, job_of

SPARSE: Row = {"num_experts": 16, "num_experts_per_tok": 4, "moe_intermediate_size": 256}
EXPERTS: dict[str, Row] = {
    **{
        family: MODELS[family]
        for family in ("mixtral", "deepseek_v2", "deepseek_v3", "glm4_moe", "glm4_moe_lite", "minimax_m2", "gpt_oss")
    },
    "qwen2_moe": {**SPARSE, "shared_expert_intermediate_size": 384},
    "qwen3_moe": {**SPARSE, "norm_topk_prob": True, "head_dim": 64},
    "olmoe": {"num_experts": 16, "num_experts_per_tok": 4},
    "granitemoe": {"num_local_experts": 16, "num_experts_per_tok": 4},
}
# rows that the experts do not divide
UNEVEN = (1, 509, False), (2, 253, True)
# whose release 4 makes a mask of its own, which for several sequences is a view
OWN_MASK = ("qwen2_moe", "olmoe")
NEWEST = int(transformers.__version__.split(".")[0]) >= 5


class Spread:
    """Answers the two questions whose answer is data: which experts are hit, and where an expert's tokens are."""

    device = "meta"

    def __init__(self) -> None:
        self.expert = self.experts = self.rows = 0
        nonzero, where = torch.Tensor.nonzero, torch.where
        vars(torch.nn.functional)["one_hot"] = self.one_hot
        vars(torch)["where"] = lambda *given: self.tokens_of_the_next() if len(given) == 1 else where(*given)
        torch.Tensor.nonzero = lambda mask: self.hit() if mask.dim() == 1 else nonzero(mask)

    def one_hot(self, index: torch.Tensor, num_classes: int) -> torch.Tensor:
        self.expert, self.rows = 0, index.numel()
        return torch.empty(*index.shape, num_classes, dtype=torch.int64, device=self.device)

    def hit(self) -> Any:
        hit = torch.arange(self.experts)[:, None]
        vars(hit)["on_the_device"] = torch.empty(self.experts, 1, dtype=torch.int64, device="meta")
        return hit

    def tokens_of_the_next(self) -> tuple[torch.Tensor, ...]:
        rows = self.rows // self.experts + (self.expert < self.rows % self.experts)
        self.expert += 1
        return torch.empty(2, rows, dtype=torch.int64, device=self.device).unbind(0)


class OnTheDevice(execute.Storages):
    """Without tensors of the host."""

    def born(self, tensor: torch.Tensor) -> None:
        if tensor.device.type == "meta":
            super().born(tensor)


def make_model(implementation: str) -> Any:
    def make(config: Row, checkpointing: bool, _adapters: bool, attention: str) -> Any:
        fields = {key: value for key, value in config.items() if key != "model_type"}
        settings = transformers.AutoConfig.for_model(config["model_type"], **fields)
        settings.use_cache = False
        chosen = {"experts_implementation": implementation} if NEWEST else {}
        dtype = {"dtype" if NEWEST else "torch_dtype": torch.bfloat16}
        with torch.device("meta"):
            model = transformers.AutoModelForCausalLM.from_config(settings, **dtype, attn_implementation=attention, **chosen)
        model.train()
        if checkpointing:
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        return model

    return make


def experts_of(fields: Row) -> int:
    return int(next(fields[key] for key in ("num_experts", "num_local_experts", "n_routed_experts") if key in fields))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=list(EXPERTS))
    parser.add_argument("--implementations", nargs="+", default=["eager", "batched_mm"] if NEWEST else ["eager"])
    parser.add_argument("--append", action="store_true")
    parser.add_argument("--output", type=Path, default=ROOT / "tests" / "data" / "executed_experts.jsonl")
    options = parser.parse_args()
    as_on_cuda()
    if not NEWEST:  # the tables of positions are made with autocast off, which the meta device does not know
        vars(torch)["autocast"] = lambda *_, **__: contextlib.nullcontext()
    execute.Storages = OnTheDevice
    source = f"torch {torch.__version__.split('+')[0]}, transformers {transformers.__version__} executed on the meta device"
    spread = Spread()
    lines: list[Row] = []
    for family in options.only:
        config = {"model_type": family, **SMALL, **EXPERTS[family]}
        spread.experts = experts_of(config)
        lines.append({"config": family, "fields": config})
        for implementation in options.implementations:
            execute.make_model = make_model(implementation)
            for sequences, tokens, checkpointing in (*RUNS, *UNEVEN):
                if not NEWEST and family in OWN_MASK and sequences > 1:
                    continue
                peaks, saved = execute.execute(config, sequences, tokens, checkpointing)
                release = "" if NEWEST else f"/transformers {transformers.__version__}"
                name = f"{family}/{implementation}/b{sequences}s{tokens}" + release + ("/checkpointed" if checkpointing else "")
                job = job_of(sequences, tokens, checkpointing)
                job["trainer"] |= {"experts": implementation} if NEWEST else {"transformers": transformers.__version__}
                row: Row = {"id": name, "config": family, "job": job, "source": source, "peaks": peaks}
                if not checkpointing:
                    row |= {"layer": config["num_hidden_layers"] // 2, "saved": saved}
                lines.append(row)
    with options.output.open("a" if options.append else "w", encoding="utf-8") as file:
        for line in lines:
            file.write(json.dumps(line, separators=(",", ":")) + "\n")
    print(f"{len(lines) - len(options.only)} rows, {len(options.only)} configs: {options.output}")


if __name__ == "__main__":
    main()
