"""Makes tests/data/executed_verl_megatron.jsonl: training steps of verl's own models on Megatron-core before verl had bridges, executed.

    python benchmarks/oracle/execute_verl_megatron.py --core MEGATRON_CORE --te TRANSFORMER_ENGINE --verl VERL
        [--output tests/data/executed_verl_megatron.jsonl] [--only N...]

Needs torch, transformers, einops, megatron-core 0.12.1, the Python of Transformer Engine 2.17.1 and verl 0.4.1 (their sources are
enough); no GPU. Whole steps run on the CPU as one rank of PyTorch's fake process group: verl's converter of configurations and its
initializers make the model (verl/models/mcore/config_converter.py, model_initializer.py with patch_v012.py), its gptmodel_forward packs
the sequences and runs it, and log-probs come from vocab_parallel_log_probs_from_logits (verl/utils/megatron/tensor_parallel.py) in the
order of logits_processor (verl/workers/actor/megatron_actor.py). The policy's loss is one number a token.

Stood in for is what megatron_te.py says, and attention as in execute_megatron_vision.py. Every gradient goes as soon as it has been
added up. A line: the settings, parameters of the rank, and `peaks` of forward and backward above what lives when a step is over.
"""

from __future__ import annotations

import argparse
import json
import sys
import types
import typing
import warnings
from pathlib import Path
from typing import Any

import execute_megatron_vision as vision
import megatron_te
import torch
import typing_extensions
from execute import ROOT, Row
from torch.utils._python_dispatch import _disable_current_modes
from verl_megatron_step import Config, execute

BASE: Row = {
    "kind": "qwen2",
    "layers": 4,
    "hidden": 256,
    "heads": 8,
    "groups": 4,
    "ffn": 512,
    "vocab": 512,
    "experts": 0,
    "top": 2,
    "expert_ffn": 96,
    "shared_ffn": 0,
    "sequences": 2,
    "tokens": 128,
    "tensor": 1,
    "expert": 1,
    "recompute": "none",
    "modules": [],
}
SPLIT: Row = {"tensor": 2}
UNIFORM: Row = {"recompute": "full"}
ROUTED: Row = {"experts": 8}
SHARED: Row = {"experts": 8, "shared_ffn": 128}
LATENT: Row = {"kind": "deepseek_v3", "groups": 8, "experts": 8, "shared_ffn": 192}
LARGE: Row = {"vocab": 4096}  # the head has the highest levels
EXPERTS_APART: Row = {"expert": 2}
RUNS: list[Row] = [
    *({**kind, **run} for kind in ({}, {"kind": "qwen3"}) for run in ({}, SPLIT, UNIFORM, SPLIT | UNIFORM, LARGE, SPLIT | LARGE)),
    {"kind": "llama"},
    *(
        {**kind, **run}
        for kind in (
            {"kind": "qwen3_moe", **ROUTED},
            {"kind": "qwen2_moe", **SHARED},
            {"kind": "mixtral", **ROUTED},
            LATENT,
        )
        for run in ({}, SPLIT, UNIFORM, SPLIT | UNIFORM, EXPERTS_APART, LARGE)
    ),
    LATENT | {"hidden": 1024, "layers": 2},
    LATENT | {"hidden": 1024, "layers": 2, "tensor": 2, "recompute": "full"},
]
CLASSES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen2_moe": "Qwen2MoeForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
    "mixtral": "MixtralForCausalLM",
    "deepseek_v3": "DeepseekV3ForCausalLM",
}


def prepare(core: Path, te: Path, verl: Path) -> None:
    for name in ("override", "Self"):
        if not hasattr(typing, name):  # Python 3.11 and before
            setattr(typing, name, getattr(typing_extensions, name))
    sys.path.insert(0, str(core))
    megatron_te.DotProductAttention = vision.DotProductAttention  # type: ignore[assignment,misc]
    megatron_te.stand_in(te)
    route_evenly()
    for name in ("verl", "verl.utils", "verl.utils.megatron", "verl.models", "verl.models.mcore"):
        vision.without_init(name, verl)
    device = types.ModuleType("verl.utils.device")
    sys.modules[device.__name__] = device
    utils = types.ModuleType("verl.utils.megatron_utils")
    utils.unwrap_model = lambda model: model  # type: ignore[attr-defined]
    sys.modules[utils.__name__] = utils


