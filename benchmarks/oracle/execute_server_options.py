"""Makes tests/data/executed_server_options.jsonl: vLLM's own classes when the command asks for another format of weights or cache.

    LD_LIBRARY_PATH=STUBS python benchmarks/oracle/execute_server_options.py CONFIGS [--only TEXT] [--tensor 1,2] [--output FILE]

As execute_servers.py, with `options`, which are EngineArgs: weights that are quantised while they are loaded (`quantization`), the
cache's format, its pages, windows that keep all tokens. Needs bitsandbytes beside vLLM (0.19.1; 0.24.0 for
formats that came later, whose rows are the last ones of executed_servers_0_24.jsonl). Operators that quantise write into tensors
that are there, and do nothing here. The scales of bitsandbytes are no parameters of the model; they are added as its own
quantize_4bit gives them for a small matrix, behind what vLLM's loader makes of them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import bitsandbytes  # noqa: F401  (its import asks for a CUDA device)
import torch
import vllm_code
from bitsandbytes.functional import quantize_4bit
from meta_rank import GIB, META, Row, part_of
from server_cases import asked_for, cases, write
from vllm.model_executor.model_loader.bitsandbytes_loader import BitsAndBytesModelLoader
from vllm.model_executor.models.utils import StageMissingLayer
from vllm_code import VERSION, execute

BUDGET = 60 * GIB
parameters_of = vllm_code.weights_of
WRITES = ("dynamic_scaled_fp8_quant", "static_scaled_fp8_quant", "dynamic_per_token_scaled_fp8_quant")
WEIGHTS: dict[str, Row] = {
    "fp8": {"quantization": "fp8"},
    "mxfp8": {"quantization": "mxfp8"},
    "experts_int8": {"quantization": "experts_int8", "allow_deprecated_quantization": True},
    "bitsandbytes": {"quantization": "bitsandbytes"},
    "fp8 by squares": {"quantization": "fp8_per_block"},
    "fp8 by rows": {"quantization": "fp8_per_channel"},
    "int8 experts": {"quantization": "int8_per_channel_weight_only"},
}
TEXT: dict[str, Row] = {"text only": {"language_model_only": True}}
SOUND: dict[str, Row] = {
    "no sound": {"limit_mm_per_prompt": {"audio": 0}},
    "no images": {"limit_mm_per_prompt": {"image": 0, "video": 0}},
}
CACHES: dict[str, Row] = {
    "kv fp8": {"kv_cache_dtype": "fp8"},
    "kv fp8 in pages of 32": {"kv_cache_dtype": "fp8", "block_size": 32},
    "kv in 4 bits": {"kv_cache_dtype": "nvfp4"},
    "kv with token scales": {"kv_cache_dtype": "fp8_per_token_head"},
    "pages of 64": {"block_size": 64},
    "windows of all tokens": {"disable_hybrid_kv_cache_manager": True},
}
PLAIN = [
    "meta-llama/Llama-3.1-8B",
    "Qwen/Qwen3-30B-A3B",
    "mistralai/Mixtral-8x7B-v0.1",
    "deepseek-ai/DeepSeek-V2-Lite",
    "openai/gpt-oss-20b",
    "google/gemma-3-27b-it",
    "google/gemma-2-2b",
    "allenai/Olmo-3-1025-7B",
    "Qwen/Qwen3-Next-80B-A3B-Instruct",
    "Qwen/Qwen3.5-9B",
    "ibm-granite/granite-4.0-h-small",
    "meta-llama/Llama-4-Scout-17B-16E-Instruct",
    "zai-org/GLM-4.5-Air",
]


def no_result(*args: Any, **kwargs: Any) -> None:
    return None


def block_scales() -> float:
    """Bytes of bitsandbytes' scales to an element, as vLLM's loader keeps them."""
    matrix = torch.randn(64, 4096, dtype=torch.bfloat16)
    state = quantize_4bit(matrix, compress_statistics=True, quant_type="nf4")[1]
    BitsAndBytesModelLoader._dequantize_dq(None, {0: state})
    return state.absmax.nbytes / matrix.numel()


OPEN = {
    "Qwen/Qwen2.5-VL-3B-Instruct tp=4 bitsandbytes": "0.5 MB of the tower: the sides of its feed-forwards are odd parts of a block",
    **{
        f"mistralai/Mistral-Small-3.2-24B-Instruct-2506 {of}": "a table of the tower's frequencies, 6 MB"
        for of in ("tp=4 experts_int8", "tp=4 fp8", "tp=4 bitsandbytes")
    },
}
SM100 = "experts in 16 bits on sm100: 8 MiB a layer of Qwen3 30B, divided by the ranks, not explained"
OPEN |= {f"Qwen/Qwen3-30B-A3B tp={t} kv in 4 bits": SM100 for t in (1, 4)}
OPEN |= {"Qwen/Qwen3-Next-80B-A3B-Instruct tp=1 kv in 4 bits": SM100}
SCALES = block_scales()


def asked(case: Row) -> list[Row]:
    towers = "vision_config" in case["config"]
    weights = towers or (case["model"] in PLAIN and "gpt-oss" not in case["model"])  # which is stored in 4 bits
    hears = bool(case["config"].get("audio_config"))
    options = {
        **(TEXT if towers else {}),
        **(SOUND if hears else {}),
        **(WEIGHTS if weights else {}),
        **(CACHES if case["model"] in PLAIN else {}),
    }
    out = []
    for name, of in options.items():
        blackwell = name in ("mxfp8", "kv in 4 bits")
        capability = 100 if blackwell else 90
        gpu = {"gpu": "B200"} if blackwell else {}
        out.append({**case, **gpu, "id": f"{case['id']} {name}", "engine_options": of, "options": of, "capability": capability})
    return out


def with_scales(model: torch.nn.Module) -> Row:
    """Bytes of a model, with what bitsandbytes keeps beside its parameters."""
    row: Row = parameters_of(model)
    for module in model.modules():
        if isinstance(module, StageMissingLayer) and (left_out := module.__dict__["module"]) is not None:
            tensors = [*left_out.parameters(), *left_out.buffers()]  # they are on the meta device in the server too
            row["layers"] -= sum({t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in tensors}.values())
    if isinstance(getattr(model, "visual", None), StageMissingLayer):  # made under the same torch.device("meta")
        row["layers"] -= sum(t.untyped_storage().nbytes() for t in getattr(model, "deepstack_input_embeds", ()))
    for name, parameter in model.named_parameters():
        if getattr(parameter, "use_bitsandbytes_4bit", False):
            row[part_of(name)] += int(2 * parameter.numel() * SCALES)  # two elements to a byte
    return row


def main() -> None:
    for name in WRITES:
        torch.library.register_fake(f"_C::{name}", no_result, allow_override=True)
    torch.nn.Module._load_device = META  # where the loader was told to put a module
    options = asked_for(__doc__ or "", "executed_server_options.jsonl")
    degrees = [int(t) for t in options.tensor.split(",")]
    plain = [c for c in cases(Path(options.configs), options.only, degrees) if "quantization" not in c and "pipeline" not in c]
    head = {"engine": "vllm", "version": VERSION}
    vllm_code.weights_of = with_scales
    write(options, [one for case in plain for one in asked(case)], head, lambda case: execute(case, BUDGET), OPEN)


if __name__ == "__main__":
    main()
