"""Makes tests/data/executed_relax_adapters.jsonl: training steps of Relax's actors with adapters, executed.

    python benchmarks/oracle/execute_relax_adapters.py --core MEGATRON_CORE --te TRANSFORMER_ENGINE --bridge MEGATRON_BRIDGE
        --slime SLIME --relax RELAX [--output tests/data/executed_relax_adapters.jsonl] [--only N...]

Needs torch, transformers, einops, megatron-core 0.18.0, the Python of Transformer Engine 2.17.1, Megatron-Bridge 0.5.2, slime 624b824a
and Relax (their sources are enough; of Relax relax/backends/megatron/{loss,model}.py and relax/utils/sft_utils.py); no GPU. Whole steps run on the CPU as one rank of PyTorch's fake process group. The model and its
adapters are those of execute_verl_adapters.py: Relax asks Megatron-Bridge for them in the same way, create_peft of a mapping and its
call (redai-studio/Relax 02bf712a, relax/utils/megatron_peft_utils.py: build_lora_peft; relax/backends/megatron/model_provider.py:
wrap_model_provider_with_lora). It is called as Relax calls it: packed sequences, no positions, no labels. Behind it stands Relax's
loss: get_log_probs_and_entropy around slime's function, with or without a checkpoint around it. Passes without gradients run in
evaluation mode; a reference has adapters, too. Supervised training takes no entropy, and with `head_chunk` the output layer runs in
the loss (--sft-chunked-logits), also of models without adapters (`rank` 0). `padded`: --qkv-format bshd. `local`:
--attention-backend local, with which Megatron-Bridge puts Megatron's own attention between Transformer Engine's products.

A line is as there: the settings, counts of parameters, and `peaks`.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import json
import logging
import types
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import execute_actor_losses as actor_losses
import execute_verl_adapters as adapters
import torch
import verl_megatron_step
from execute import ROOT, Row
from torch.utils.checkpoint import checkpoint

BASE: Row = adapters.BASE | {
    "temperature": 1.0,
    "chunk": -1,
    "entropy": True,
    "entropy_gradient": False,
    "checkpoint": False,
    "supervised": False,
    "head_chunk": 0,
    "padded": False,
    "local": False,
}
SPLIT, UNIFORM, LARGE, ROUTED = adapters.SPLIT, adapters.UNIFORM, adapters.LARGE, adapters.ROUTED
ATTENTION: Row = {"targets": ["linear_qkv", "linear_proj"]}
ALONE: Row = {"gradients": False, "entropy": False}
AGAIN: Row = {"checkpoint": True}
CHUNKS: Row = {"chunk": 32}
SUPERVISED: Row = {"entropy": False, "supervised": True}
PARTS: Row = LARGE | SUPERVISED | {"head_chunk": 32}
WHOLE: Row = {"rank": 0, "targets": []}
PADDED: Row = WHOLE | LARGE | {"padded": True}
DIVIDED: Row = {"temperature": 0.8}
OWN: Row = WHOLE | {"padded": True, "local": True, "kind": "qwen3"}
SHORT: Row = {"tokens": 256}
EVERYWHERE: list[Row] = [
    {},
    SPLIT,
    UNIFORM,
    SPLIT | UNIFORM,
    LARGE,
    SPLIT | LARGE,
    SPLIT | LARGE | UNIFORM,
    LARGE | AGAIN,
    SPLIT | LARGE | AGAIN | CHUNKS,
    LARGE | DIVIDED,
    SPLIT | LARGE | {"entropy_gradient": True},
    SPLIT | LARGE | SUPERVISED,
    ATTENTION,
    SPLIT | ATTENTION | UNIFORM,
    ALONE,
    SPLIT | ALONE,
    SPLIT | ALONE | LARGE,
    SPLIT | ALONE | ATTENTION,
]
RUNS: list[Row] = [
    *EVERYWHERE,
    {"kind": "qwen3"},
    SPLIT | {"kind": "qwen3"} | UNIFORM,
    SPLIT | {"kind": "qwen3", "fused": False} | LARGE,
    PARTS,
    SPLIT | PARTS,
    SPLIT | PARTS | UNIFORM | AGAIN,
    PARTS | DIVIDED,
    *(WHOLE | run for run in (PARTS, SPLIT | PARTS, SPLIT | PARTS | AGAIN, PARTS | {"fused": False}, SPLIT | LARGE | SUPERVISED)),
    ROUTED,
    ROUTED | SPLIT | UNIFORM,
    ROUTED | SPLIT | LARGE,
    ROUTED | ATTENTION,
    ROUTED | ALONE,
    PADDED,
    PADDED | SPLIT,
    PADDED | UNIFORM | AGAIN | CHUNKS,
    PADDED | SPLIT | SUPERVISED,
    PADDED | ALONE,
    PADDED | SPLIT | ALONE | {"sequences": 3},
    *(ROUTED | adapters.APART | run for run in ({}, UNIFORM, ATTENTION, ALONE)),
    *(OWN | run for run in (SHORT, SHORT | SPLIT, LARGE, SHORT | UNIFORM, SHORT | ALONE, SHORT | {"sequences": 3} | UNIFORM)),
]
CODE = types.SimpleNamespace()
FUNCTIONS = {
    "relax/utils/sft_utils.py": {"compute_sft_response_chunk"},
    "relax/backends/megatron/loss.py": {
        "get_responses",
        "get_log_probs_and_entropy",
        "sft_loss_function",
        "sft_loss_function_chunked",
    },
    "relax/backends/megatron/model.py": {"_find_lm_output_layer", "_bypass_output_layer"},
}


def use_loss(relax: Path, slime: Path) -> None:
    """Relax's functions by themselves, around slime's calculate_log_probs_and_entropy, which is Relax's own."""
    from megatron.core import parallel_state
    from megatron.core.utils import unwrap_model

    text = (slime / "slime/utils/ppo_utils.py").read_text(encoding="utf-8").replace("softmax.is_cuda", "True")
    real, torch.compile = torch.compile, lambda *a, **_k: a[0] if a else (lambda fn: fn)  # type: ignore[assignment]
    slimes = actor_losses.module("slime_ppo_utils", text)
    torch.compile = real

    def own(*given: Any, **named: Any) -> Any:
        return slimes.calculate_log_probs_and_entropy(*given, log_prob_keep_mask=None, **named)

    CODE.__dict__.update(
        torch=torch,
        F=torch.nn.functional,
        mpu=parallel_state,
        unwrap_model=unwrap_model,
        contextmanager=contextlib.contextmanager,
        calculate_log_probs_and_entropy=own,
        validate_opd_topk_gather=lambda *_a: None,
    )
    for path, names in FUNCTIONS.items():
        tree = ast.parse((relax / path).read_text(encoding="utf-8"))
        tree.body = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name in names]
        for node in tree.body:
            for argument in [*node.args.args, *node.args.kwonlyargs]:  # type: ignore[attr-defined]
                argument.annotation = None
            node.returns = None  # type: ignore[attr-defined]
        exec(compile(tree, path, "exec"), CODE.__dict__)
    inside = actor_losses.module("relax.utils.sft_utils")
    inside.compute_sft_response_chunk = CODE.compute_sft_response_chunk


