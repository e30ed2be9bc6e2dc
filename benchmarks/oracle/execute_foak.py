"""Makes tests/data/executed_foak.jsonl: training steps with fms-acceleration's fused operators and on GPTQ bases, on fake tensors.

    python benchmarks/oracle/execute_foak.py [--output tests/data/executed_foak.jsonl]

The operators are foak_code.py's, the model is transformers' own. Tensors are fake CPU ones, for the sake of autocast, which the meta
device has not. Lines are those of execute.py.
"""

from __future__ import annotations

import argparse
import gc
from pathlib import Path
from typing import Any

import foak_code
import torch
import torch.nn.functional
import transformers
from execute import RANK, ROOT, SMALL, Row, Storages, as_on_cuda, job_of
from row_lines import write_rows
from torch._subclasses.fake_tensor import FakeTensorMode

NARROW: Row = {**SMALL, "vocab_size": 512}  # so that layers are higher than the loss
CONFIGS: dict[str, Row] = {
    "llama": {"model_type": "llama", **NARROW},
    "llama-wide": {"model_type": "llama", **SMALL, "hidden_size": 256, "vocab_size": 70016},
    "mistral": {"model_type": "mistral", **NARROW, "sliding_window": None},
    "granite": {"model_type": "granite", **NARROW, "tie_word_embeddings": True},
}
MODULES = ["q_proj", "k_proj", "v_proj", "o_proj"]
NF4: Row = {"base": "nf4", "base_double_quant": True, "base_compute": "bf16", "bitsandbytes": "0.43.3", "targets": MODULES}
GPTQ: Row = {"base": "gptq", "targets": MODULES}
ALL = ("rope", "rms_norm", "lora")
# fused operators, head, adapters, checkpointing, sequences
Case = tuple[tuple[str, ...], str, Row, str, int]
FULL: dict[str, Case] = {
    "foak_ce": ((), "foak_ce", {}, "", 1),
    "foak_ce/two": ((), "foak_ce", {}, "", 2),
    "rms_norm": (("rms_norm",), "hf_loss", {}, "", 1),
    "rope": (("rope",), "hf_loss", {}, "", 1),
    "both": (("rope", "rms_norm"), "foak_ce", {}, "reentrant", 1),
    "both/nonreentrant": (("rope", "rms_norm"), "foak_ce", {}, "nonreentrant", 2),
}
PACKED: dict[str, Case] = {
    "nf4": ((), "foak_ce", NF4, "", 1),
    "nf4/lora": (("lora",), "hf_loss", NF4, "", 1),
    "nf4/lora/dropout": (("lora",), "hf_loss", {**NF4, "dropout": 0.1}, "", 1),
    "nf4/all": (ALL, "foak_ce", {**NF4, "dropout": 0.1}, "reentrant", 1),
    "nf4/all/two": (ALL, "foak_ce", NF4, "nonreentrant", 2),
    "gptq": ((), "hf_loss", GPTQ, "", 1),
    "gptq/two": ((), "hf_loss", {**GPTQ, "base_bits": 8, "base_group": 64}, "", 2),
    "gptq/dropout": ((), "foak_ce", {**GPTQ, "dropout": 0.1}, "reentrant", 1),
    "gptq/all-linear": ((), "hf_loss", {"base": "gptq"}, "nonreentrant", 1),
    "gptq/lora": (("lora",), "hf_loss", GPTQ, "", 1),
    "gptq/lora/dropout": (("lora",), "hf_loss", {**GPTQ, "dropout": 0.1}, "", 1),
    "gptq/all": (ALL, "foak_ce", {**GPTQ, "dropout": 0.1}, "reentrant", 2),
}
WIDE = ("foak_ce", "foak_ce/two", "both")
TOKENS, WIDE_TOKENS = 512, 4096  # the copy without a sequence's last token is counted with it


def pack_base(model: Any, lora: Row, fused: bool) -> list[torch.Tensor]:
    """Packs every linear layer but the output layer, puts adapters beside the targets, freezes the rest."""
    owned: list[torch.Tensor] = []
    table = torch.empty(256)
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    for name, module in list(model.named_modules()):
        if not isinstance(module, torch.nn.Linear) or name == "lm_head":
            continue
        gptq = lora["base"] == "gptq"
        base: Any = (
            foak_code.Gptq(module, lora.get("base_bits", 4), lora.get("base_group", 128))
            if gptq
            else foak_code.Nf4(module, table)
        )
        owned += base.tensors() + ([] if gptq else [table])
        parent, _, last = name.rpartition(".")
        if last in lora.get("targets", [last]):
            base = foak_code.Adapted(base, RANK, lora.get("dropout", 0.0))
        setattr(model.get_submodule(parent), last, base)
    if fused:
        for layer in model.model.layers:
            foak_code.fuse(layer.self_attn)
    return owned


