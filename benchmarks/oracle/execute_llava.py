"""Makes tests/data/executed_llava.jsonl: training steps of LLaVA 1.5 with its CLIP tower, executed by PyTorch on one device.

    python benchmarks/oracle/execute_llava.py [--only WORD] [--output tests/data/executed_llava.jsonl]

As execute_towers.py, whose cases these are.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from functools import partial

import execute_towers
from execute import SMALL, Row
from execute_vision import ADAPTED, FLASH, USUAL, one_step, words_of, write_rows
from fuzz import sdpa

CLIP: Row = {
    "model_type": "clip_vision_model",
    "num_hidden_layers": 6,
    "hidden_size": 256,
    "num_attention_heads": 4,
    "intermediate_size": 640,
    "patch_size": 14,
    "image_size": 224,
}
LLAVA: Row = {"model_type": "llava", "vision_config": CLIP, "image_token_index": 5, "tie_word_embeddings": False}
CONFIGS: dict[str, Row] = {
    "llava": {**LLAVA, "text_config": {**SMALL, "vocab_size": 1024, "model_type": "llama"}},
    "llava, mistral": {
        **LLAVA,
        "text_config": {**SMALL, "vocab_size": 1024, "model_type": "mistral", "sliding_window": None},
        "vision_config": {**CLIP, "num_hidden_layers": 5, "image_size": 336},
    },
}


def rows_of(name: str, config: Row, by: str) -> Iterator[Row]:
    first = name == "llava"
    cases = [*execute_towers.ONE_DEVICE[:: 1 if first else 3], *FLASH]
    told = ["/".join(f"{key}={value}" for key, value in case.items()) or "usual" for case in cases]
    adapted = [changes | {"train": "none"} for changes in ADAPTED if first and "ranks" not in changes]
    told += ["/".join(f"{key}={value}" for key, value in words_of(changes).items()) for changes in adapted]
    for words, changes in zip(told, [*cases, *adapted], strict=True):
        case = USUAL | {"tokens": 1024} | changes
        job = execute_towers.job_with_images(config, case)
        if case["images"] * (case["height"] // 14) * (case["width"] // 14) > case["tokens"]:  # shapes alone run so
            job.setdefault("apart", {})["beyond"] = ["vision.images"]
        row = {"id": f"{name}/{words}", "config": name, "job": job, "source": by}
        saved = execute_towers.execute(config, case)
        model = execute_towers.model_of(config, case)
        block = execute_towers.blocks_of(model)[0]
        inputs = partial(execute_towers.inputs_of, config, case, "meta")
        # hooks on saved tensors keep what a node saves of its own result for ever where no backward pass comes: of the last block
        yield row | saved | one_step(execute_towers.adapted(model, case), block, inputs, {}, False)


def main() -> None:
    module = importlib.import_module("transformers.models.llava.modeling_llava")
    module.torch_compilable_check = lambda *_, **__: None  # counts the images' tokens
    write_rows(__doc__, "executed_llava.jsonl", CONFIGS, rows_of, sdpa)


if __name__ == "__main__":
    main()