def route_evenly() -> None:
    """The router's product sends every expert equally many tokens."""
    from megatron.core.transformer.moe.router import Router

    product = Router.gating

    def gating(self: Any, x: torch.Tensor) -> torch.Tensor:
        logits = product(self, x)
        with _disable_current_modes(), torch.no_grad():
            logits.view(-1, logits.shape[-1]).copy_(
                megatron_te.even_logits(logits.numel() // logits.shape[-1], logits.shape[-1], megatron_te.Router.top)
            )
        return logits

    Router.gating = gating


def hf_config(run: Row) -> Any:
    width = run["hidden"] // run["heads"]
    fields = {
        "num_hidden_layers": run["layers"],
        "hidden_size": run["hidden"],
        "num_attention_heads": run["heads"],
        "num_key_value_heads": run["groups"],
        "intermediate_size": run["ffn"],
        "vocab_size": run["vocab"],
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1e6,
        "rope_scaling": None,
        "attention_dropout": 0.0,
        "attention_bias": False,
    }
    if run["kind"] != "deepseek_v3":
        fields["head_dim"] = width
    if run["experts"]:
        fields |= {"num_experts_per_tok": run["top"], "router_aux_loss_coef": 0.001}
        fields["num_local_experts" if run["kind"] == "mixtral" else "num_experts"] = run["experts"]
        fields |= {"moe_intermediate_size": run["expert_ffn"], "shared_expert_intermediate_size": run["shared_ffn"]}
    if run["kind"] == "deepseek_v3":
        fields |= {"n_routed_experts": run["experts"], "n_shared_experts": run["shared_ffn"] // run["expert_ffn"] or 1}
        fields |= {"q_lora_rank": 96, "kv_lora_rank": 64, "qk_nope_head_dim": 32, "qk_rope_head_dim": 16, "v_head_dim": 32}
        fields |= {"first_k_dense_replace": 1, "routed_scaling_factor": 2.5}
    out = Config(**fields)
    for name, value in fields.items():
        setattr(out, name, value)
    out.architectures = [CLASSES[run["kind"]]]
    return out


def overrides_of(run: Row) -> Row:
    from megatron.core.transformer.enums import AttnBackend

    out: Row = {"perform_initialization": False, "attention_backend": AttnBackend.flash}
    if run["recompute"] == "full":
        out |= {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
    if run["recompute"] == "selective":
        out |= {"recompute_granularity": "selective", "recompute_modules": run["modules"]}
    return out


def model_of(run: Row) -> Any:
    from megatron.core.transformer.module import Float16Module
    from verl.models.mcore import registry

    megatron_te.Router.top = run["top"]
    config = hf_config(run)
    made = registry.hf_to_mcore_config(config, torch.bfloat16, **overrides_of(run))
    model = registry.init_mcore_model(made, config, True, True, freeze_moe_router=False)
    whole = Float16Module(made, model)
    for module in whole.modules():
        if hasattr(module, "_maintain_float32_expert_bias"):
            module._maintain_float32_expert_bias()  # as the first forward pass does: a block of its own
    for parameter in whole.parameters():
        parameter.main_grad = torch.empty(parameter.shape, dtype=torch.float32)
        parameter.grad_added_to_main_grad = False
        parameter.register_post_accumulate_grad_hook(lambda p: setattr(p, "grad", None))
    whole.pre_process, whole.post_process = True, True
    return whole.train()


def loss_of(run: Row, model: Any) -> torch.Tensor:
    """forward_step and loss_func."""
    from verl.models.mcore.model_forward import gptmodel_forward
    from verl.utils.megatron.tensor_parallel import vocab_parallel_entropy, vocab_parallel_log_probs_from_logits

    shape = run["sequences"], run["tokens"]
    ids, positions, label = (torch.zeros(shape, dtype=torch.int64) for _ in range(3))
    mask, label_mask = (torch.ones(shape, dtype=torch.bool) for _ in range(2))

    def logits_processor(logits: torch.Tensor, label: torch.Tensor, label_mask: torch.Tensor) -> Row:
        out = {}
        if run.get("entropy"):
            out["entropy"] = vocab_parallel_entropy(logits)
        log_probs = vocab_parallel_log_probs_from_logits(logits, label)
        out["log_probs"] = log_probs.masked_fill(~label_mask, 0.0)
        return out

    output = gptmodel_forward(
        model,
        ids,
        mask,
        positions,
        run["tensor"] > 1,
        logits_processor=logits_processor,
        logits_processor_args={"label": label, "label_mask": label_mask},
    )
    return sum(each.mean() for each in output.values())  # type: ignore[return-value]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("core", "te", "verl"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--output", type=Path, default=ROOT / "tests/data/executed_verl_megatron.jsonl")
    parser.add_argument("--only", type=int, nargs="+", help="numbers of runs, told and not written")
    given = parser.parse_args()
    warnings.filterwarnings("ignore")
    prepare(given.core, given.te, given.verl)
    if given.only:
        for number in given.only:
            print(json.dumps(execute({**BASE, **RUNS[number]}, model_of, loss_of)))
        return
    lines = [json.dumps(execute({**BASE, **changes}, model_of, loss_of), separators=(",", ":")) for changes in RUNS]
    given.output.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
