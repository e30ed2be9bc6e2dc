"""Makes tests/data/executed_generation.jsonl: passes of transformers' generate() and of lm-evaluation-harness, executed by PyTorch.

    python benchmarks/oracle/execute_generation.py [--only WORD] [--output tests/data/executed_generation.jsonl]

generate() runs as it is, on the meta device; what asks for the tokens themselves (has every sequence ended?) is answered by their
number. Its passes are told apart by calls of the model: the largest of `pass` is the last one without a cache, with one `prefill`
is the first and `token` the last. `scores` is the second batch of lm_eval/models/huggingface.py _loglikelihood_tokens, whose few
lines stand here. Lines are those of execute.py, with the tokens of a prompt. executed_generation_4.jsonl is the same by 4.57.1,
without experts, whose loop asks which rows they get; executed_generation_5_10.jsonl has the cached rows of SDPA by 5.10.4.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
from pathlib import Path
from typing import Any

import fuzz
import torch
import transformers
from execute import MODELS, ROOT, SMALL, WINDOWS, Row, Storages
from row_lines import write_rows

WIDE: Row = {"model_type": "llama", **SMALL, "vocab_size": 32768}
CONFIGS: dict[str, Row] = {
    "llama": {"model_type": "llama", **SMALL},
    "llama, many words": WIDE,
    "llama, tied": {**WIDE, "tie_word_embeddings": True},
    "qwen2": {"model_type": "qwen2", **SMALL},
    "qwen3": {"model_type": "qwen3", **SMALL, "head_dim": 64},
    "gemma": {"model_type": "gemma", **SMALL, "head_dim": 64},
    "gemma2": {"model_type": "gemma2", **SMALL, **WINDOWS, "head_dim": 64, "query_pre_attn_scalar": 64},
    "gemma3_text": {"model_type": "gemma3_text", **SMALL, **MODELS["gemma3_text"]},
    "phi3": {"model_type": "phi3", **SMALL, "pad_token_id": 0},
    "phi": {"model_type": "phi", **SMALL, **MODELS["phi"]},
    "olmo2": {"model_type": "olmo2", **SMALL},
    "olmo3": {"model_type": "olmo3", **SMALL, **WINDOWS},
    "qwen3_moe": {
        "model_type": "qwen3_moe",
        **SMALL,
        "head_dim": 64,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 256,
        "norm_topk_prob": True,
    },
    "gpt2": {"model_type": "gpt2", "n_embd": 512, "n_layer": 4, "n_head": 8, "vocab_size": 4096, "n_positions": 4096},
}
NEWEST = hasattr(transformers.generation.utils, "StopCheck")  # 5.20 or later
EAGER_ALONE = ("gemma2",)  # transformers has no SDPA of it
WINDOWED = ("gemma2", "gemma3_text", "olmo3")
# sequences, tokens at the end, of them new
SIZES = ((1, 512, 4), (4, 320, 3), (2, 1024, 2))
# name of the config, what runs, attention, sequences, tokens, new ones
Case = tuple[str, str, str, int, int, int]


def cases() -> list[Case]:
    out: list[Case] = []
    for name, config in CONFIGS.items():
        if transformers.__version__.startswith("4") and "num_experts" in config:  # which rows an expert gets is asked of the rows
            continue
        for attention in ("eager", "sdpa"):
            if attention == "sdpa" and name in EAGER_ALONE:
                continue
            for b, s, new in SIZES:
                out += [(name, what, attention, b, s, new) for what in ("next_token", "lm_eval")]
                if name not in WINDOWED:
                    out.append((name, "cached", attention, b, s, new))
        if NEWEST:  # others ask for the package
            out += [(name, "lm_eval", "flash_attention_2", b, s, 0) for b, s, _ in SIZES if name not in EAGER_ALONE]
    return out


def model_of(config: Row, attention: str) -> Any:
    fields = {key: value for key, value in config.items() if key != "model_type"}
    settings = transformers.AutoConfig.for_model(config["model_type"], **fields)
    settings.pad_token_id = 0
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(settings, dtype=torch.bfloat16, attn_implementation=attention)
    return model.eval()


class Passes:
    """The highest level of every call of the model and of what follows up to the next one."""

    def __init__(self, model: Any, storages: Storages) -> None:
        self.storages = storages
        self.peaks: list[int] = []
        model.register_forward_pre_hook(lambda *_: self.cut())

    def cut(self) -> None:
        self.peaks.append(self.storages.highest)
        self.storages.highest = self.storages.live


def ended_by_length() -> None:
    """Whether all sequences have ended is asked of the tokens: none ends early."""
    module = transformers.generation.utils
    mixin = module.GenerationMixin
    torch.Tensor.__bool__ = lambda _self: not asked["padded"]  # type: ignore[method-assign]  # is a mask one of ones?
    if NEWEST:
        mixin._has_unfinished_sequences = lambda _self, finished, *_, **__: not finished
        module.StopCheck.__call__ = lambda _self, _unfinished, _tokens, length: length >= asked["tokens"]
    else:  # up to 5.19
        plain = transformers.StoppingCriteriaList.__call__
        mixin._has_unfinished_sequences = lambda *_, **__: asked["length"] < asked["tokens"]

        def criteria(self: Any, ids: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
            asked["length"] = ids.shape[1]
            return plain(self, ids, *args, **kwargs)

        plain_range = torch.arange

        def one_more(*args: Any, **kwargs: Any) -> torch.Tensor:
            """Positions of the tokens that are new are made from the last one's, which is no number here."""
            said = args and isinstance(args[0], torch.Tensor)
            return torch.empty(1, dtype=torch.int64, device="meta") if said else plain_range(*args, **kwargs)

        torch.arange = one_more
        transformers.StoppingCriteriaList.__call__ = criteria
        torch.autocast = no_autocast  # type: ignore[assignment,misc]
    mixin._prepare_special_tokens = special_tokens


