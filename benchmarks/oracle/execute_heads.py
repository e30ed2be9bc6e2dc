"""Makes tests/data/executed_heads.jsonl: verl's loss heads behind a narrow model, executed by PyTorch on the meta device.

    python benchmarks/oracle/execute_heads.py [--output tests/data/executed_heads.jsonl]

The model is so narrow that the highest level of every phase is the head's. The heads do what verl's functions do, operator by
operator (verl/utils/torch_functional.py, 0.8); flash-attention's cross-entropy is a node that saves and makes what the Triton one
does. No autocast: the meta device has none. Lines are those of execute.py.
"""

from __future__ import annotations

import argparse
import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional
import transformers
from execute import ROOT, SMALL, Row, Storages, as_on_cuda, job_of, make_model
from row_lines import write_rows
from torch.nn.functional import log_softmax
from torch.utils.checkpoint import checkpoint

CONFIG: Row = {
    "model_type": "llama",
    **SMALL,
    "hidden_size": 8,
    "intermediate_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "vocab_size": 40000,
    "max_position_embeddings": 16384,
}
ENTROPY_ROWS = 2048
# one chunk that is not full, one, two, three, four (all that is simulated) and five
LENGTHS = (1000, 2048, 4096, 6144, 8192, 10240)
ROWS = (1, 2, 3, 4, 100, 300)


class FlashCrossEntropy(torch.autograd.Function):
    """flash_attn/ops/triton/cross_entropy.py: one fp32 number a row is kept, the gradient may be written into the logits."""

    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, labels: torch.Tensor, in_place: bool) -> torch.Tensor:
        losses, lse, _z = (torch.empty(len(logits), dtype=torch.float32, device=logits.device) for _ in range(3))
        ctx.save_for_backward(logits, lse, labels)
        ctx.in_place = in_place
        return losses

    @staticmethod
    def backward(ctx: Any, *_gradients: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        logits = ctx.saved_tensors[0]
        return (logits if ctx.in_place else torch.empty_like(logits)), None, None


def entropy(logits: torch.Tensor) -> torch.Tensor:
    probabilities = torch.nn.functional.softmax(logits, dim=-1)
    return torch.logsumexp(logits, dim=-1) - (probabilities * logits).sum(dim=-1)


def entropy_by_chunks(logits: torch.Tensor) -> torch.Tensor:
    """Names of the loop outlive their turn, as verl's do."""
    out = torch.zeros(len(logits), device=logits.device)
    for first in range(0, len(logits), ENTROPY_ROWS):
        chunk = logits[first : first + ENTROPY_ROWS].float()
        probabilities = torch.nn.functional.softmax(chunk, dim=-1)
        out[first : first + ENTROPY_ROWS] = torch.logsumexp(chunk, dim=-1) - (probabilities * chunk).sum(dim=-1)
    return out


def log_probs_by_rows(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    tokens = []
    for row, label in zip(logits, labels, strict=True):
        log_probs = log_softmax(row, dim=-1)
        tokens.append(log_probs.gather(-1, label.unsqueeze(-1)).squeeze(-1))
    return torch.stack(tokens)


def under_checkpoint(function: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda logits: checkpoint(function, logits, use_reentrant=True)


ENTROPIES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "verl_entropy_eager": entropy,
    "verl_entropy_eager_div_in_place": entropy,
    "verl_fp32_entropy_eager": entropy,
    "verl_entropy_checkpoint": under_checkpoint(entropy),
    "verl_entropy_chunked": entropy_by_chunks,
    "verl_entropy_chunked_checkpoint": under_checkpoint(entropy_by_chunks),
}
HEADS = (*ENTROPIES, "verl_flash_ce", "verl_flash_ce_div_in_place", "verl_fp32_flash_ce", "verl_rows")


def loss_of(head: str, model: Any, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """One step up to the loss; what is local here goes with it."""
    if "_fp32_" in head:
        logits = model(input_ids=ids).logits.float().squeeze(0)
    else:
        output = model(input_ids=ids)
        logits = output.logits.squeeze(0)
    if head.endswith("_div_in_place"):
        logits.div_(0.7)
    else:
        logits = logits / 0.7
    if head == "verl_rows":
        return log_probs_by_rows(logits, labels[0]).mean()
    if head not in ENTROPIES:
        return FlashCrossEntropy.apply(logits, labels[0], True).mean()
    spread = ENTROPIES[head](logits)
    return (FlashCrossEntropy.apply(logits, labels[0], False) + spread).mean()


def execute(head: str, tokens: int) -> Row:
    model = make_model(CONFIG, True, False)
    gc.collect()
    gc.disable()
    storages = Storages()
    resident = sum(storages.own(tensor) for tensor in [*model.parameters(), *model.buffers()])
    with storages:
        ids = torch.empty(1, tokens, dtype=torch.int64, device="meta")
        loss = loss_of(head, model, ids, torch.empty_like(ids))
        forward = storages.highest
        storages.highest = storages.live
        loss.backward()
    gc.enable()
    return {"forward": resident + forward, "backward": resident + storages.highest}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=ROOT / "tests" / "data" / "executed_heads.jsonl")
    options = parser.parse_args()
    as_on_cuda()
    versions = f"torch {torch.__version__.split('+')[0]}, transformers {transformers.__version__} executed on the meta device"
    lines: list[Row] = [{"config": "narrow", "fields": CONFIG}]
    for head in HEADS:
        for tokens in ROWS if head == "verl_rows" else LENGTHS:
            job = job_of(1, tokens, True)
            job["framework"] = "verl"
            job["trainer"]["head"] = head
            peaks = execute(head, tokens)
            lines.append({"id": f"{head}/s{tokens}", "config": "narrow", "job": job, "source": versions, "peaks": peaks})
    write_rows(options.output, lines)


if __name__ == "__main__":
    main()
