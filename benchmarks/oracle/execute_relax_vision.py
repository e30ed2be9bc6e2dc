"""Makes tests/data/executed_relax_vision.jsonl: steps of vision-language models as Relax runs them, executed.

    python benchmarks/oracle/execute_relax_vision.py --core MEGATRON_CORE --te TRANSFORMER_ENGINE --mbridge MBRIDGE
        --bridge MEGATRON_BRIDGE --fla FLASH_LINEAR_ATTENTION [--output tests/data/executed_relax_vision.jsonl] [--only N...]

Needs what execute_megatron_linear.py needs, but Megatron-LM 85bced0ae and Megatron-Bridge 2faedbf6, which Relax's image has
(redai-infra/Relax docker/Dockerfile, 21e227df; redai-studio/Relax, 0cd7c4dd), without Relax's patch of them.

Models are called as Relax calls them without context parallelism (relax/backends/megatron/data.py: get_batch, model.py: forward_step):
all sequences in one row, no mask, packed_seq_params without padded lengths. The loss is the model's own, unfused: Relax's is executed
by itself. `frozen`: parts that --freeze-vision-model ("body") and --freeze-vision-projection ("mergers") beside it freeze, by the
model's own freeze(); `trained` counts what has a gradient.
"""

from __future__ import annotations

import argparse
import json
import warnings
from pathlib import Path
from typing import Any

import execute_megatron_linear as linear
import execute_megatron_vision as vision
import torch
import transformers
from execute import ROOT, Row

BRIDGE: Row = {"bridge": "Megatron-Bridge", "packed": True}
QWEN3: Row = {**vision.BASE, **BRIDGE, "experts": 0, "experts_per_token": 2}
QWEN35: Row = {**linear.BASE, **BRIDGE}
MOE: Row = {**QWEN35, **linear.MOE}
SPLIT, UNIFORM, SELECTIVE, STAGE = vision.SPLIT, vision.UNIFORM, vision.SELECTIVE, vision.STAGE
IMAGE: Row = {"images": [[12, 16]]}
PAIR: Row = {"images": [[12, 16], [12, 16]], "sequences": 2}
TWO: Row = {"sequences": 2, "images": []}
LARGE: Row = {"images": [[32, 48]], "tokens": 448, "vocab": 256}
LONG: Row = {"tokens": 1000, "vocab": 128, "images": []}
FUSED: Row = {"fused": True}
BODY: Row = {"frozen": "body"}
TOWER: Row = {"frozen": "tower"}
TEXT: list[Row] = [
    {"images": []},
    TWO,
    SPLIT | TWO | FUSED,
    SPLIT | TWO | UNIFORM | FUSED,
    LONG | UNIFORM | FUSED,
    SPLIT | STAGE | TWO | UNIFORM | FUSED,
]
IMAGES: list[Row] = [
    IMAGE,
    SPLIT | PAIR | FUSED,
    SPLIT | PAIR | UNIFORM | FUSED,
    LARGE | UNIFORM,
    SPLIT | LARGE | UNIFORM | FUSED,
    SPLIT | STAGE | PAIR | UNIFORM | FUSED,
]
FREEZES: list[Row] = [
    part | run
    for part in (BODY, TOWER)
    for run in (IMAGE, SPLIT | PAIR | FUSED, SPLIT | PAIR | UNIFORM | FUSED, LARGE, LARGE | UNIFORM, TWO, SPLIT | STAGE | PAIR | UNIFORM)
]
RUNS: list[Row] = [base | run for base in (QWEN3, QWEN35, MOE) for run in [*TEXT, *IMAGES]]
RUNS += [base | run for base in (QWEN3, QWEN35) for run in FREEZES]


class Inputs(vision.Inputs):
    def __init__(self, run: Row) -> None:
        super().__init__(run)
        from megatron.core.packed_seq_params import PackedSeqParams

        self.ids = self.ids.reshape(1, -1)
        self.mask = None
        packed = self.packed
        self.packed = PackedSeqParams(
            qkv_format="thd",
            cu_seqlens_q=packed.cu_seqlens_q,
            max_seqlen_q=packed.max_seqlen_q,
            cu_seqlens_kv=packed.cu_seqlens_kv,
            max_seqlen_kv=packed.max_seqlen_kv,
        )


def set_as_relax_does(self: Any, dtype: torch.dtype, overrides: Row) -> None:
    """relax/backends/megatron/model_provider.py: attributes of the provider, then its own finalize()."""
    for name, value in overrides.items():
        setattr(self, name, value)
    self.fp16, self.bf16, self.params_dtype = False, True, dtype
    self.finalize()


def model_of(run: Row) -> Any:
    from megatron.bridge.models.gpt_provider import GPTModelProvider

    GPTModelProvider.apply_overrides_and_finalize = set_as_relax_does
    transformers.Qwen3_5VisionConfig.deepstack_visual_indexes = []  # transformers 5.3, which the image has, takes it from the checkpoint
    transformers.Qwen3_5MoeVisionConfig.deepstack_visual_indexes = []
    if run["kind"] == "qwen3_vl":
        model = vision.ready(vision.of_megatron_bridge(run))
    else:
        model = linear.model_of(run)
    if run.get("frozen"):
        model.freeze(
            freeze_language_model=False, freeze_vision_model=True, freeze_vision_projection=run["frozen"] == "tower"
        )
    run["trained"] = sum(p.numel() for p in model.parameters() if p.requires_grad)
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("core", "te", "mbridge", "bridge", "fla"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--output", type=Path, default=ROOT / "tests/data/executed_relax_vision.jsonl")
    parser.add_argument("--only", type=int, nargs="+", help="numbers of runs, told and not written")
    given = parser.parse_args()
    warnings.filterwarnings("ignore")
    linear.prepare(given)
    if given.only:
        for number in given.only:
            print(json.dumps(vision.execute(dict(RUNS[number]), model_of, Inputs)))
        return
    lines = [json.dumps(vision.execute(dict(run), model_of, Inputs), separators=(",", ":")) for run in RUNS]
    given.output.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
