"""Makes tests/data/executed_relax_vision.jsonl: steps of vision-language models as Relax runs them, executed.

    python benchmarks/oracle/execute_relax_vision.py --core MEGATRON_CORE --te TRANSFORMER_ENGINE --mbridge MBRIDGE
        --bridge MEGATRON_BRIDGE --fla FLASH_LINEAR_ATTENTION --slime SLIME [--output tests/data/executed_relax_vision.jsonl] [--only N...]

Needs what execute_megatron_linear.py needs, but Megatron-LM 85bced0ae and Megatron-Bridge 2faedbf6, which Relax's image has
(redai-infra/Relax docker/Dockerfile, 21e227df; redai-studio/Relax, 0cd7c4dd), without Relax's patch of them.

Models are called as Relax calls them (relax/backends/megatron/data.py: get_batch, model.py: forward_step): all sequences in one row, no
mask, packed_seq_params without padded lengths; with context parallelism a row for each, a mask of booleans and padded lengths, and
Transformer Engine's ring as execute_megatron_linear_context.py has it. The loss is the model's own, unfused: Relax's is executed
by itself. `frozen`: parts that --freeze-vision-model ("body") and --freeze-vision-projection ("mergers") beside it freeze, by the
model's own freeze(); `trained` counts what has a gradient. Rows with `value` are a critic's: the output layer is replaced before
anything is wrapped (relax/utils/training/ppo_utils.py: install_critic_value_head_in_provider, redai-studio/Relax 2854c256) by
LinearForLastLayer, here slime 624b824a's, which is the same; the loss is the mean of values. Rows with
`mtp` need Relax's patch of both packages (docker/patch/megatron/20260805-85bced0ae.patch), and have the loss of slime 624b824a.
`native`: the block's cross-entropy is Megatron's fused one, uncompiled. `reaches`: nothing is detached; the patched functions look at
the three attributes that relax/backends/megatron/model_provider.py (configure_mtp_detach_paths) sets of a configuration. `alone`:
nothing but the block is trained, and the loss is nothing times the states that carry its loss (loss.py: mtp_only_loss_function).
"""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from pathlib import Path
from typing import Any

