"""Makes tests/data/executed_verl_adapters.jsonl: training steps of verl's actors with adapters under Megatron, executed.

    python benchmarks/oracle/execute_verl_adapters.py --core MEGATRON_CORE --te TRANSFORMER_ENGINE --bridge MEGATRON_BRIDGE --verl VERL
        [--output tests/data/executed_verl_adapters.jsonl] [--only N...]

Needs torch, transformers, einops, megatron-core 0.18.0, the Python of Transformer Engine 2.17.1, Megatron-Bridge 0.5.2 and verl 0.10
(their sources are enough); no GPU. Whole steps run on the CPU as one rank of PyTorch's fake process group: Megatron-Bridge's providers
make Qwen2 or Qwen3-MoE, its own create_peft puts LoRA beside the layers (megatron/bridge/peft), gptmodel_forward_model_engine
(verl/models/mcore/model_forward.py) packs the sequences and runs it, and log-probs come from vocab_parallel_log_probs_from_logits behind
the division by the temperature. With `head` fused the output layer and the loss are one product: fused_forward_model_engine with
LinearCrossEntropy around kernels that do nothing (verl/utils/kernel). The policy's loss is one number a token.

Experts are shared out among the ranks of the tensors. Stood in for is what megatron_te.py says, and attention as in
execute_megatron_vision.py. Every gradient goes as soon as it has been added up; with `fused` products add up weights' gradients
themselves. A line: the settings, parameters of the rank in all (`parameters`), of adapters beside dense layers (`trained`) and beside
experts (`trained_experts`), `saved`, bytes of storages that the model makes and autograd keeps when the forward pass is over, and
`peaks` of forward and backward above what lives when a step is over; of passes without gradients (`gradients` false) the highest
level, with adapters or without (`reference`: as verl's reference runs).
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib
import json
import logging
import sys
import types
import warnings
from pathlib import Path
from typing import Any

import execute_actor_losses as actor_losses
import execute_megatron_linear as linear
import execute_megatron_vision as vision
import megatron_te
import torch
import torch.distributed as dist
import triton_stub
from execute import ROOT, Row
from execute_megatron_local import Resized
from torch.testing._internal.distributed.fake_pg import FakeStore

ALL = ["linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"]
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
    "rank": 16,
    "targets": ALL,
    "sequences": 2,
    "tokens": 128,
    "tensor": 1,
    "expert": 1,
    "recompute": "none",
    "recompute_method": None,
    "recompute_layers": None,
    "fused": True,
    "head": "logits",
    "entropy": False,
    "gradients": True,
    "reference": False,
}
SPLIT: Row = {"tensor": 2}
UNIFORM: Row = {"recompute": "full", "recompute_method": "uniform", "recompute_layers": 1}
BLOCK: Row = {"recompute": "full", "recompute_method": "block", "recompute_layers": 2}
LARGE: Row = {"vocab": 8192}  # the head has the highest levels
FUSED: Row = {"head": "fused"}
ALONE: Row = {"gradients": False, "entropy": True}  # the pass of the old log-probs
REFERENCE: Row = ALONE | {"reference": True}
ROUTED: Row = {"kind": "qwen3_moe", "experts": 8}
ATTENTION: Row = {"targets": ["linear_qkv", "linear_proj"]}
APART: Row = {"expert": 2}
EVERYWHERE: list[Row] = [
    {},
    SPLIT,
    UNIFORM,
    SPLIT | UNIFORM,
    BLOCK,
    SPLIT | BLOCK,
    {"fused": False},
    SPLIT | UNIFORM | {"fused": False},
    LARGE,
    SPLIT | LARGE,
    SPLIT | LARGE | {"entropy": True},
    FUSED,
    SPLIT | FUSED,
    SPLIT | FUSED | UNIFORM,
    LARGE | FUSED,
    SPLIT | LARGE | FUSED | UNIFORM,
    ATTENTION,
    SPLIT | ATTENTION | UNIFORM,
    ALONE,
    SPLIT | ALONE,
    SPLIT | ALONE | FUSED,
    REFERENCE,
    SPLIT | REFERENCE,
    SPLIT | REFERENCE | LARGE,
    SPLIT | REFERENCE | FUSED,
]
RUNS: list[Row] = [
    *EVERYWHERE,
    {"targets": ["linear_fc1", "linear_fc2"]},
    SPLIT | {"targets": ["linear_fc2"]},
    {"kind": "qwen3"},
    SPLIT | {"kind": "qwen3"} | UNIFORM,
    *(ROUTED | run for run in EVERYWHERE),
    *(ROUTED | APART | run for run in ({}, UNIFORM, FUSED | UNIFORM, ATTENTION, REFERENCE)),
]


def prepare_bridge(given: argparse.Namespace) -> None:
    """megatron-core's GPTModel by Megatron-Bridge's providers, and its adapters."""
    for name in ("qwen2", "qwen3_moe"):  # before there is a package that they would look at
        importlib.import_module(f"transformers.models.{name}.modeling_{name}")
    original = vision.DotProductAttention
    vision.DotProductAttention = linear.Attention
    vision.prepare(given.core, given.te, given.core, given.bridge)
    vision.DotProductAttention = original
    vision.without_init("megatron.bridge.peft", given.bridge / "src")
    triton_stub.Kernel.get_int_dtype = triton_stub.Kernel  # type: ignore[attr-defined]
    sys.meta_path.insert(0, triton_stub.Finder())
    linear.use_permutation()
    for name in ("models.gpt_provider", "peft.utils", "peft.lora"):  # before Triton is the one of verl's kernels
        importlib.import_module(f"megatron.bridge.{name}")
    from megatron.core.tensor_parallel import layers

    sys.modules["megatron.bridge.peft.utils"].version = lambda _: "2.17.1"  # type: ignore[attr-defined]
    layers.get_cuda_rng_tracker = lambda: types.SimpleNamespace(fork=contextlib.nullcontext)


def prepare(given: argparse.Namespace) -> None:
    prepare_bridge(given)
    verl = given.verl
    for name in ("verl", "verl.utils", "verl.utils.megatron", "verl.utils.kernel", "verl.models", "verl.models.mcore"):
        vision.without_init(name, verl)
    for name, holds in (
        ("verl.utils.model", {"CausalLMOutputForPPO": types.SimpleNamespace}),
        ("verl.utils.megatron_utils", {"unwrap_model": lambda model: getattr(model, "module", model)}),
        ("verl.workers", {}),
        ("verl.workers.config", {"MtpConfig": object}),
    ):
        module = types.ModuleType(name)
        module.__dict__.update(holds)
        sys.modules[name] = module
    use_kernels(verl)
    sys.modules["verl.utils.device"].is_npu_available = False  # type: ignore[attr-defined]


def use_kernels(verl: Path) -> None:
    """LinearCrossEntropy of the source tree, whose kernels are not started."""
    actor_losses.source = lambda tree, _commit, path: (tree / path).read_text(encoding="utf-8")
    actor_losses.fused_kernels(verl)


def provider_of(run: Row) -> Any:
    """provider_bridge of the family, and what verl's engine sets of a provider."""
    from megatron.bridge.models.gpt_provider import GPTModelProvider

    provider = GPTModelProvider(
        num_layers=run["layers"],
        hidden_size=run["hidden"],
        ffn_hidden_size=run["ffn"],
        num_attention_heads=run["heads"],
        num_query_groups=run["groups"],
        kv_channels=run["hidden"] // run["heads"],
        vocab_size=run["vocab"],
        seq_length=4096,
        layernorm_epsilon=1e-6,
        activation_func=torch.nn.functional.silu,
        rotary_base=1e6,
        position_embedding_type="rope",
    )
    provider.normalization, provider.gated_linear_unit = "RMSNorm", True
    provider.add_bias_linear, provider.hidden_dropout, provider.attention_dropout = False, 0.0, 0.0
    provider.add_qkv_bias, provider.qk_layernorm = run["kind"] == "qwen2", run["kind"] != "qwen2"
    provider.share_embeddings_and_output_weights = False
    if run["experts"]:
        provider.num_moe_experts, provider.moe_router_topk = run["experts"], run["top"]
        provider.moe_ffn_hidden_size, provider.moe_grouped_gemm = run["expert_ffn"], True
        provider.moe_aux_loss_coeff, provider.moe_router_pre_softmax, provider.moe_permute_fusion = 1e-3, False, True
    overrides = {
        "tensor_model_parallel_size": run["tensor"],
        "pipeline_model_parallel_size": 1,
        "virtual_pipeline_model_parallel_size": None,
        "sequence_parallel": run["tensor"] > 1,
        "expert_model_parallel_size": experts_of(run),
        "expert_tensor_parallel_size": 1,
        "overlap_p2p_comm": False,
        "batch_p2p_comm": False,
        "variable_seq_lengths": True,
        "moe_token_dispatcher_type": "alltoall",
        "moe_router_load_balancing_type": "none",
        **vision.overrides_of(run),
    }
    del overrides["cross_entropy_loss_fusion"]
    overrides |= run.get("provider", {})
    provider.apply_overrides_and_finalize(dtype=torch.bfloat16, overrides=overrides)
    return provider


