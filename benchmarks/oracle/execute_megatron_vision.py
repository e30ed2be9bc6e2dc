"""Makes tests/data/executed_megatron_vision.jsonl: steps of Megatron-core's vision-language models as the bridges make them, executed.

    python benchmarks/oracle/execute_megatron_vision.py --core MEGATRON_CORE --te TRANSFORMER_ENGINE --mbridge MBRIDGE
        --bridge MEGATRON_BRIDGE [--output tests/data/executed_megatron_vision.jsonl] [--only N...]

Needs torch, transformers, einops, safetensors, megatron-core 0.18.0, the Python of Transformer Engine 2.17.1, mbridge 10cb17f and
Megatron-Bridge 0.5.2 (their sources are enough); no GPU. Whole steps run on the CPU as one rank of PyTorch's fake process group: the bridges' own
configurations and providers make Qwen3-VL (mbridge's and Megatron-Bridge's) and Qwen2.5-VL (mbridge's: Megatron-Bridge's is the tower
of transformers), called as verl's engine calls them without padding (verl/models/mcore/model_forward.py): pixels in fp32, padded ids,
a mask of booleans and packed_seq_params. Pixels live until the forward pass returns. The loss is the model's own from packed labels,
unfused. A first stage of two runs one micro-batch under Megatron's own schedule (megatron_stage.py), and hands its hidden states on.

Stood in for is what megatron_te.py says, and attention, here flash-attention's for packed sequences (keeps queries, keys, values,
their output and a number a row and head in fp32; values are copied out of the projection: get_qkv_layout). Biases in front of a
product have no gradient: Transformer Engine's extension makes it. mbridge's Qwen2.5-VL fixes the sizes of its tower; here they are
small. Every gradient goes as soon as it has been added up; with `fused` products add up weights' gradients themselves, in the tower
only where the bridge has it so (`tower_fused`).

A line: the settings, parameters of the tower and of the whole rank, `tower_saved` and `saved`, bytes of storages that the tower and
the whole model make and autograd keeps when the forward pass is over, and `peaks` of forward and backward above what lives when a step
is over; `tower_forward` is the highest level until the tower has returned.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import types
import typing
import warnings
from pathlib import Path
from typing import Any

import megatron_te
import torch
import torch.distributed as dist
import transformers
import typing_extensions
from execute import ROOT, Row
from execute_megatron_local import Resized
from megatron_stage import StageStep
from torch.testing._internal.distributed.fake_pg import FakeStore

IMAGE, VIDEO, VISION_START = 7, 8, 6  # ids that are in a small vocabulary
MERGED = 2  # patches of an edge that become one token
BASE: Row = {
    "bridge": "mbridge",
    "kind": "qwen3_vl",
    "tower_layers": 4,
    "tower_hidden": 128,
    "tower_heads": 4,
    "tower_ffn": 320,
    "patch": 16,
    "temporal": 2,
    "merge": MERGED,
    "positions": 64,
    "deepstack": [0, 1, 2],
    "layers": 4,
    "hidden": 192,
    "heads": 8,
    "groups": 4,
    "head_dim": 32,
    "ffn": 384,
    "vocab": 1024,
    "images": [[12, 16]],
    "sequences": 1,
    "tokens": 128,
    "tensor": 1,
    "sequence_parallel": False,
    "recompute": "none",
    "recompute_method": None,
    "recompute_layers": None,
    "first": True,
    "last": True,
    "fused": False,
}
QWEN25: Row = {"kind": "qwen2_5_vl", "patch": 14, "positions": 0, "deepstack": []}
SPLIT: Row = {"tensor": 2, "sequence_parallel": True}
UNIFORM: Row = {"recompute": "full", "recompute_method": "uniform", "recompute_layers": 1}
BLOCK: Row = {"recompute": "full", "recompute_method": "block", "recompute_layers": 1}
SELECTIVE: Row = {"recompute": "selective"}
TWO: Row = {"images": [[12, 16], [8, 12]], "tokens": 192}
PAIR: Row = {"images": [[12, 16], [12, 16]], "sequences": 2}
TEXT: Row = {"images": []}
LARGE: Row = {"images": [[32, 48]], "tokens": 448, "vocab": 256}  # the tower has the highest levels
STAGE: Row = {"last": False, "layers": 8}  # of both stages
EVERYWHERE: list[Row] = [
    {},
    SPLIT,
    UNIFORM,
    SPLIT | UNIFORM,
    BLOCK,
    SPLIT | BLOCK,
    SELECTIVE,
    SPLIT | SELECTIVE,
    TWO,
    SPLIT | TWO | UNIFORM,
    PAIR,
    SPLIT | PAIR,
    SPLIT | PAIR | UNIFORM,
    TEXT,
    SPLIT | TEXT | UNIFORM,
    {"fused": True},
    SPLIT | UNIFORM | {"fused": True},
    LARGE,
    SPLIT | LARGE,
    SPLIT | LARGE | UNIFORM,
    LARGE | SELECTIVE,
    STAGE,
    SPLIT | STAGE,
    SPLIT | STAGE | UNIFORM,
    SPLIT | STAGE | PAIR | {"fused": True},
    SPLIT | STAGE | LARGE,
]
OF_QWEN3: list[Row] = [
    {"tower_layers": 2, "deepstack": [0, 1]},
    SPLIT | UNIFORM | {"tower_layers": 2, "deepstack": [0]},
    SPLIT | {"deepstack": []},
    {"deepstack": [1, 3]},
    LARGE | UNIFORM | {"deepstack": [1, 3]},
]
OF_QWEN25: list[Row] = [{"tower_layers": 2}, SPLIT | UNIFORM | {"tower_layers": 2}]
BY_TWO: Row = UNIFORM | {"recompute_layers": 2}  # mbridge's Qwen3-VL asserts one layer
RUNS: list[Row] = [
    *EVERYWHERE,
    *OF_QWEN3,
    *({"bridge": "Megatron-Bridge", **run} for run in [*EVERYWHERE, *OF_QWEN3, BY_TWO]),
    *({**QWEN25, **run} for run in [*EVERYWHERE, *OF_QWEN25, BY_TWO]),
]


class Flash(torch.autograd.Function):
    """flash_attn_varlen_func, without what is inside of its kernels."""

    @staticmethod
    def forward(ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        out = torch.zeros(*q.shape[:-1], v.shape[-1], dtype=q.dtype)
        ctx.save_for_backward(q, k, v, out, torch.empty(q.shape[1], q.shape[0], dtype=torch.float32))
        return out

    @staticmethod
    def backward(ctx: Any, _gradient: torch.Tensor) -> Any:
        q, k, v, _out, _sums = ctx.saved_tensors
        return torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)


class DotProductAttention(torch.nn.Module):
    """Transformer Engine's, of packed sequences."""

    def __init__(self, *_: Any, **__: Any) -> None:
        super().__init__()
        self.attention_type = "self"

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        assert q.dim() == 3, q.shape
        out = Flash.apply(q.contiguous(), k.contiguous(), v.contiguous())
        return out.view(out.shape[0], -1)