def make_model(config: Row, case: Case) -> tuple[Any, list[torch.Tensor]]:
    operators, head, lora, checkpointing, _ = case
    fields = {key: value for key, value in config.items() if key != "model_type"}
    settings = transformers.AutoConfig.for_model(config["model_type"], **fields)
    settings.use_cache = False
    dtype = torch.float16 if lora.get("base") == "gptq" else torch.bfloat16
    with torch.device("cpu"):
        model = transformers.AutoModelForCausalLM.from_config(settings, dtype=dtype, attn_implementation="eager")
    if head == "foak_ce":
        model.loss_function = foak_code.causal_loss
    owned = pack_base(model, lora, "lora" in operators) if lora else []
    model.train()
    if checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": checkpointing == "reentrant"})
        if lora:
            model.enable_input_require_grads()
    return model, owned


def execute(config: Row, case: Case, tokens: int) -> Row:
    operators, _, lora, _, sequences = case
    modeling = getattr(getattr(transformers.models, config["model_type"]), f"modeling_{config['model_type']}")
    norm = next(cls for name, cls in vars(modeling).items() if name.endswith("RMSNorm"))
    before = norm.forward, modeling.apply_rotary_pos_emb
    if "rms_norm" in operators:
        norm.forward = lambda module, x: foak_code.Norm.apply(x, module.weight)
    if "rope" in operators:
        modeling.apply_rotary_pos_emb = foak_code.rotate
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    try:
        with fake:
            model, packed = make_model(config, case)
        gc.collect()
        gc.disable()
        storages = Storages()
        owned = [*model.parameters(), *model.buffers(), *packed]
        resident = sum(storages.own(tensor) for tensor in owned)
        half = torch.float16 if lora.get("base") == "gptq" else torch.bfloat16
        with fake, storages:
            ids = torch.empty(sequences, tokens // sequences, dtype=torch.int64)
            labels = torch.empty_like(ids)
            with torch.autocast("cpu", half, enabled=bool(lora)):
                loss = model(input_ids=ids, labels=labels).loss
            forward = storages.highest
            storages.highest = storages.live
            loss.backward()
        gc.enable()
    finally:
        norm.forward, modeling.apply_rotary_pos_emb = before
    return {"forward": resident + forward, "backward": resident + storages.highest}


def foak_job(case: Case, tokens: int) -> Row:
    operators, head, lora, checkpointing, sequences = case
    job = job_of(sequences, tokens // sequences, bool(checkpointing))
    job["trainer"] |= {"head": head, "foak": list(operators), "reentrant": checkpointing == "reentrant", "autocast": bool(lora)}
    if lora:
        job["trainer"]["lora"] = {"rank": RANK, **lora}
    if lora.get("base") == "gptq":
        job["trainer"]["precision"] = {"storage": "fp16", "compute": "fp16", "reduce": "fp16"}
    return job


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=ROOT / "tests" / "data" / "executed_foak.jsonl")
    options = parser.parse_args()
    as_on_cuda()
    # CUDA's dropout is one operator with a mask of bytes
    torch.nn.functional.dropout = lambda x, p=0.5, training=True, _inplace=False: (
        torch.ops.aten.native_dropout(x, p, training)[0] if training and p > 0 else x
    )
    by = f"torch {torch.__version__.split('+')[0]}, transformers {transformers.__version__} executed on fake tensors"
    lines: list[Row] = []
    for name, config in CONFIGS.items():
        lines.append({"config": name, "fields": config})
        wide = name.endswith("-wide")
        cases, tokens = ({key: FULL[key] for key in WIDE}, WIDE_TOKENS) if wide else ({**FULL, **PACKED}, TOKENS)
        for case, settings in cases.items():
            peaks = execute(config, settings, tokens)
            row: Row = {"id": f"{name}/foak/{case}", "config": name, "job": foak_job(settings, tokens)}
            lines.append({**row, "source": by, "peaks": peaks})
    write_rows(options.output, lines)


if __name__ == "__main__":
    main()