def given_of(run: Row) -> tuple[types.SimpleNamespace, Row]:
    """Supervised samples have no prompt."""
    each, all_of = run["tokens"], run["sequences"]
    arguments = types.SimpleNamespace(
        qkv_format="bshd" if run["padded"] else "thd",
        allgather_cp=False,
        loss_type="sft" if run["supervised"] else "policy_loss",
        sft_chunked_logits=run["head_chunk"] > 0,
        sft_logits_chunk_size=run["head_chunk"],
        rollout_temperature=run["temperature"],
        log_probs_chunk_size=run["chunk"],
        entropy_coef=0.01 if run["entropy_gradient"] else 0.0,
        opd_log_prob_top_k=0,
    )
    batch: Row = {
        "unconcat_tokens": [torch.zeros(each, dtype=torch.int64) for _ in range(all_of)],
        "total_lengths": [each] * all_of,
        "response_lengths": [each if run["supervised"] else each - 1] * all_of,
        "max_seq_lens": [each] * all_of if run["padded"] else None,
    }
    return arguments, batch


def policy_loss(arguments: Any, batch: Row, logits: torch.Tensor, _mean: Any, entropy: bool) -> torch.Tensor:
    """What policy_loss_function makes of the logits, without numbers of tokens."""
    _, out = CODE.get_log_probs_and_entropy(logits, args=arguments, with_entropy=entropy, **batch)
    loss = torch.cat(out["log_probs"]).mean()
    if not entropy:
        return loss
    total = torch.cat(out["entropy"]).mean()
    return loss - total if arguments.entropy_coef else loss