def without_init(name: str, place: Path) -> None:
    """A package whose modules are imported without its own __init__, which asks for far more."""
    module = types.ModuleType(name)
    module.__path__ = [str(place / name.replace(".", "/"))]
    sys.modules[name] = module


def prepare(core: Path, te: Path, mbridge: Path, bridge: Path) -> None:
    for name in ("override", "Self"):
        if not hasattr(typing, name):  # Python 3.11 and before
            setattr(typing, name, getattr(typing_extensions, name))
    sys.path.insert(0, str(core))
    make_package = megatron_te.make_package

    def with_more(sources: Path) -> None:
        """Megatron-core 0.18 imports one name more than 0.16.1."""
        make_package(sources)
        fp8 = sys.modules["transformer_engine.pytorch.fp8"]
        fp8.fp8_model_init = sys.modules["transformer_engine.pytorch"].fp8_model_init = fp8.fp8_autocast  # type: ignore[attr-defined]

    megatron_te.make_package = with_more
    megatron_te.DotProductAttention = DotProductAttention  # type: ignore[assignment,misc]
    megatron_te.stand_in(te)
    import megatron

    megatron.__path__ = [*megatron.__path__, str(bridge / "src" / "megatron")]
    for name in ("mbridge", "mbridge.models"):
        without_init(name, mbridge)
    for name in (
        "megatron.bridge",
        "megatron.bridge.models",
        "megatron.bridge.models.common",
        "megatron.bridge.models.qwen_vl",
        "megatron.bridge.models.qwen_vl.modelling_qwen3_vl",
        "megatron.bridge.training",
        "megatron.bridge.training.utils",
        "megatron.bridge.utils",
    ):
        without_init(name, bridge / "src")


