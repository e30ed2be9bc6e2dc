"""Makes tests/data/executed_vectors.jsonl: adapters other than LoRA, executed by PyTorch: peft's VeRA and IA3 on the meta device, and
LitGPT's adapter and adapter_v2 on fake tensors.

    python benchmarks/oracle/execute_vectors.py LITGPT [--output tests/data/executed_vectors.jsonl]

Both kits' own modules run. LitGPT's loops validate before they train, so a forward pass without gradients comes first: keys and
values of the prefixes are kept from then on. Its attention over a prefix is the memory-efficient kernel, whose bias is converted
and padded in front of it as scaled_dot_product_attention does (aten/src/ATen/native/transformers/attention.cpp).
"""

from __future__ import annotations

import argparse
import gc
import importlib
import sys
import tempfile
from importlib import metadata
from pathlib import Path
from typing import Any

import execute
import execute_litgpt
import peft
import torch
import torch.nn.functional as F
import transformers
import transformers.masking_utils
from execute import ROOT, SMALL, Row, half_to_float
from execute_litgpt import MODELS, RELEASES, Lives, chunked_cross_entropy, flash, forward, fused_dropout
from litgpt_code import fields_of, modules, unpack
from row_lines import write_rows
from torch._subclasses.fake_tensor import FakeTensorMode

aten = torch.ops.aten
NARROW: Row = {**SMALL, "vocab_size": 512}
PEFT_MODELS: dict[str, Row] = {
    "llama, narrow": {"model_type": "llama", **NARROW},
    "qwen2, narrow": {"model_type": "qwen2", **NARROW, "tie_word_embeddings": True},
}
RANK, TOKENS = 16, 10  # of VeRA's pair, of LitGPT's prefixes
IA3 = ["k_proj", "v_proj", "down_proj"]
# kind, modules, sequences, tokens of one, checkpoints, dropout
PEFT_RUNS = [
    ("vera", ["q_proj", "v_proj"], 1, 512, False, 0.0),
    ("vera", ["q_proj", "v_proj"], 2, 128, False, 0.1),
    ("vera", ["q_proj", "down_proj"], 1, 512, True, 0.0),
    ("ia3", IA3, 1, 512, False, 0.0),
    ("ia3", IA3, 2, 128, False, 0.0),
    ("ia3", IA3, 1, 512, True, 0.0),
]


def with_prefix(q: Any, k: Any, v: Any, attn_mask: Any = None, **_options: Any) -> Any:
    if attn_mask is None:
        return flash(q, k, v)
    bias = torch.empty(attn_mask.shape, dtype=q.dtype)
    if bias.shape[-1] % 8:
        bias = F.pad(bias, (0, 8 - bias.shape[-1] % 8))[..., : bias.shape[-1]]
    bias = bias.expand(q.shape[0], q.shape[1], q.shape[2], k.shape[2])
    return aten._scaled_dot_product_efficient_attention(q, k, v, bias, q.requires_grad)[0]


def litgpt_model(root: Path, config: Row, tokens: int, kind: str) -> Any:
    modules(root)
    code = importlib.import_module(f"litgpt.{kind}")
    setattr(sys.modules["litgpt"], kind, code)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    model = code.GPT(code.Config(**fields_of(config)))
    torch.set_default_dtype(before)
    model.max_seq_length = tokens
    getattr(code, f"mark_only_{kind}_as_trainable")(model)
    return model.train()


def execute_litgpt_adapter(root: Path, config: Row, kind: str, tokens: int) -> Row:
    lives, fake = Lives(), FakeTensorMode(allow_non_fake_inputs=True)
    with fake:
        model = litgpt_model(root, config, tokens, kind)
        with torch.no_grad():
            forward(model, torch.empty(1, tokens, dtype=torch.int64), True, False)
    caches = [half for m in model.modules() for half in getattr(m, "adapter_kv_cache", None) or ()]
    gc.collect()
    gc.disable()
    resident = sum(lives.own(tensor) for tensor in [*model.parameters(), *model.buffers(), *caches])
    del caches
    with fake, lives:
        ids = torch.empty(1, tokens, dtype=torch.int64)
        labels = torch.empty_like(ids)
        logits = forward(model, ids, True, False)
        logits[-1] = logits[-1][..., :-1, :]
        loss = chunked_cross_entropy(logits, labels[..., 1:])
        highest = lives.highest
        lives.highest = lives.live
        lives.engine = True
        loss.backward()
    gc.enable()
    return {"forward": resident + highest, "backward": resident + lives.highest}