def loss_of(run: Row, model: Any) -> torch.Tensor:
    """forward_step of Relax's train_one_step and forward_only, and loss_function."""
    from megatron.core.packed_seq_params import PackedSeqParams

    each, tokens = run["tokens"], run["tokens"] * run["sequences"]
    offsets = torch.arange(0, tokens + 1, each, dtype=torch.int32)
    packed = PackedSeqParams(cu_seqlens_q=offsets, cu_seqlens_kv=offsets, max_seqlen_q=each, max_seqlen_kv=each, qkv_format="thd")
    named: Row = {"position_ids": None, "attention_mask": None, "labels": None}
    named["packed_seq_params"] = None if run["padded"] else packed
    ids = torch.zeros((run["sequences"], each) if run["padded"] else (1, tokens), dtype=torch.int64)
    arguments, batch = given_of(run)
    if run["head_chunk"] > 0:
        with CODE._bypass_output_layer(model) as head:
            states = model(input_ids=ids, **named)
        function = partial(CODE.sft_loss_function_chunked, lm_head_forward=head)
    else:
        states = model(input_ids=ids, **named)
        function = CODE.sft_loss_function if run["supervised"] else partial(policy_loss, entropy=run["entropy"])
    if run["checkpoint"]:
        out = checkpoint(function, arguments, batch, states, torch.mean, use_reentrant=True)
    else:
        out = function(arguments, batch, states, torch.mean)
    return out[0] if isinstance(out, tuple) else out


def execute(changes: Row) -> Row:
    run = BASE | changes
    counts: Row = {}

    def model_of(of: Row) -> Any:
        if of["local"]:
            from megatron.core.transformer.enums import AttnBackend

            plain = {"masked_softmax_fusion": False, "attention_softmax_in_fp32": True}
            of = of | {"provider": {"attention_backend": AttnBackend.local, **plain}}
        model, _peft = adapters.adapted(of)
        trained = [p for p in model.parameters() if p.requires_grad]
        counts["trained"] = sum(p.numel() for p in trained if getattr(p, "allreduce", True))
        counts["trained_experts"] = sum(p.numel() for p in trained if not getattr(p, "allreduce", True))
        return model

    line = verl_megatron_step.execute(run | {"expert": adapters.experts_of(run)}, model_of, loss_of)
    return line | {"run": run} | counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("core", "te", "bridge", "slime", "relax"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--output", type=Path, default=ROOT / "tests/data/executed_relax_adapters.jsonl")
    parser.add_argument("--only", type=int, nargs="+", help="numbers of runs, told and not written")
    given = parser.parse_args()
    warnings.filterwarnings("ignore")
    logging.disable(logging.INFO)
    adapters.prepare_bridge(given)
    use_loss(given.relax, given.slime)
    if given.only:
        for number in given.only:
            print(json.dumps(execute(RUNS[number])))
        return
    lines = [json.dumps(execute(changes), separators=(",", ":")) for changes in RUNS]
    given.output.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