def no_autocast(*_: Any, **__: Any) -> Any:
    """The meta device has none, and it is there to be switched off."""
    return contextlib.nullcontext()


def special_tokens(_self: Any, config: Any, *_: Any, **__: Any) -> None:
    config._pad_token_tensor = config._bos_token_tensor = config._eos_token_tensor = config._decoder_start_token_tensor = None


def generate(model: Any, storages: Storages, case: Row) -> Row:
    sequences, tokens, new = case["sequences"], case["tokens"], case["new"]
    asked["tokens"], asked["length"] = tokens, 0
    settings = transformers.GenerationConfig(max_new_tokens=new, do_sample=False, use_cache=case["cached"], pad_token_id=0)
    with storages:
        ids = torch.empty(sequences, tokens - new, dtype=torch.int64, device="meta")
        batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        passes = Passes(model, storages)
        model.generate(**batch, generation_config=settings)
        passes.cut()
    peaks = passes.peaks[1:]
    assert len(peaks) == new
    return {"prefill": peaks[0], "token": peaks[-1]} if case["cached"] else {"pass": max(peaks)}


def score(model: Any, storages: Storages, case: Row) -> Row:
    with storages, torch.no_grad():
        ids = torch.empty(case["sequences"], case["tokens"], dtype=torch.int64, device="meta")
        for _ in range(2):
            scores = torch.nn.functional.log_softmax(model(ids).logits, dim=-1, dtype=None)  # noqa: F841
    return {"pass": storages.highest}


asked: Row = {"padded": False}


def execute(config: Row, what: str, attention: str, case: Row) -> Row:
    model = model_of(config, attention)
    padded = case["sequences"] > 1
    asked["padded"] = padded
    transformers.masking_utils._ignore_causal_mask_sdpa = ignores(padded and what != "lm_eval")
    gc.collect()
    gc.disable()
    storages = Storages()
    resident = sum(storages.own(tensor) for tensor in [*model.parameters(), *model.buffers()])
    peaks = (score if what == "lm_eval" else generate)(model, storages, case)
    gc.enable()
    return {name: resident + peak for name, peak in peaks.items()}


PLAIN_IGNORES = transformers.masking_utils._ignore_causal_mask_sdpa


def ignores(padded: bool) -> Any:
    """Whether a mask is one of ones is read from it: of several prompts it is not."""

    def replaced(mask: Any, *args: Any, **kwargs: Any) -> bool:
        if padded and mask is not None:
            return False
        return bool(PLAIN_IGNORES(None, *args, **kwargs))

    return replaced


def case_job(what: str, attention: str, case: Row) -> Row:
    scores = what == "lm_eval"
    trainer: Row = {
        "engine": "single",
        "kernels": fuzz.ATTENTIONS[attention],
        "precision": dict.fromkeys(("storage", "compute", "reduce"), "bf16"),
        "autocast": False,
        "recompute": "none",
        "sequences_per_micro_batch": case["sequences"],
        "sequence_tokens": case["tokens"],
        "kernel_internals": False,
        "head": "lm_eval" if scores else "next_token",
        "kv_cache": scores or case["cached"],
        "padding_mask": case["sequences"] > 1 and not scores,
    }
    if not NEWEST:
        trainer["transformers"] = transformers.__version__
    job: Row = {"framework": "torch", "trainer": trainer}
    return job | {"apart": {"beyond": ["sequence_tokens"]}} if case["cached"] else job


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="")
    parser.add_argument("--output", type=Path, default=ROOT / "tests" / "data" / "executed_generation.jsonl")
    options = parser.parse_args()
    fuzz.stand_in()
    ended_by_length()
    by = f"torch {torch.__version__.split('+')[0]}, transformers {transformers.__version__} executed on the meta device"
    lines: list[Row] = []
    for name, config in CONFIGS.items():
        rows: list[Row] = []
        for of, what, attention, sequences, tokens, new in cases():
            title = f"{name}/{what}/{attention}/b{sequences}s{tokens}" + ("" if NEWEST else f"/{transformers.__version__}")
            if of != name or options.only not in title:
                continue
            case: Row = {"sequences": sequences, "tokens": tokens, "new": new, "cached": what == "cached"}
            row: Row = {"id": title, "config": name, "job": case_job(what, attention, case), "source": by}
            if case["cached"]:
                row["prompt"] = tokens - new
            rows.append(row | {"peaks": execute(config, what, attention, case)})
        lines += [{"config": name, "fields": config}, *rows] if rows else []
    write_rows(options.output, lines)


if __name__ == "__main__":
    main()