def experts_of(run: Row) -> int:
    return max(run["expert"], run["tensor"]) if run["experts"] else 1


def adapted(run: Row) -> Any:
    """The model with its adapters, and what made them."""
    from megatron.bridge.peft.utils import create_peft
    from megatron.core.process_groups_config import ProcessGroupCollection
    from megatron.core.transformer.module import Float16Module

    megatron_te.Router.top = run["top"]
    provider = provider_of(run)
    provider._pg_collection = ProcessGroupCollection.use_mpu_process_groups()
    model = provider.provide(pre_process=True, post_process=True)
    lora = {"type": "lora", "rank": run["rank"], "alpha": 2 * run["rank"], "target_modules": run["targets"], "merge": False}
    peft = create_peft(lora, dtype=torch.bfloat16)
    beside = peft([model], training=True)[0] if peft is not None else model
    whole = Float16Module(beside.config, beside)
    for parameter in whole.parameters():
        if not parameter.requires_grad:
            continue
        parameter.main_grad = torch.empty(parameter.shape, dtype=torch.float32)
        parameter.grad_added_to_main_grad = False
        parameter.register_post_accumulate_grad_hook(lambda p: setattr(p, "grad", None))
    return whole.train(run["gradients"]), peft


def model_of(run: Row) -> Any:
    from verl.models.mcore.model_forward_fused import patch_fused_forward

    whole, peft = adapted(run)
    if run["head"] == "fused":
        patch_fused_forward(whole)
    whole.pre_process = whole.post_process = True
    return whole, peft