def hf_config(run: Row) -> Any:
    """The configuration of the checkpoint that a bridge reads."""
    width = run["head_dim"] // 2
    section = [width - 2 * (width // 3), width // 3, width // 3]
    text = {
        "num_hidden_layers": run["layers"],
        "hidden_size": run["hidden"],
        "num_attention_heads": run["heads"],
        "num_key_value_heads": run["groups"],
        "head_dim": run["head_dim"],
        "intermediate_size": run["ffn"],
        "vocab_size": run["vocab"],
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-6,
        "attention_dropout": 0.0,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": section},
        "tie_word_embeddings": False,
    }
    vision = {
        "depth": run["tower_layers"],
        "hidden_size": run["tower_hidden"],
        "intermediate_size": run["tower_ffn"],
        "num_heads": run["tower_heads"],
        "patch_size": run["patch"],
        "temporal_patch_size": run["temporal"],
        "spatial_merge_size": run["merge"],
        "out_hidden_size": run["hidden"],
    }
    if run["kind"] == "qwen3_vl":
        vision |= {"num_position_embeddings": run["positions"], "deepstack_visual_indexes": run["deepstack"]}
    out = transformers.AutoConfig.for_model(run["kind"], text_config=text, vision_config=vision, tie_word_embeddings=False)
    if run["kind"] == "qwen2_5_vl":
        out.text_config.head_dim = run["head_dim"]
    if not hasattr(out.text_config, "rope_scaling"):
        out.text_config.rope_scaling = text["rope_parameters"]
    return out


def overrides_of(run: Row) -> Row:
    """override_transformer_config of verl's engine, and what spares the CPU work."""
    from megatron.core.transformer.enums import AttnBackend

    out: Row = {"perform_initialization": False, "attention_backend": AttnBackend.flash}
    out |= {"gradient_accumulation_fusion": run["fused"], "cross_entropy_loss_fusion": run.get("native", False)}
    if run["recompute"] != "none":
        out["recompute_granularity"] = run["recompute"]
    if run["recompute"] == "full":
        out |= {"recompute_method": run["recompute_method"], "recompute_num_layers": run["recompute_layers"]}
    return out


def of_mbridge(run: Row) -> Any:
    from mbridge.models import qwen2_5_vl, qwen3_vl

    config = hf_config(run)
    if run["kind"] == "qwen3_vl":
        bridge = qwen3_vl.Qwen3VLBridge(config, dtype=torch.bfloat16)
    else:
        bridge = qwen2_5_vl.Qwen2_5VLBridge(config, dtype=torch.bfloat16)
        fixed = qwen2_5_vl.get_vision_model_config

        def small(given: Any) -> Any:
            out = fixed(given)
            out.num_layers, out.hidden_size, out.ffn_hidden_size = run["tower_layers"], run["tower_hidden"], run["tower_ffn"]
            out.num_attention_heads = out.num_query_groups = run["tower_heads"]
            out.kv_channels = run["tower_hidden"] // run["tower_heads"]
            out.fullatt_block_indexes = [run["tower_layers"] - 1]
            return out

        qwen2_5_vl.get_vision_model_config = small
    bridge.set_extra_args(**overrides_of(run))
    try:
        return bridge._model_provider([])(run["first"], run["last"])
    finally:
        if run["kind"] == "qwen2_5_vl":
            qwen2_5_vl.get_vision_model_config = fixed


def of_megatron_bridge(run: Row) -> Any:
    """Qwen3VLBridge.provider_bridge, and what verl's engine sets of a provider."""
    from megatron.bridge.models.qwen_vl.qwen3_vl_provider import Qwen3VLModelProvider
    from megatron.core.process_groups_config import ProcessGroupCollection

    config = hf_config(run)
    text = config.text_config
    provider = Qwen3VLModelProvider(
        num_layers=run["layers"],
        hidden_size=run["hidden"],
        ffn_hidden_size=run["ffn"],
        num_attention_heads=run["heads"],
        num_query_groups=run["groups"],
        kv_channels=run["head_dim"],
        vocab_size=run["vocab"],
        seq_length=4096,
        layernorm_epsilon=1e-6,
        activation_func=torch.nn.functional.silu,
    )
    provider.normalization, provider.gated_linear_unit = "RMSNorm", True
    provider.add_qkv_bias, provider.add_bias_linear, provider.qk_layernorm = False, False, True
    provider.hidden_dropout, provider.rotary_base = 0.0, 1e6
    provider.share_embeddings_and_output_weights = False
    provider.vision_config, provider.hf_text_config, provider.head_dim = config.vision_config, text, run["head_dim"]
    provider.mrope_section = text.rope_scaling["mrope_section"]
    stages = {"pipeline_model_parallel_size": stages_of(run), "virtual_pipeline_model_parallel_size": None}
    overrides = {
        "tensor_model_parallel_size": run["tensor"],
        **stages,
        "sequence_parallel": run["sequence_parallel"],
        "overlap_p2p_comm": False,
        "batch_p2p_comm": False,
        "variable_seq_lengths": True,
        "moe_token_dispatcher_type": "alltoall",
        "moe_router_load_balancing_type": "none",
        **overrides_of(run),
    }
    provider.apply_overrides_and_finalize(dtype=torch.bfloat16, overrides=overrides)
    provider._pg_collection = ProcessGroupCollection.use_mpu_process_groups()
    return provider.provide(pre_process=run["first"], post_process=run["last"])


def stages_of(run: Row) -> int:
    return 1 if run["first"] and run["last"] else 2


def model_of(run: Row) -> Any:
    return ready(of_mbridge(run) if run["bridge"] == "mbridge" else of_megatron_bridge(run))


def ready(model: Any) -> Any:
    """With gradients that go as soon as they have been added up."""
    model.image_token_id, model.video_token_id, model.vision_start_token_id = IMAGE, VIDEO, VISION_START
    for parameter in model.bfloat16().parameters():  # as Float16Module does
        parameter.main_grad = torch.empty(parameter.shape, dtype=torch.float32)
        parameter.grad_added_to_main_grad = False
        parameter.register_post_accumulate_grad_hook(lambda p: setattr(p, "grad", None))
    return model.train()


def patches_of(run: Row) -> int:
    return sum(rows * columns for rows, columns in run["images"])


class Inputs:
    """What verl's engine has of a micro-batch on the GPU."""

    def __init__(self, run: Row) -> None:
        from megatron.core.packed_seq_params import PackedSeqParams

        sequences, tokens = run["sequences"], run["tokens"]
        self.ids = torch.ones(sequences, tokens, dtype=torch.int64)
        ends = [0] * sequences
        for i, (rows, columns) in enumerate(run["images"]):
            at = ends[i % sequences]
            ends[i % sequences] += 1 + rows * columns // MERGED**2
            self.ids[i % sequences, at] = VISION_START
            self.ids[i % sequences, at + 1 : ends[i % sequences]] = IMAGE
        assert max(ends) <= tokens, run
        self.mask = torch.ones(sequences, tokens, dtype=torch.bool)
        self.labels = torch.zeros(1, sequences * tokens, dtype=torch.int64) if run["last"] else None
        offsets = torch.arange(0, (sequences + 1) * tokens, tokens, dtype=torch.int32)
        self.packed = PackedSeqParams(
            qkv_format="thd",
            cu_seqlens_q=offsets,
            max_seqlen_q=tokens,
            cu_seqlens_kv=offsets,
            max_seqlen_kv=tokens,
            cu_seqlens_q_padded=offsets,
            cu_seqlens_kv_padded=offsets,
        )
        self.vision: Row = {}
        if run["images"]:
            numbers = 3 * run["temporal"] * run["patch"] ** 2
            self.vision["pixel_values"] = torch.zeros(patches_of(run), numbers, dtype=torch.float32)
            self.vision["image_grid_thw"] = torch.tensor([[1, *image] for image in run["images"]])

    def __call__(self, model: Any) -> Any:
        return model(
            input_ids=self.ids,
            attention_mask=self.mask,
            position_ids=None,
            packed_seq_params=self.packed,
            labels=self.labels,
            **self.vision,
        )


class Saved:
    """What autograd keeps at the end of a forward pass, of what the pass has made."""

    def __init__(self, storages: Resized) -> None:
        self.storages = storages
        self.packed: dict[int, Row] = {}

    def pack(self, x: torch.Tensor) -> torch.Tensor:
        key = x.untyped_storage()._cdata
        made = self.storages.known.get(key, ({}, 0))[0]
        if made:
            self.packed[key] = made
        return x

    def bytes_of(self, in_tower: bool) -> int:
        known = self.storages.known
        alive = [known[key] for key, made in self.packed.items() if key in known and known[key][0] is made]
        return sum(size for made, size in alive if made["in_layer"] or not in_tower)


class Step:
    """A forward and a backward pass; what a first stage hands on goes through Megatron's own schedule."""

    def __init__(self, run: Row, model: Any, storages: Resized, inputs: Any) -> None:
        self.run, self.model, self.storages, self.inputs = run, model, storages, inputs
        self.saved: Saved | None = None
        self.figures: Row = {}
        if model.vision_model is not None:
            model.vision_model.register_forward_pre_hook(lambda *_: self.inside(True))
            model.vision_model.register_forward_hook(lambda *_: self.inside(False))

    def inside(self, now: bool) -> None:
        self.storages.in_layer = now
        if not now:
            self.figures["tower_forward"] = self.storages.highest - self.base

    def over(self) -> None:
        """The forward pass is, and inputs are gone."""
        if self.saved is not None:
            self.figures |= {"tower_saved": self.saved.bytes_of(True), "saved": self.saved.bytes_of(False)}

    def __call__(self) -> Row:
        self.base, self.figures = self.storages.live, {"tower_forward": 0}
        peaks = self.whole() if self.run["last"] else self.stage()
        gc.collect()
        return {**self.figures, "peaks": peaks, "left": self.storages.live - self.base}

    def whole(self) -> Row:
        storages = self.storages
        storages.highest = storages.live
        loss = self.inputs(self.run)(self.model)
        total = loss.sum()
        del loss
        forward = storages.highest - self.base
        self.over()
        storages.highest = storages.live
        total.backward()
        return {"forward": forward, "backward": storages.highest - self.base}

    def stage(self) -> Row:
        run, step = self.run, self

        class Stage(StageStep):
            def forward(self, _iterator: Any, model: Any) -> Any:
                out = step.inputs(run)(model)
                step.over()
                return out, None

        tokens = run["sequences"] * run["tokens"] // run.get("context", 1)
        sizes = {"seq_length": tokens, "micro_batch_size": 1, "hidden_size": run["hidden"]}
        sizes |= {"tensor_model_parallel_size": run["tensor"], "sequence_parallel": run["sequence_parallel"]}
        stage = Stage(sizes, [self.model], self.storages, 1)
        communicator = stage.given["p2p_communicator"]
        communicator.total_stages, communicator.current_stage = stages_of(run), 0  # megatron-core 0.18 asks for them
        communicator.is_pp_first_stage, communicator.is_pp_last_stage = True, False
        figures = stage()
        return {kind: figures[kind] for kind in ("forward", "backward")}


def is_fused(module: Any) -> bool:
    return module is not None and bool(getattr(module.config, "gradient_accumulation_fusion", False))


def execute(run: Row, make: Any = model_of, inputs: Any = Inputs) -> Row:
    """A step of the model that `make` gives, which is called with what `inputs` has."""
    from megatron.core import parallel_state

    context = run.get("context", 1)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=run["tensor"] * context * stages_of(run))
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=run["tensor"],
        pipeline_model_parallel_size=stages_of(run),
        context_parallel_size=context,
        **({"expert_model_parallel_size": run["tensor"], "expert_tensor_parallel_size": 1} if run.get("experts") else {}),
        create_gloo_process_groups=False,
    )
    parallel_state.get_global_memory_buffer().buffer.clear()
    try:
        model = make(run)
        storages = Resized()
        for tensor in [*model.parameters(), *model.buffers()]:
            storages.own(tensor)
        gc.collect()
        megatron_te.Clock.now = storages
        with storages:
            step = Step(run, model, storages, inputs)
            step()  # what it makes and leaves is there from now on
            step.saved = Saved(storages)
            with torch.autograd.graph.saved_tensors_hooks(step.saved.pack, lambda x: x):
                kept = step()
            step.saved = None
            figures = step()
        assert figures.pop("left") == 0 and kept["peaks"] == figures["peaks"], run
        tower = list(model.vision_model.parameters()) if model.vision_model is not None else []
        run |= {"tower_fused": is_fused(model.vision_model), "deallocates": bool(model.config.deallocate_pipeline_outputs)}
        counts = {"tower_parameters": sum(p.numel() for p in tower), "parameters": sum(p.numel() for p in model.parameters())}
        return {"run": run, **counts, "tower_saved": kept["tower_saved"], "saved": kept["saved"], **figures}
    finally:
        megatron_te.Clock.now = None
        parallel_state.destroy_model_parallel()
        dist.destroy_process_group()
        sys.modules["transformer_engine.pytorch.module.base"]._dummy_wgrads.clear()
        gc.collect()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("core", "te", "mbridge", "bridge"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--output", type=Path, default=ROOT / "tests/data/executed_megatron_vision.jsonl")
    parser.add_argument("--only", type=int, nargs="+", help="numbers of runs, told and not written")
    given = parser.parse_args()
    warnings.filterwarnings("ignore")
    prepare(given.core, given.te, given.mbridge, given.bridge)
    if given.only:
        for number in given.only:
            print(json.dumps(execute({**BASE, **RUNS[number]})))
        return
    lines = [json.dumps(execute({**BASE, **changes}), separators=(",", ":")) for changes in RUNS]
    given.output.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