import execute_megatron_linear as linear
import execute_megatron_linear_context as context
import execute_megatron_vision as vision
import execute_slime_actor as actor
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
    for run in (
        IMAGE,
        SPLIT | PAIR | FUSED,
        SPLIT | PAIR | UNIFORM | FUSED,
        LARGE,
        LARGE | UNIFORM,
        TWO,
        SPLIT | STAGE | PAIR | UNIFORM,
    )
]
WIDE: Row = {"context": 2, "tokens": 512, "vocab": 256, "images": []}
SHARED: list[Row] = [
    WIDE,
    WIDE | {"sequences": 2},
    WIDE | SPLIT | {"sequences": 2} | UNIFORM | FUSED,
    WIDE | {"context": 4, "sequences": 3} | UNIFORM | FUSED,
    WIDE | SPLIT | {"images": [[24, 32], [24, 32]], "sequences": 2} | UNIFORM | FUSED,
    WIDE | SPLIT | STAGE | {"sequences": 2} | UNIFORM | FUSED,
]
RUNS: list[Row] = [base | run for base in (QWEN3, QWEN35, MOE) for run in [*TEXT, *IMAGES]]
RUNS += [base | run for base in (QWEN3, QWEN35) for run in FREEZES]
RUNS += [base | run for base in (QWEN3, QWEN35, MOE) for run in SHARED]
PREDICTS: list[Row] = [
    {"mtp": 1, **run}
    for run in (
        {"images": []},
        {"tokens": 512, "vocab": 512, "images": []} | UNIFORM,
        SPLIT | TWO | FUSED,
        SPLIT | {"tokens": 512, "vocab": 512, "sequences": 2, "images": []} | UNIFORM | FUSED,
        SPLIT | PAIR | UNIFORM | FUSED,
    )
]
RUNS += [base | run for base in (QWEN35, MOE) for run in PREDICTS]
NATIVE: Row = {"native": True}
REACHES: Row = {"reaches": True}
LOSSES: list[Row] = [
    {"mtp": 1, **run}
    for run in (
        {"images": []} | NATIVE,
        {"images": []} | REACHES,
        {"tokens": 512, "vocab": 512, "images": []} | UNIFORM | NATIVE,
        {"tokens": 512, "vocab": 512, "images": []} | UNIFORM | REACHES,
        SPLIT | TWO | FUSED | NATIVE,
        SPLIT | TWO | FUSED | REACHES,
        SPLIT | {"tokens": 512, "vocab": 512, "sequences": 2, "images": []} | UNIFORM | FUSED | NATIVE,
        SPLIT | {"tokens": 512, "vocab": 512, "sequences": 2, "images": []} | UNIFORM | FUSED | REACHES | NATIVE,
        SPLIT | PAIR | UNIFORM | FUSED | NATIVE,
        SPLIT | PAIR | UNIFORM | FUSED | REACHES,
    )
]
RUNS += [base | run for base in (QWEN35, MOE) for run in LOSSES]
ALONE: list[Row] = [
    {"mtp": 1, "alone": True, **run}
    for run in (
        {"images": []},
        {"tokens": 512, "vocab": 512, "images": []} | UNIFORM,
        SPLIT | TWO | FUSED | NATIVE,
        SPLIT | {"tokens": 512, "vocab": 512, "sequences": 2, "images": []} | UNIFORM | FUSED | NATIVE,
        SPLIT | PAIR | UNIFORM | FUSED,
    )
]
RUNS += [base | run for base in (QWEN35, MOE) for run in ALONE]
CRITICS: list[Row] = [
    {"value": True, **run}
    for run in (
        {"images": []},
        SPLIT | TWO | FUSED,
        SPLIT | TWO | UNIFORM | FUSED,
        LONG | UNIFORM | FUSED,
        IMAGE,
        SPLIT | PAIR | UNIFORM | FUSED,
    )
]
RUNS += [base | run for base in (QWEN3, QWEN35, MOE) for run in CRITICS]


OfLinear = linear.Attention


class Attention(OfLinear):  # type: ignore[misc,valid-type]
    """Transformer Engine's, of packed sequences whose tokens several ranks share out."""

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *given: Any, **named: Any) -> torch.Tensor:
        ranks = context.Attention.ranks
        if ranks == 1 or "causal" not in str(named["attn_mask_type"]):  # a tower's
            return super().forward(q, k, v, *given, **named)
        out = context.Ring.apply(q.unsqueeze(1).contiguous(), k.unsqueeze(1).contiguous(), v.contiguous().unsqueeze(1), ranks)
        return out.view(q.shape[0], -1)