def litgpt_rows(clone: Path, folder: Path) -> list[Row]:
    names = [name for name in MODELS if name in ("llama, grouped", "llama", "gpt_neox", "phi")]
    lines: list[Row] = [{"config": name, "fields": MODELS[name]} for name in names]
    for kernels, release in RELEASES.items():
        root = unpack(clone, release, folder / release)
        for name in names:
            for kind in ("adapter", "adapter_v2"):
                for tokens in (512, 1024):
                    trainer: Row = {
                        "engine": "single",
                        "kernels": kernels,
                        "precision": {"storage": "bf16"},
                        "recompute": "none",
                        "optimizer": "sgd",
                        "head": "litgpt",
                        "sequences_per_micro_batch": 1,
                        "sequence_tokens": tokens,
                        "kernel_internals": False,
                        "lora": {"kind": kind, "rank": TOKENS, "format": "storage"},
                    }
                    row: Row = {"id": f"{kernels}/{name}/{kind}/{tokens}", "config": name}
                    row["job"] = {"framework": "torch", "trainer": trainer, "apart": {"forward_only": False}}
                    row["source"] = f"torch {torch.__version__.split('+')[0]}, litgpt {release} executed on fake tensors"
                    row["peaks"] = execute_litgpt_adapter(root, MODELS[name], kind, tokens)
                    lines.append(row)
                    print(row["id"], row["peaks"], file=sys.stderr)
    return lines


def adapted(model: Any, run: Any) -> Any:
    kind, targets, _, _, checkpointing, rate = run
    if checkpointing:
        model.enable_input_require_grads()
    settings: Any = (
        peft.VeraConfig(task_type="CAUSAL_LM", r=RANK, target_modules=targets, vera_dropout=rate)
        if kind == "vera"
        else peft.IA3Config(task_type="CAUSAL_LM", target_modules=targets, feedforward_modules=["down_proj"])
    )
    model = peft.get_peft_model(model, settings)
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:  # which peft casts elsewhere than on this device
        if f"{kind}_" in name:
            tensor.data = torch.empty_like(tensor, dtype=torch.float32, device="meta")
    return model


def share(model: Any) -> Any:
    """VeRA's pair is one, whatever a cast made of it."""
    pair = None
    for module in model.modules():
        if not isinstance(getattr(module, "vera_lambda_b", None), torch.nn.ParameterDict):
            continue
        pair = pair or (module.vera_A["default"], module.vera_B["default"])
        module.vera_A["default"], module.vera_B["default"] = pair
    return model


def peft_rows() -> list[Row]:
    by = f"torch {torch.__version__.split('+')[0]}, transformers {transformers.__version__}, peft {metadata.version('peft')}"
    lines: list[Row] = [{"config": name, "fields": fields} for name, fields in PEFT_MODELS.items()]
    for name, config in PEFT_MODELS.items():
        for run in PEFT_RUNS:
            kind, targets, sequences, tokens, checkpointing, rate = run
            execute.adapted = lambda model, now=run: share(adapted(model, now))
            peaks, _ = execute.execute(config, sequences, tokens, checkpointing, True)
            job = execute.job_of(sequences, tokens, checkpointing)
            job["trainer"]["lora"] = {"kind": kind, "rank": RANK if kind == "vera" else 1, "targets": targets, "dropout": rate}
            words = f"{kind}/{'+'.join(targets)}/{sequences}x{tokens}{'/checkpoint' if checkpointing else ''}/{rate}"
            row = {
                "id": f"{name}/{words}",
                "config": name,
                "job": job,
                "source": f"{by} executed on the meta device",
                "peaks": peaks,
            }
            lines.append(row)
            print(row["id"], peaks, file=sys.stderr)
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("litgpt", type=Path)
    parser.add_argument("--output", type=Path, default=ROOT / "tests" / "data" / "executed_vectors.jsonl")
    options = parser.parse_args()
    F.softmax = half_to_float(F.softmax)
    F.dropout = fused_dropout
    transformers.masking_utils.find_packed_sequence_indices = lambda *_, **__: None
    lines = peft_rows()
    F.scaled_dot_product_attention = execute_litgpt.flash = with_prefix
    with tempfile.TemporaryDirectory() as folder:
        lines += litgpt_rows(options.litgpt, Path(folder))
    write_rows(options.output, lines)


if __name__ == "__main__":
    main()