def nested(run: Row, dtype: torch.dtype) -> torch.Tensor:
    each = [torch.zeros(run["tokens"], dtype=dtype) for _ in range(run["sequences"])]
    return torch.nested.nested_tensor(each, layout=torch.jagged)


def fused_loss(run: Row, model: Any) -> torch.Tensor:
    from verl.models.mcore.model_forward_fused import fused_forward_model_engine

    ids = nested(run, torch.int64)
    output = fused_forward_model_engine(False)(model, ids, ids.clone(), {}, 1.0, run["entropy"], 0)
    return sum(each.values().mean() for each in output.values())  # type: ignore[return-value]


def loss_of(run: Row, model: Any) -> torch.Tensor:
    """forward_step and postprocess_micro_batch_func."""
    from verl.models.mcore.model_forward import gptmodel_forward_model_engine
    from verl.utils.megatron.tensor_parallel import vocab_parallel_entropy, vocab_parallel_log_probs_from_logits

    def logits_processor(logits: torch.Tensor, label: torch.Tensor, temperature: torch.Tensor) -> Row:
        out = {}
        logits.div_(temperature.clamp(min=1e-8).unsqueeze(dim=-1).to(logits.dtype))
        if run["entropy"]:
            bak = logits.clone()
            out["entropy"] = vocab_parallel_entropy(logits)
            logits = bak
        out["log_probs"] = vocab_parallel_log_probs_from_logits(logits, label)
        return out

    ids = nested(run, torch.int64)
    arguments = {"label": ids.clone(), "temperature": nested(run, torch.float32)}
    output = gptmodel_forward_model_engine(model, ids, {}, logits_processor=logits_processor, logits_processor_args=arguments)
    return sum(each.values().mean() for each in output.values())  # type: ignore[return-value]


