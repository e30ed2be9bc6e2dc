"""Loss heads for fuzz.py: what a training loop, TRL's trainers or a value model's loss do behind the last hidden state.

The names are those of `head` in docs/job_file.md. logsumexp's kernel makes exp(x - max) of x's size first
(aten/src/ATen/native/ReduceOps.cpp logsumexp_out_impl), which no operator shows: fuzz.py's storages count it.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
import transformers
from execute import Row
from fuzz_models import some

aten = torch.ops.aten
ROWS = 1024  # of logprob_chunked
PARTS = 8  # of cross_entropy_chunked
TEMPERATURE = 0.7
OF_MODELS = {"value": "AutoModelForTokenClassification", "reward_pairs": "AutoModelForSequenceClassification"}


def chosen(log_probs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return log_probs.gather(-1, labels.unsqueeze(-1)).squeeze(-1)


def plain(model: Any, given: Row) -> torch.Tensor:
    return model(**given).logits


def by_log_softmax(model: Any, given: Row, labels: torch.Tensor) -> torch.Tensor:
    return chosen(F.log_softmax(plain(model, given).float(), dim=-1), labels).mean()


def in_16_bits(model: Any, given: Row, labels: torch.Tensor) -> torch.Tensor:
    return chosen(F.log_softmax(plain(model, given), dim=-1), labels).mean()


def by_logsumexp(model: Any, given: Row, labels: torch.Tensor) -> torch.Tensor:
    logits = plain(model, given).float()
    return (chosen(logits, labels) - torch.logsumexp(logits, dim=-1)).mean()


def row_by_row(model: Any, given: Row, labels: torch.Tensor) -> torch.Tensor:
    out = [chosen(F.log_softmax(row, dim=-1), label) for row, label in zip(plain(model, given), labels, strict=True)]
    return torch.stack(out).mean()


def by_chunks(model: Any, given: Row, labels: torch.Tensor) -> torch.Tensor:
    logits, wanted = plain(model, given).flatten(0, 1), labels.flatten()
    out = []
    for first in range(0, len(logits), ROWS):
        log_probs = F.log_softmax(logits[first : first + ROWS].float(), dim=-1)
        out.append(chosen(log_probs, wanted[first : first + ROWS]))
        del log_probs
    return torch.cat(out).mean()


def entropy(logits: torch.Tensor) -> torch.Tensor:
    probabilities = F.softmax(logits, dim=-1)
    return torch.logsumexp(logits, dim=-1) - (probabilities * logits).sum(dim=-1)


def with_entropy(model: Any, given: Row, labels: torch.Tensor) -> torch.Tensor:
    logits = plain(model, given).float()
    token = chosen(F.log_softmax(logits, dim=-1), labels)
    return (token + entropy(logits)).mean()


def with_entropy_as_metric(model: Any, given: Row, labels: torch.Tensor) -> torch.Tensor:
    logits = plain(model, given).float()
    token = chosen(F.log_softmax(logits, dim=-1), labels)
    with torch.no_grad():
        spread = entropy(logits)
    return (token + spread).mean()


def with_temperature(model: Any, given: Row, labels: torch.Tensor) -> torch.Tensor:
    logits = plain(model, given)
    logits = logits / TEMPERATURE
    return chosen(F.log_softmax(logits.float(), dim=-1), labels).mean()


def cross_entropy(model: Any, given: Row, labels: torch.Tensor) -> torch.Tensor:
    logits = plain(model, given)
    return F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())


def value(model: Any, given: Row, _labels: torch.Tensor) -> torch.Tensor:
    """verl/trainer/ppo/core_algos.py compute_value_loss (0.9), behind one fp32 number a token."""
    values = plain(model, given).squeeze(-1).float()
    old, returns = torch.empty_like(values), torch.empty_like(values)
    clipped = torch.max(torch.min(values, old + 0.5), old - 0.5)
    return torch.max((values - returns) ** 2, (clipped - returns) ** 2).mean()


Loss = Callable[[Any, Row, torch.Tensor], torch.Tensor]
HEADS: dict[str, Loss] = {
    "logprob_fp32": by_log_softmax,
    "logprob_bf16": in_16_bits,
    "logprob_lse": by_logsumexp,
    "logprob_rows": row_by_row,
    "logprob_chunked": by_chunks,
    "logprob_entropy_fp32": with_entropy,
    "logprob_entropy_nograd": with_entropy_as_metric,
    "logprob_temperature": with_temperature,
    "cross_entropy": cross_entropy,
    "value": value,
}
DRAWN = ("hf_loss", "hf_loss", "logprob_fp32", *(name for name in HEADS if name != "value"))


def draw(rng: random.Random, case: Row) -> Row:
    """Of one device; `kept` and kept outputs are drawn before, for the heads that have them."""
    head = some(rng, *DRAWN) if rng.random() < 0.93 else "value"
    out: Row = {"head": head}
    if head not in ("hf_loss", "logprob_fp32", "logprob_bf16"):
        out["keep_outputs"] = False
    if head == "value":
        out |= {"kept": 0, "padding": False}
    return out


def model_of(head: str, settings: Any, **given: Any) -> Any:
    """Of a causal language model, or of one with a number for each token or sequence in place of the output layer."""
    if head in OF_MODELS:
        settings.num_labels, settings.classifier_dropout = 1, 0.0
    return getattr(transformers, OF_MODELS.get(head, "AutoModelForCausalLM")).from_config(settings, **given)


def with_hidden_temporaries(dispatch: Callable[..., Any]) -> Callable[..., Any]:
    def replaced(lives: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is aten.logsumexp.default:
            lives.highest = max(lives.highest, lives.live + args[0].nbytes)
        return dispatch(lives, func, types, args, kwargs)

    return replaced
