"""Makes tests/data/executed_slime_update.jsonl: weight updates of slime's trainers, executed.

    python benchmarks/oracle/execute_slime_update.py SLIME [--output tests/data/executed_slime_update.jsonl] [--only RELEASE]

SLIME is a clone of slime with its history (a bare one will do); its modules run as they are in each release: on shared GPUs
UpdateWeightFromTensor with HfWeightIteratorDirect, on GPUs of their own UpdateWeightFromDistributed, with the conversions of
megatron_to_hf (0.1.0: update_weight_utils.py). No GPU and nothing else of the trainer is needed. One rank is executed. Its device is
`meta`, so that what comes from the host is a copy; storages there are followed from birth to death.

Stood in for is: the model, by parameters under Megatron-core's names with its shapes and attributes (slime's conversions refuse other
names and shapes); Megatron's parallel_state, by degrees; what other ranks say of their parameters, by slime's own functions run as
that rank; collectives, which do nothing, but for the flat tensor that NCCL's all-gather of a list makes and the handle keeps
(torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp: allgather); Ray, the servers, and SGLang's FlattenedTensorBucket, by one
concatenation of all bytes.

A line: the settings, `peak`, the highest level above that before the update, `left`, what is alive behind it, and `buckets`, how
often tensors were sent.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from execute import ROOT, Row, Storages

TAGS = {"0.1.0": "v0.1.0", "0.2.0": "v0.2.0", "0.2.4": "v0.2.4", "0.3.0": "v0.3.0", "0.3.1": "v0.3.1", "0.4.0": "HEAD"}
PACKAGE = "slime/backends/megatron_utils"
DENSE: Row = {
    "model": "qwen3", "layers": 12, "hidden": 256, "heads": 8, "groups": 2, "head_dim": 64, "ffn": 1024, "vocab": 5000,
    "experts": 0, "expert_ffn": 0, "shared_ffn": 0, "tied": False, "bias": False, "latent": False,
    "tensor": 1, "pipeline": 1, "expert": 1, "expert_tensor": 1, "data": 1, "buffer": 4 << 20, "colocated": True, "sends": True,
    "stage": 0, "server_experts": 1, "server_gpus": 1,
}  # fmt: skip
MOE: Row = DENSE | {"model": "qwen3moe", "experts": 16, "expert_ffn": 384}
LATENT: Row = DENSE | {"model": "deepseekv3", "latent": True, "experts": 16, "expert_ffn": 128, "shared_ffn": 256}


class World:
    """Degrees and the rank that runs. Ranks are numbered with tensor parallelism innermost, stages outermost."""

    row: Row = DENSE
    rank = 0

    def size(self) -> int:
        return int(self.row["tensor"] * self.row["data"] * self.row["pipeline"])

    def stage_size(self) -> int:
        return self.size() // int(self.row["pipeline"])

    def stage(self) -> int:
        return self.rank // self.stage_size()

    def expert_rank(self) -> int:
        return self.rank % self.stage_size() // int(self.row["expert_tensor"]) % int(self.row["expert"])

    def members(self, kind: str) -> list[int]:
        ep, etp = int(self.row["expert"]), int(self.row["expert_tensor"])
        if kind == "pp":
            return [self.rank % self.stage_size() + s * self.stage_size() for s in range(int(self.row["pipeline"]))]
        if kind == "ep":
            first = self.rank - self.expert_rank() * etp
            return [first + e * etp for e in range(ep)]
        if kind == "tp":
            first = self.rank // int(self.row["tensor"]) * int(self.row["tensor"])
            return [first + i for i in range(int(self.row["tensor"]))]
        if kind == "etp":
            first = self.rank // etp * etp
            return [first + i for i in range(etp)]
        return list(range(self.size()))


WORLD = World()
DEVICE = "meta"


class Asked(Exception):
    """What a rank would tell the others."""

    def __init__(self, value: Any) -> None:
        super().__init__()
        self.value = value


class Model:
    """A rank's chunk: parameters under the names of Megatron-core."""

    config = types.SimpleNamespace()

    def __init__(self, row: Row, stage: int, device: str) -> None:
        self.row, self.stage, self.device = row, stage, device
        self.named: list[tuple[str, Any]] = []
        self.buffers: list[tuple[str, Any]] = []
        self.fill()

    def add(self, name: str, shape: tuple[int, ...], axis: int = -1, expert: bool = False) -> None:
        degree = self.row["expert_tensor" if expert else "tensor"]
        cut = list(shape)
        if axis >= 0:
            cut[axis] //= degree
        parameter = torch.nn.Parameter(torch.empty(cut, dtype=torch.bfloat16, device=self.device), requires_grad=False)
        parameter.tensor_model_parallel = axis >= 0  # type: ignore[attr-defined]
        parameter.partition_dim = axis  # type: ignore[attr-defined]
        parameter.partition_stride = 1  # type: ignore[attr-defined]
        self.named.append((f"module.module.{name}", parameter))

    def fill(self) -> None:
        row, h, last = self.row, self.row["hidden"], self.stage + 1 == self.row["pipeline"]
        unit = 128 * row["tensor"]
        padded = -(-row["vocab"] // unit) * unit
        if self.stage == 0:
            self.add("embedding.word_embeddings.weight", (padded, h), 0)
        for layer in range(row["layers"] // row["pipeline"]):
            self.layer(f"decoder.layers.{layer}.")
        if not last:
            return
        self.add("decoder.final_layernorm.weight", (h,))
        if not row["tied"] or row["pipeline"] > 1:
            self.add("output_layer.weight", (padded, h), 0)

    def layer(self, at: str) -> None:
        row, h = self.row, self.row["hidden"]
        if row["latent"]:
            self.latent(at)
        else:
            queries, keys = row["heads"] * row["head_dim"], row["groups"] * row["head_dim"]
            self.add(f"{at}self_attention.linear_proj.weight", (h, queries), 1)
            self.add(f"{at}self_attention.linear_qkv.layer_norm_weight", (h,))
            self.add(f"{at}self_attention.linear_qkv.weight", (queries + 2 * keys, h), 0)
            if row["bias"]:
                self.add(f"{at}self_attention.linear_qkv.bias", (queries + 2 * keys,), 0)
            else:
                self.add(f"{at}self_attention.q_layernorm.weight", (row["head_dim"],))
                self.add(f"{at}self_attention.k_layernorm.weight", (row["head_dim"],))
        if not row["experts"]:
            self.add(f"{at}mlp.linear_fc1.layer_norm_weight", (h,))
            self.add(f"{at}mlp.linear_fc1.weight", (2 * row["ffn"], h), 0)
            self.add(f"{at}mlp.linear_fc2.weight", (h, row["ffn"]), 1)
            return
        self.add(f"{at}pre_mlp_layernorm.weight", (h,))
        self.add(f"{at}mlp.router.weight", (row["experts"], h))
        if row["latent"]:
            bias = torch.empty(row["experts"], dtype=torch.float32, device=self.device)
            self.buffers.append((f"module.module.{at}mlp.router.expert_bias", bias))
        own = row["experts"] // row["expert"]
        for e in range(own):
            self.add(f"{at}mlp.experts.linear_fc1.weight{e}", (2 * row["expert_ffn"], h), 0, True)
        for e in range(own):
            self.add(f"{at}mlp.experts.linear_fc2.weight{e}", (h, row["expert_ffn"]), 1, True)
        if row["shared_ffn"]:
            self.add(f"{at}mlp.shared_experts.linear_fc1.weight", (2 * row["shared_ffn"], h), 0)
            self.add(f"{at}mlp.shared_experts.linear_fc2.weight", (h, row["shared_ffn"]), 1)

    def latent(self, at: str) -> None:
        row, h = self.row, self.row["hidden"]
        down, up, width = 96, 64, 48 + 16
        self.add(f"{at}input_layernorm.weight", (h,))
        self.add(f"{at}self_attention.linear_proj.weight", (h, row["heads"] * 48), 1)
        self.add(f"{at}self_attention.linear_q_down_proj.weight", (down, h))
        self.add(f"{at}self_attention.linear_q_up_proj.layer_norm_weight", (down,))
        self.add(f"{at}self_attention.linear_q_up_proj.weight", (row["heads"] * width, down), 0)
        self.add(f"{at}self_attention.linear_kv_down_proj.weight", (up + 16, h))
        self.add(f"{at}self_attention.linear_kv_up_proj.layer_norm_weight", (up,))
        self.add(f"{at}self_attention.linear_kv_up_proj.weight", (row["heads"] * (48 + 48), up), 0)

    def named_parameters(self) -> Iterator[tuple[str, Any]]:
        yield from self.named

    def named_buffers(self) -> Iterator[tuple[str, Any]]:
        yield from self.buffers


def module(name: str, **names: Any) -> Any:
    made = types.ModuleType(name)
    made.__dict__.update(names)
    made.__path__ = []  # type: ignore[attr-defined]
    sys.modules[name] = made
    parent, _, last = name.rpartition(".")
    if parent:
        setattr(sys.modules.get(parent) or module(parent), last, made)
    return made


class Handle:
    """Of an all-gather of a list."""

    def __init__(self, outputs: list[torch.Tensor] | None = None) -> None:
        if outputs:
            self.flat = torch.empty((len(outputs), *outputs[0].shape), dtype=outputs[0].dtype, device=outputs[0].device)

    def wait(self) -> None:
        pass


def all_gather(outputs: list[torch.Tensor], _given: Any, group: Any = None, async_op: bool = False) -> Any:
    handle = Handle(outputs)
    return handle if async_op else None


class Bucket:
    """SGLang's FlattenedTensorBucket: all bytes in one tensor (sglang/srt/weight_sync/tensor_bucket.py, 0.5.5 to 0.5.15)."""

    supports_multi_dtypes = True

    def __init__(self, named_tensors: list[tuple[str, torch.Tensor]]) -> None:
        parts = [tensor.flatten().view(torch.uint8) for _, tensor in named_tensors]
        self.flattened = torch.cat(parts)

    def get_metadata(self) -> list[Any]:
        return []

    def get_flattened_tensor(self) -> torch.Tensor:
        return self.flattened


class Anything:
    def __init__(self, *_a: Any, **_k: Any) -> None: ...
    def __getattr__(self, _name: str) -> Any:
        return Anything()

    def __call__(self, *_a: Any, **_k: Any) -> Any:
        return Anything()


def stand_in() -> None:
    mpu = {
        "get_pipeline_model_parallel_world_size": lambda: WORLD.row["pipeline"],
        "get_expert_model_parallel_world_size": lambda: WORLD.row["expert"],
        "get_expert_model_parallel_rank": lambda: WORLD.expert_rank(),
        "get_tensor_model_parallel_world_size": lambda: WORLD.row["tensor"],
        "get_expert_tensor_parallel_world_size": lambda: WORLD.row["expert_tensor"],
        "get_pipeline_model_parallel_group": lambda: "pp",
        "get_expert_model_parallel_group": lambda: "ep",
        "get_tensor_model_parallel_group": lambda: "tp",
        "get_expert_tensor_parallel_group": lambda: "etp",
        "get_pipeline_model_parallel_rank": lambda: WORLD.stage(),
        "get_tensor_model_parallel_rank": lambda: 0,
        "get_data_parallel_rank": lambda with_context_parallel=False: 0,
    }
    module("megatron.core.mpu", **mpu)

    def offset(_config: Any, vp_stage: int = 0) -> int:
        return int(WORLD.stage() * (WORLD.row["layers"] // WORLD.row["pipeline"]))

    module("megatron.core.transformer.transformer_layer", get_transformer_layer_offset=offset)
    module("ray", get=lambda refs: refs, ObjectRef=object, _private=Anything())
    module("ray.actor", ActorHandle=object)
    module("tqdm", tqdm=lambda it=None, **_k: Anything() if it is None else it)
    module("sglang", __version__="0.5.5")
    serializer = types.SimpleNamespace(serialize=lambda *_a, **_k: "")
    module("sglang.srt.utils", MultiprocessingSerializer=serializer)
    module("sglang.srt.utils.patch_torch", monkey_patch_torch_reductions=lambda: None)
    module("sglang.srt.patch_torch", monkey_patch_torch_reductions=lambda: None)
    module("sglang.srt.weight_sync.tensor_bucket", FlattenedTensorBucket=Bucket)
    module("sglang.srt.model_executor.model_runner", FlattenedTensorBucket=Bucket)
    nothing = lambda *_a, **_k: None  # noqa: E731
    torch.cuda.current_device = lambda: DEVICE  # type: ignore[assignment,return-value]
    for name in ("synchronize", "empty_cache", "ipc_collect"):
        setattr(torch.cuda, name, nothing)

    def gather_object(obj: Any, object_gather_list: list[Any] | None = None, **_k: Any) -> None:
        for i in range(len(object_gather_list or ())):
            object_gather_list[i] = obj  # type: ignore[index]

    dist.barrier = nothing  # type: ignore[assignment]
    dist.gather_object = gather_object  # type: ignore[assignment]
    dist.batch_isend_irecv = lambda _ops: []  # type: ignore[assignment]
    dist.P2POp = lambda *a, **_k: a  # type: ignore[assignment,misc]
    dist.get_rank = lambda *_a: WORLD.rank  # type: ignore[assignment]
    dist.get_world_size = lambda group=None: len(WORLD.members(group or "all"))  # type: ignore[assignment]
    dist.get_process_group_ranks = lambda group: WORLD.members(group)  # type: ignore[assignment]
    dist.new_group = lambda *_a, **_k: "all"  # type: ignore[assignment]
    dist.broadcast = lambda *_a, **_k: Handle()  # type: ignore[assignment]
    dist.all_gather = all_gather  # type: ignore[assignment]


def source(clone: Path, tag: str, path: str) -> str:
    return subprocess.run(["git", "-C", str(clone), "show", f"{tag}:{path}"], check=True, capture_output=True, text=True).stdout


def listed(clone: Path, tag: str, folder: str) -> list[str]:
    out = subprocess.run(
        ["git", "-C", str(clone), "ls-tree", "-r", "--name-only", tag, folder], check=True, capture_output=True, text=True
    )
    return [path for path in out.stdout.splitlines() if path.endswith(".py")]


class Code:
    """slime's modules of one release, on what stands for the rest."""

    def __init__(self, clone: Path, tag: str) -> None:
        for name in [n for n in sys.modules if n == "slime" or n.startswith("slime.")]:
            del sys.modules[name]
        self.clone, self.tag = clone, tag
        module("slime.utils.accelerator", current_device=lambda: DEVICE, device=lambda: DEVICE, synchronize=lambda: None,
               empty_cache=lambda: None, ipc_collect=lambda: None)  # fmt: skip
        module("slime.utils.distributed_utils", get_gloo_group=lambda: "gloo", init_process_group=lambda **_k: "all")
        module("slime.utils.http_utils", _wrap_ipv6=lambda text: text)
        types_text = source(clone, tag, "slime/utils/types.py")
        start = types_text.index("class ParamInfo")
        made = module("slime.utils.types")
        info = types_text[types_text.rindex("@dataclass", 0, start) :]
        exec(
            "from dataclasses import dataclass, field\nimport torch\n"
            + info[: info.find("\n\n\n") if "\n\n\n" in info else None],
            made.__dict__,
        )
        module("slime.backends.megatron_utils.initialize", get_gloo_group=lambda: "gloo")
        module("slime.backends.megatron_utils.sglang", FlattenedTensorBucket=Bucket, MultiprocessingSerializer=types.SimpleNamespace(serialize=lambda *_a, **_k: ""),
               monkey_patch_torch_reductions=lambda: None, quant_weight_ue8m0=None, transform_scale_ue8m0=None, should_deepgemm_weight_requant_ue8m0=None)  # fmt: skip
        sys.modules["slime.backends.megatron_utils.sglang"].__getattr__ = lambda _name: None  # type: ignore[method-assign]
        for name in ("slime.backends.megatron_utils.kernels.fp8_kernel", "slime.utils.fp8_kernel"):
            module(name, blockwise_cast_to_fp8_triton=None)
        module("slime.backends.megatron_utils.update_weight.hf_weight_iterator_bridge", HfWeightIteratorBridge=None)
        with contextlib.suppress(subprocess.CalledProcessError):
            self.load(f"{PACKAGE}/misc_utils.py")
        if tag == "v0.1.0":
            self.convert()
            self.load(f"{PACKAGE}/update_weight_utils.py")
            self.old = sys.modules["slime.backends.megatron_utils.update_weight_utils"]
            return
        self.convert()
        at = f"{PACKAGE}/update_weight"
        for name in (
            "common",
            "hf_weight_iterator_base",
            "hf_weight_iterator_direct",
            "expert_routing",
            "update_weight_from_distributed",
            "update_weight_from_tensor",
        ):
            if name == "expert_routing" and f"{at}/{name}.py" not in listed(clone, tag, at):
                continue
            self.load(f"{at}/{name}.py")
        self.tensor = sys.modules["slime.backends.megatron_utils.update_weight.update_weight_from_tensor"]
        self.distributed = sys.modules["slime.backends.megatron_utils.update_weight.update_weight_from_distributed"]
        self.direct = sys.modules["slime.backends.megatron_utils.update_weight.hf_weight_iterator_direct"]
        self.old = None

    def convert(self) -> None:
        """megatron_to_hf without what quantizes: that is told to do nothing."""
        at = f"{PACKAGE}/megatron_to_hf"
        package = "slime.backends.megatron_utils.megatron_to_hf"
        module(package)
        files = listed(self.clone, self.tag, at)
        processors = module(f"{package}.processors", quantize_params=lambda _a, _n, named, *_k, **_w: named)
        module(f"{package}.processors.quantizer", quantize_params=processors.quantize_params)
        padding = f"{at}/processors/padding_remover.py"
        if padding in files:
            self.load(padding)
            processors.remove_padding = sys.modules[f"{package}.processors.padding_remover"].remove_padding
        direct = [path for path in files if path.count("/") == at.count("/") + 1 and not path.endswith("__init__.py")]
        for _ in range(2):  # some take functions of others
            for path in direct:
                with contextlib.suppress(ImportError):
                    self.load(path)
        made = sys.modules[package]
        made.__package__ = package
        exec(compile(source(self.clone, self.tag, f"{at}/__init__.py"), package, "exec"), made.__dict__)

    def load(self, path: str) -> None:
        name = path.removesuffix(".py").replace("/", ".")
        made = module(name)
        made.__package__ = name.rpartition(".")[0]
        text = source(self.clone, self.tag, path).replace('device="cuda"', f'device="{DEVICE}"')
        exec(compile(text, name, "exec"), made.__dict__)


def arguments(row: Row) -> Any:
    return types.SimpleNamespace(
        num_experts=row["experts"] or None, kv_channels=row["head_dim"], hidden_size=row["hidden"], num_attention_heads=row["heads"],
        num_query_groups=row["groups"], vocab_size=row["vocab"], q_lora_rank=96 if row["latent"] else None,
        qk_head_dim=48, qk_pos_emb_head_dim=16, v_head_dim=48, kv_lora_rank=64,
        update_weight_buffer_size=row["buffer"], rollout_num_gpus_per_engine=row["server_gpus"], actor_num_nodes=1,
        actor_num_gpus_per_node=WORLD.size(), megatron_to_hf_mode="raw", mtp_num_layers=None, sglang_ep_size=row["server_experts"],
        sglang_pp_size=1, sglang_moe_dp_size=1, offload=True, vocab_padded=None,
    )  # fmt: skip


def others(compute: Any) -> Any:
    """dist.all_gather_object: every rank's words, found by running the same code as that rank. `compute(rank, kind)`."""

    def gather(object_list: list[Any] | None = None, obj: Any = None, group: Any = None) -> None:
        assert object_list is not None
        own = WORLD.rank
        if compute.asking == group:
            raise Asked(obj)
        for i, rank in enumerate(WORLD.members("all" if group == "gloo" else group)):
            same = rank == own or (group == "gloo" and not compute.differs)
            object_list[i] = obj if same else compute(rank, group)
        WORLD.rank = own

    return gather


class Others:
    """Calls `function` as another rank until it would tell `kind` what it has."""

    asking: str | None = None
    differs = False  # whether the ranks' words to all are different

    def __init__(self, function: Any) -> None:
        self.function = function

    def __call__(self, rank: int, kind: str) -> Any:
        own, asking = WORLD.rank, self.asking
        WORLD.rank, self.asking = rank, kind
        try:
            self.function()
        except Asked as told:
            return told.value
        finally:
            WORLD.rank, self.asking = own, asking
        raise AssertionError(kind)


def host_weights(code: Code, row: Row) -> dict[str, torch.Tensor]:
    chunk = Model(row, WORLD.stage(), "cpu")
    common = code.old or sys.modules["slime.backends.megatron_utils.update_weight.common"]
    named = common.named_parameters if code.old else common.named_params_and_buffers
    return dict(named(arguments(row), [chunk]))


def shared(code: Code, row: Row, counted: list[int]) -> Any:
    args = arguments(row)
    kinds = {"qwen3": "qwen3", "qwen3moe": "qwen3moe", "deepseekv3": "deepseekv3"}
    name = kinds[row["model"]]

    def infos() -> Any:
        chunk = Model(row, WORLD.stage(), "meta")
        return (code.old.get_param_infos if code.old else code.direct._get_megatron_local_param_infos)(args, [chunk])

    dist.all_gather_object = others(Others(infos))  # type: ignore[assignment]
    weights = host_weights(code, row)
    chunk = Model(row, WORLD.stage(), "meta")
    server = Anything()
    if code.old:
        updater = code.old.UpdateWeightFromTensor(
            args, [chunk], {"actor": weights}, model_name=name, quantization_config=None, vocab_size=row["vocab"]
        )
        updater.connect_rollout_engines([server], server)
        updater._ipc_gather_src, updater._ipc_gather_group, updater._ipc_engine = WORLD.rank, "all", server
    else:
        updater = code.tensor.UpdateWeightFromTensor(
            args, [chunk], weights_getter=lambda: weights, model_name=name, quantization_config=None
        )
        if "expert_routing" in str(sorted(n for n in sys.modules if n.startswith("slime.backends"))):

            def local() -> Any:
                routing = sys.modules["slime.backends.megatron_utils.update_weight.expert_routing"]
                return routing._resolve_expert_source_ranks([], lambda: host_weights(code, row))

            words = Others(local)
            words.differs = True
            dist.all_gather_object = others(words)  # type: ignore[assignment]
        engines = [server] * (WORLD.size() // row["server_gpus"])
        updater.connect_rollout_engines(engines, server)
    send = Bucket.get_flattened_tensor

    def sent(bucket: Bucket) -> torch.Tensor:
        counted[0] += 1
        return send(bucket)

    module_bucket = type("Counted", (Bucket,), {"get_flattened_tensor": sent})
    (code.old or code.tensor).FlattenedTensorBucket = module_bucket
    return updater


def apart(code: Code, row: Row, counted: list[int]) -> Any:
    args = arguments(row)
    chunk = Model(row, WORLD.stage(), "meta")

    def gather(object_list: list[Any] | None = None, obj: Any = None, group: Any = None) -> None:
        assert object_list is not None
        shift = row["experts"] // row["expert"]
        for i in range(len(object_list)):
            import re

            object_list[i] = [re.sub(r"(weight)(\d+)$", lambda m, i=i: f"{m[1]}{int(m[2]) % shift + i * shift}", n) for n in obj]

    dist.all_gather_object = gather  # type: ignore[assignment]
    name = row["model"]
    if code.old:
        updater = code.old.UpdateWeightFromDistributed(
            args, [chunk], {}, model_name=name, quantization_config=None, vocab_size=row["vocab"]
        )
    else:
        updater = code.distributed.UpdateWeightFromDistributed(
            args, [chunk], weights_getter=dict, model_name=name, quantization_config=None
        )
    updater.rollout_engines, updater.rollout_engine_lock = [], Anything()
    updater._is_pp_src_rank = row["sends"]
    updater._group_name, updater._model_update_groups = "one", "all"
    real = dist.broadcast

    def broadcast(*a: Any, **k: Any) -> Any:
        counted[0] += 1
        return real(*a, **k)

    dist.broadcast = broadcast  # type: ignore[assignment]
    updater.kept = chunk
    return updater


class Counted(Storages):
    """Storages of the device alone."""

    def born(self, tensor: torch.Tensor) -> None:
        if tensor.device.type == DEVICE:
            super().born(tensor)


def run(code: Code, row: Row) -> Row:
    World.row = row
    WORLD.rank = row["stage"] * WORLD.stage_size()
    dist.broadcast = lambda *_a, **_k: Handle()  # type: ignore[assignment]
    counted = [0]
    updater = (shared if row["colocated"] else apart)(code, row, counted)
    gc.collect()
    storages = Counted()
    for name in ("model", "kept"):
        held = getattr(updater, name, None)
        for chunk in held if isinstance(held, list) else [held] if held else []:
            for _, tensor in [*chunk.named, *chunk.buffers]:
                storages.own(tensor)
    gc.disable()
    with storages:
        updater.update_weights()
        counted_peak = storages.highest
    gc.enable()
    return row | {"peak": counted_peak, "left": storages.live, "buckets": counted[0]}


def rows() -> list[Row]:
    cases: list[Row] = []
    whole = [
        DENSE,
        DENSE | {"tensor": 2},
        DENSE | {"tensor": 4, "groups": 4},
        DENSE | {"tensor": 2, "tied": True},
        DENSE | {"tensor": 2, "bias": True, "buffer": 1 << 20},
        DENSE | {"tensor": 2, "buffer": 64 << 20},
        DENSE | {"tensor": 1, "groups": 1},
        DENSE | {"tensor": 2, "pipeline": 2},
        DENSE | {"tensor": 2, "pipeline": 2, "tied": True, "stage": 1},
        DENSE | {"tensor": 4, "groups": 8, "pipeline": 2, "vocab": 20000},
        MOE,
        MOE | {"tensor": 2, "data": 2, "expert": 4},
        MOE | {"tensor": 2, "expert": 1, "expert_tensor": 2},
        MOE | {"tensor": 2, "data": 2, "expert": 2, "expert_tensor": 2, "pipeline": 2},
        MOE | {"tensor": 1, "data": 4, "expert": 4, "pipeline": 2, "buffer": 2 << 20},
        LATENT | {"tensor": 2, "data": 2, "expert": 4},
        LATENT | {"tensor": 1, "data": 2, "expert": 2, "pipeline": 2, "buffer": 1 << 20},
    ]
    cases += whole
    routed = {"server_experts": 4, "server_gpus": 4}
    cases += [
        MOE | {"tensor": 2, "data": 2, "expert": 4} | routed,
        MOE | {"tensor": 1, "data": 8, "expert": 8, "buffer": 2 << 20} | routed,
        MOE | {"tensor": 1, "data": 8, "expert": 2, "buffer": 3 << 20} | routed,
        MOE | {"tensor": 2, "data": 4, "expert": 4, "pipeline": 2} | {"server_experts": 8, "server_gpus": 8},
    ]
    for base in whole:
        for sends in (True, False):
            for stage in range(base["pipeline"]):
                cases.append(base | {"colocated": False, "sends": sends, "stage": stage})
    return cases


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("slime", type=Path)
    parser.add_argument("--output", type=Path, default=ROOT / "tests/data/executed_slime_update.jsonl")
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    by = f"torch {torch.__version__.split('+')[0]}"
    stand_in()
    with options.output.open("w", encoding="utf-8") as file:
        for release, tag in TAGS.items():
            if options.only not in ("", release):
                continue
            code = Code(options.slime, tag)
            for row in rows():
                routed = row["server_experts"] > 1
                if routed and release not in ("0.3.1", "0.4.0"):
                    continue
                line = {"release": release} | run(code, row) | {"source": f"{by}, slime {release}"}
                file.write(json.dumps(line, separators=(",", ":")) + "\n")
            print(release)


if __name__ == "__main__":
    main()