class Inputs(vision.Inputs):
    def __init__(self, run: Row) -> None:
        super().__init__(run)
        from megatron.core.packed_seq_params import PackedSeqParams

        ranks = run.get("context", 1)
        if ranks > 1:
            self.labels = self.labels[:, : self.labels.shape[1] // ranks] if self.labels is not None else None
            return
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
        self.predicts = bool(run.get("mtp"))
        self.blocks = run["mtp"] if run.get("alone") else 0
        if run.get("value"):
            self.labels = None

    def __call__(self, model: Any) -> Any:
        if not getattr(self, "predicts", False):
            return super().__call__(model)
        from megatron.core import parallel_state
        from slime.utils import ppo_utils

        labels = torch.zeros_like(self.ids)
        mask = torch.ones(self.ids.shape, dtype=torch.float32)
        self.labels = None
        if self.blocks:
            heads_of_blocks(model.language_model.output_layer, self.blocks)
        logits = model(
            input_ids=self.ids,
            attention_mask=None,
            position_ids=None,
            packed_seq_params=self.packed,
            labels=None,
            loss_mask=mask,
            mtp_kwargs={"mtp_labels": self.ids},
            **self.vision,
        )
        if self.blocks:
            return 0.0 * logits.sum()
        logits = logits.float()
        group = parallel_state.get_tensor_model_parallel_group()
        own = ppo_utils.calculate_log_probs_and_entropy(
            logits.squeeze(0).contiguous(), labels[0], group, with_entropy=True, with_entropy_grad=False
        )
        return own[0].squeeze(-1).mean()


def heads_of_blocks(layer: Any, blocks: int) -> None:
    """The output layer runs for the blocks, and hands the model's own states on (model.py: _bypass_output_layer)."""
    left = [blocks]
    own = type(layer).forward

    def forward(states: torch.Tensor, **named: Any) -> Any:
        left[0] -= 1
        return own(layer, states, **named) if left[0] >= 0 else (states, None)

    layer.forward = forward


def with_value_head(model: Any) -> Any:
    from slime.backends.megatron_utils.model_provider import LinearForLastLayer

    owner = model.language_model
    owner.output_layer = LinearForLastLayer(input_size=owner.config.hidden_size, output_size=1, config=owner.config)
    return model


def prepare_value_heads(slime: Path) -> None:
    """Packages around the one class."""
    for name in ("slime", "slime.utils", "slime.backends", "slime.backends.megatron_utils"):
        vision.without_init(name, slime)
    actor.stand_ins("megatron.training", "megatron.training.arguments", "slime.utils.misc")


def set_as_relax_does(self: Any, dtype: torch.dtype, overrides: Row) -> None:
    """relax/backends/megatron/model_provider.py: attributes of the provider, then its own finalize()."""
    for name, value in overrides.items():
        setattr(self, name, value)
    self.fp16, self.bf16, self.params_dtype = False, True, dtype
    self.context_parallel_size = context.Attention.ranks
    self.calculate_per_token_loss = context.Attention.ranks > 1  # Relax asks for it
    self.finalize()


def model_of(run: Row) -> Any:
    context.Attention.ranks = run.get("context", 1)
    from megatron.bridge.models.gpt_provider import GPTModelProvider

    GPTModelProvider.apply_overrides_and_finalize = set_as_relax_does
    # transformers 5.3, which the image has, takes it from the checkpoint
    transformers.Qwen3_5VisionConfig.deepstack_visual_indexes = []
    transformers.Qwen3_5MoeVisionConfig.deepstack_visual_indexes = []
    model = vision.ready(vision.of_megatron_bridge(run)) if run["kind"] == "qwen3_vl" else linear.model_of(run)
    if run.get("value"):
        model = vision.ready(with_value_head(model))
    if run.get("frozen"):
        model.freeze(freeze_language_model=False, freeze_vision_model=True, freeze_vision_projection=run["frozen"] == "tower")
    if run.get("alone"):
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(".mtp." in name)
    if run.get("reaches"):
        for module in model.modules():
            for path in ("embedding", "backbone", "lm_head") if hasattr(module, "config") else ():
                setattr(module.config, f"mtp_detach_{path}", False)
    run["trained"] = sum(p.numel() for p in model.parameters() if p.requires_grad)
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("core", "te", "mbridge", "bridge", "fla", "slime"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--output", type=Path, default=ROOT / "tests/data/executed_relax_vision.jsonl")
    parser.add_argument("--only", type=int, nargs="+", help="numbers of runs, told and not written")
    given = parser.parse_args()
    warnings.filterwarnings("ignore")
    linear.Attention = Attention  # type: ignore[misc]
    linear.prepare(given)
    torch.tensor = context.without_pins(torch.tensor)  # type: ignore[assignment]
    sys.path.insert(0, str(given.slime))
    prepare_value_heads(given.slime)
    if given.only:
        for number in given.only:
            print(json.dumps(vision.execute(dict(RUNS[number]), model_of, Inputs)))
        return
    lines = [json.dumps(vision.execute(dict(run), model_of, Inputs), separators=(",", ":")) for run in RUNS]
    given.output.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
