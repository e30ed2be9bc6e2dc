"""Makes tests/data/executed_mistral3.jsonl: training steps of Mistral 3 with its Pixtral tower, executed by PyTorch on one device.

    python benchmarks/oracle/execute_mistral3.py [--only WORD] [--output tests/data/executed_mistral3.jsonl]

As execute_vision.py, whose cases these are. What the model reads from the images' sizes on the host are numbers here.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import execute_towers
import torch
from execute import SMALL, Row
from execute_vision import ADAPTED, FLASH, ONE_DEVICE, USUAL, adapted, job_with_images, one_step, words_of, write_rows
from fuzz import sdpa
from vision_code import OnTheHost

PIXTRAL: Row = {
    "model_type": "pixtral",
    "num_hidden_layers": 5,
    "hidden_size": 256,
    "num_attention_heads": 4,
    "head_dim": 64,
    "intermediate_size": 640,
    "patch_size": 14,
    "image_size": 1540,
    "hidden_act": "silu",
}
MISTRAL3: Row = {
    "model_type": "mistral3",
    "vision_config": PIXTRAL,
    "image_token_index": 5,
    "spatial_merge_size": 2,
    "tie_word_embeddings": False,
}
TEXT: Row = {**SMALL, "vocab_size": 1024, "sliding_window": None, "head_dim": 64}
CONFIGS: dict[str, Row] = {
    "mistral3": {**MISTRAL3, "text_config": {**TEXT, "model_type": "mistral"}},
    "mistral3, ministral": {
        **MISTRAL3,
        "text_config": {**TEXT, "num_hidden_layers": 5, "model_type": "ministral3", "tie_word_embeddings": True},
        "vision_config": {**PIXTRAL, "num_hidden_layers": 6, "intermediate_size": 512},
        "tie_word_embeddings": True,
    },
}


class Sizes(list[Any]):
    """A tensor of the images' sizes, as far as the model asks for it."""

    def __floordiv__(self, number: int) -> Sizes:
        return Sizes([side // number for side in row] for row in self)

    def prod(self, dim: int) -> OnTheHost:
        return OnTheHost(row[0] * row[1] for row in self)


def execute(config: Row, case: Row) -> Row:
    model = execute_towers.model_of(config, case)
    block = model.model.vision_tower.transformer.layers[1]
    sides = [14 * side for side in case["grid"]]
    sizes = Sizes([sides] * (case["images"] * case["sequences"]))

    def inputs() -> Row:
        ids = torch.empty(case["sequences"], case["tokens"], dtype=torch.int64, device="meta")
        pixels = torch.empty(len(sizes), 3, *sides, dtype=torch.float32, device="meta")
        return {"input_ids": ids, "labels": torch.empty_like(ids), "pixel_values": pixels}

    tells = not case["checkpointing"] and case["train"] == "all" and case["kernels"] != "flash"  # which flattens the batch
    if len(sizes) * case["grid"][0] * case["grid"][1] % 32:
        tells = False  # the memory-efficient kernel rounds its log-sum-exp up to 32 rows, which is not described
    return one_step(adapted(model, case), block, inputs, {"image_sizes": sizes}, tells)


def rows_of(name: str, config: Row, by: str) -> Iterator[Row]:
    first = name == "mistral3"
    cases = [*ONE_DEVICE[:: 1 if first else 3], *FLASH]
    told = ["/".join(f"{key}={value}" for key, value in case.items()) or "usual" for case in cases]
    with_adapters = [changes | {"train": "none"} for changes in ADAPTED if first and "ranks" not in changes]
    told += ["/".join(f"{key}={value}" for key, value in words_of(changes).items()) for changes in with_adapters]
    for words, changes in zip(told, [*cases, *with_adapters], strict=True):
        case = USUAL | changes
        job = job_with_images(config, case)
        yield {"id": f"{name}/{words}", "config": name, "job": job, "source": by} | execute(config, case)


def main() -> None:
    module = importlib.import_module("transformers.models.mistral3.modeling_mistral3")
    module.torch_compilable_check = lambda *_, **__: None  # counts the images' tokens
    plain = torch.as_tensor
    torch.as_tensor = lambda data, **named: data if isinstance(data, Sizes) else plain(data, **named)
    write_rows(__doc__, "executed_mistral3.jsonl", CONFIGS, rows_of, sdpa)


if __name__ == "__main__":
    main()