class Step:
    def __init__(self, run: Row, model: Any, peft: Any, storages: Resized) -> None:
        self.run, self.model, self.peft, self.storages = run, model, peft, storages
        self.saved: vision.Saved | None = None

    def __call__(self) -> Row:
        storages, run = self.storages, self.run
        base = storages.live
        storages.highest = storages.live
        off = self.peft.disable_adapter([self.model.module]) if run["reference"] else contextlib.nullcontext()
        with torch.set_grad_enabled(run["gradients"]), off:
            loss = (fused_loss if run["head"] == "fused" else loss_of)(run, self.model)
        out: Row = {"peaks": {"forward": storages.highest - base}}
        if self.saved is not None:
            out["saved"] = self.saved.bytes_of(False)
        if run["gradients"]:
            storages.highest = storages.live
            loss.backward()
            out["peaks"]["backward"] = storages.highest - base
        del loss
        gc.collect()
        return {**out, "left": storages.live - base}


def execute(changes: Row) -> Row:
    from megatron.core import parallel_state

    run = {**BASE, **changes}
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=max(run["tensor"], experts_of(run)))
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=run["tensor"],
        expert_model_parallel_size=experts_of(run),
        expert_tensor_parallel_size=1,
        create_gloo_process_groups=False,
    )
    parallel_state.get_global_memory_buffer().buffer.clear()
    try:
        model, peft = model_of(run)
        trained = [p for p in model.parameters() if p.requires_grad]
        counts = {
            "parameters": sum(p.numel() for p in model.parameters()),
            "trained": sum(p.numel() for p in trained if getattr(p, "allreduce", True)),
            "trained_experts": sum(p.numel() for p in trained if not getattr(p, "allreduce", True)),
        }
        storages = Resized()
        for tensor in [*model.parameters(), *model.buffers()]:
            storages.own(tensor)
        gc.collect()
        megatron_te.Clock.now = storages
        with storages:
            step = Step(run, model, peft, storages)
            step()  # what it makes and leaves is there from now on
            step.saved = vision.Saved(storages)
            with torch.autograd.graph.saved_tensors_hooks(step.saved.pack, lambda x: x):
                saved = step()["saved"]
            step.saved = None
            third, fourth = step(), step()
        assert third["left"] == 0 and third == fourth, (changes, third, fourth)
        return {"run": run, **counts, "saved": saved, "peaks": third["peaks"]}
    finally:
        megatron_te.Clock.now = None
        parallel_state.destroy_model_parallel()
        dist.destroy_process_group()
        sys.modules["transformer_engine.pytorch.module.base"]._dummy_wgrads.clear()
        gc.collect()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("core", "te", "bridge", "verl"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--output", type=Path, default=ROOT / "tests/data/executed_verl_adapters.jsonl")
    parser.add_argument("--only", type=int, nargs="+", help="numbers of runs, told and not written")
    given = parser.parse_args()
    warnings.filterwarnings("ignore")
    logging.disable(logging.INFO)
    prepare(given)
    if given.only:
        for number in given.only:
            print(json.dumps(execute(RUNS[number])))
        return
    lines = [json.dumps(execute(changes), separators=(",", ":")) for changes in RUNS]
    given.output.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
