"""Makes tests/data/executed_bridge_update.jsonl: weight updates through Megatron-Bridge, and by Relax's checkpoint engine, executed.

    python benchmarks/oracle/execute_bridge_update.py RELAX BRIDGE SLIME BRIDGE_OF_SLIME [--output tests/data/executed_bridge_update.jsonl]

RELAX is a folder with Relax's files (relax/backends/megatron/weight_update/{hf_weight_iterator_bridge,bridge_converter,common,
update_weight_from_tensor,hf_weight_iterator_base}.py and relax/distributed/checkpoint_service/backends/device_direct.py, redai-infra/Relax
e38d4faa, 14958525 and 10077e0a), BRIDGE the sources of Megatron-Bridge that its image has (2faedbf6), SLIME a clone of slime with its
history, BRIDGE_OF_SLIME those of Megatron-Bridge 0.2.0. On shared GPUs Relax's UpdateWeightFromTensor runs with HfWeightIteratorBridge
and BridgeConverter, on GPUs of their own DeviceDirectBackend.update_weights_for_rollout; slime's UpdateWeightFromTensor with its own
HfWeightIteratorBridge. Conversions are Megatron-Bridge's (models/conversion/param_mapping.py, and the mappings of its models' bridges).

What is stood in for beside what execute_slime_update.py names: the model's description in Megatron-Bridge, by a configuration of its
numbers; its export, of slime's, by the same loop over the parameters in Megatron-Bridge's order; what an all-reduce of names and shapes
brings from the other ranks, by Relax's own encoding of what they have; the removal of padded rows. Nothing is quantized.

A line: the settings, `rank` that runs, `peak`, the highest level above that before the update, `left`, what is alive behind it, and
`buckets`, how often tensors were sent.
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import json
import re
import sys
import types
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from execute import ROOT, Row
from execute_slime_update import (
    DENSE,
    DEVICE,
    LATENT,
    MOE,
    TAGS,
    WORLD,
    Anything,
    Bucket,
    Counted,
    Handle,
    Model,
    Others,
    World,
    module,
    others,
    source,
    stand_in,
)

FUSED: Row = MOE | {"model": "glm45"}
BRIDGES = {"qwen3": ("qwen/qwen3_bridge.py", "Qwen3Bridge"), "qwen2": ("qwen/qwen2_bridge.py", "Qwen2Bridge"),
           "qwen3moe": ("qwen/qwen3_moe_bridge.py", "Qwen3MoEBridge"), "glm45": ("glm/glm45_bridge.py", "GLM45Bridge"),
           "deepseekv3": ("deepseek/deepseek_v3_bridge.py", "DeepSeekV3Bridge")}  # fmt: skip


@dataclasses.dataclass
class ParamInfo:
    name: str
    dtype: torch.dtype
    shape: torch.Size
    attrs: dict[str, Any]
    size: int
    src_rank: int


def execute(name: str, path: Path) -> Any:
    made = module(name)
    made.__package__ = name.rpartition(".")[0]
    text = path.read_text(encoding="utf-8").replace('device="cuda"', f'device="{DEVICE}"')
    exec(compile(text, name, "exec"), made.__dict__)
    return made


def anything(name: str) -> None:
    """A module of which every name is a class."""

    def named(wanted: str) -> Any:
        if wanted.startswith("__"):
            raise AttributeError(wanted)
        return object

    module(name).__getattr__ = named


def number_in(pattern: str, name: str) -> int:
    found = re.search(pattern, name)
    return int(found[1]) if found else -1


def moved(name: str, pattern: str, by: int) -> str:
    """The name with another number."""
    return re.sub(pattern, lambda m: f"{m[1]}{int(m[2]) + by}", name)


def without_module(name: str) -> str:
    while name.startswith("module."):
        name = name.removeprefix("module.")
    return name


class Bridge:
    """Megatron-Bridge's mappings of one version."""

    def __init__(self, folder: Path) -> None:
        for name in [n for n in sys.modules if n == "megatron.bridge" or n.startswith("megatron.bridge.")]:
            del sys.modules[name]
        sys.modules["megatron.core.mpu"].__dict__["is_initialized"] = lambda: False
        module("megatron.core.fp8_utils", FP8_TENSOR_CLASS=type(None), HAVE_TE_FP8_TENSOR_CLASS=False)
        module("megatron.core.transformer.module", MegatronModule=torch.nn.Module, Float16Module=torch.nn.Module)
        module("megatron.core.transformer.transformer_config", TransformerConfig=object)
        size = lambda group: 1 if group is None else len(WORLD.members(group))  # noqa: E731
        module("megatron.core.utils", get_pg_rank=lambda _group: 0, get_pg_size=size)
        module("megatron.core.models.gpt.gpt_model", GPTModel=object)
        for name in (
            "megatron.core.models.gpt.gpt_layer_specs",
            "megatron.core.models.gpt.experimental_attention_variant_module_specs",
        ):
            anything(name)
        expert = lambda name: number_in(r"(?:weight|bias|local_experts\.)(\d+)", name)  # noqa: E731
        module("megatron.bridge.utils.common_utils", extract_expert_number_from_param=expert)
        anything("transformers")
        same = lambda config, **_k: config  # noqa: E731
        module("megatron.bridge.models.conversion.utils", get_module_and_param_from_name=None, is_modelopt_dynamic_module=None,
               remove_non_pickleables=same)  # fmt: skip
        at = folder / "src/megatron/bridge/models"
        self.mapping = execute("megatron.bridge.models.conversion.param_mapping", at / "conversion/param_mapping.py")
        module("megatron.bridge.models.conversion.quant_mapping", convert_to_amax_map=lambda m: m)
        execute("megatron.bridge.models.conversion.mapping_registry", at / "conversion/mapping_registry.py")
        passes = types.SimpleNamespace(register_bridge=lambda **_k: lambda made: made)
        bridge = type("MegatronModelBridge", (), {"register_bridge": staticmethod(passes.register_bridge)})
        module("megatron.bridge.models.conversion.model_bridge", MegatronModelBridge=bridge, WeightConversionTask=Task)
        for name in ("deepseek.deepseek_provider", "glm.glm45_provider", "qwen.qwen_provider", "mla_provider", "gpt_provider",
                     "conversion.transformers_compat", "hf_pretrained.causal_lm"):  # fmt: skip
            anything(f"megatron.bridge.models.{name}")
        for name in ("glm.glm_moe_mappings", "deepseek.common"):
            path = at / f"{name.replace('.', '/')}.py"
            if path.is_file():
                execute(f"megatron.bridge.models.{name}", path)
        self.at = at

    def registry(self, row: Row) -> Any:
        kind = "qwen2" if row["bias"] else row["model"]
        path, name = BRIDGES[kind]
        made = execute(f"megatron.bridge.models.{path.removesuffix('.py').replace('/', '.')}", self.at / path)
        bridge = getattr(made, name)()
        # what a bridge asks its checkpoint for
        bridge.hf_config = types.SimpleNamespace(
            num_nextn_predict_layers=0, num_hidden_layers=row["layers"], num_experts=row["experts"]
        )
        keys = ["model.layers.0.mlp.experts.gate_up_proj", "model.layers.0.mlp.experts.down_proj"]
        keeps = types.SimpleNamespace(get_all_keys=lambda: keys, has_glob=lambda _p: False)
        bridge.hf_pretrained = types.SimpleNamespace(config=bridge.hf_config, state=types.SimpleNamespace(source=keeps))
        return bridge.mapping_registry()


@dataclasses.dataclass(frozen=True)
class Task:
    param_name: str
    global_param_name: str
    mapping: Any
    megatron_module: Any = None
    param_weight: Any = None
    vp_stage: int = 0


def configuration(row: Row) -> Any:
    return types.SimpleNamespace(
        num_attention_heads=row["heads"], num_query_groups=row["groups"], kv_channels=row["head_dim"], hidden_size=row["hidden"],
        num_moe_experts=row["experts"] or None, attention_output_gate=False)  # fmt: skip


def arguments(row: Row) -> Any:
    return types.SimpleNamespace(
        num_experts=row["experts"] or None, vocab_size=row["vocab"], update_weight_buffer_size=row["buffer"], hf_checkpoint="",
        megatron_to_hf_mode="bridge", rollout_num_gpus_per_engine=1, actor_num_nodes=1, actor_num_gpus_per_node=WORLD.size())  # fmt: skip


def without_padding(name: str, param: torch.Tensor, rows: int) -> torch.Tensor:
    return param[:rows] if "word_embeddings" in name or "output_layer" in name else param


class Relax:
    """Relax's modules, on what stands for the rest."""

    common: Any
    bridge_converter: Any
    weight_iterator_base: Any
    weight_iterator_bridge: Any
    weight_from_tensor: Any

    def __init__(self, folder: Path, bridge: Bridge) -> None:
        self.bridge = bridge
        device = module("relax.utils.device", make_current_torch_device=lambda: torch.device(DEVICE), synchronize=lambda: None,
                        empty_cache=lambda: None)  # fmt: skip
        sys.modules["relax.utils"].__dict__["device"] = device
        module("relax.utils.types", ParamInfo=ParamInfo)
        module("relax.utils.misc", get_hf_config=None)
        module("relax.utils.distributed_utils", get_gloo_group=lambda: "gloo")
        module("relax.utils.logging_utils", get_logger=lambda _name: Anything())
        module("relax.utils.external.torch_memory_saver", torch_memory_saver=None)
        module("relax.backends.megatron.misc_utils", strip_param_name_prefix=without_module)
        same = lambda _a, _n, named, *_k, **_w: named  # noqa: E731
        module("relax.backends.megatron.weight_conversion", convert_to_hf=None)
        module("relax.backends.megatron.weight_conversion.processors", quantize_params=same, remove_padding=without_padding)
        serializer = types.SimpleNamespace(serialize=lambda *_a, **_k: "")
        module("relax.backends.megatron.sglang", FlattenedTensorBucket=Bucket, MultiprocessingSerializer=serializer)
        at, package = folder / "relax/backends/megatron/weight_update", "relax.backends.megatron.weight_update"
        module(f"{package}.hf_weight_iterator_direct", HfWeightIteratorDirect=None)
        for name in (
            "common",
            "bridge_converter",
            "hf_weight_iterator_base",
            "hf_weight_iterator_bridge",
            "update_weight_from_tensor",
        ):
            setattr(self, name.removeprefix("hf_").removeprefix("update_"), execute(f"{package}.{name}", at / f"{name}.py"))
        engine = folder / "relax/distributed/checkpoint_service/backends/device_direct.py"
        self.engine = execute("relax.distributed.checkpoint_service.backends.device_direct", engine)

    def converter(self, made: Any, row: Row) -> None:
        made._bridge_task_map = {}
        made._bridge_mapping_registry = self.bridge.registry(row)
        made._config_map = {"decoder": configuration(row)}
        made._configs_broadcast_done, made._bridge_expert_transposes_down = True, False

    def shared(self, row: Row, counted: list[int]) -> Any:
        args, common = arguments(row), self.common

        def infos() -> Any:
            return self.weight_iterator_bridge._build_param_info_buckets(args, [Model(row, WORLD.stage(), "meta")])

        dist.all_gather_object = others(Others(infos))
        host = dict(common.named_params_and_buffers(args, [Model(row, WORLD.stage(), "cpu")], convert_to_global_name=False))
        updater = self.weight_from_tensor.UpdateWeightFromTensor(
            args, [Model(row, WORLD.stage(), "meta")], weights_getter=lambda: host, model_name="", quantization_config=None
        )
        iterator = updater._hf_weight_iterator
        self.converter(iterator._bridge_converter, row)
        updater._ipc_engine, updater._ipc_gather_src, updater._ipc_gather_group = Anything(), WORLD.rank, "all"
        Said(self.weight_iterator_bridge, iterator, row)
        send = Bucket.get_flattened_tensor

        def sent(bucket: Bucket) -> torch.Tensor:
            counted[0] += 1
            return send(bucket)

        self.weight_from_tensor.FlattenedTensorBucket = type("Counted", (Bucket,), {"get_flattened_tensor": sent})
        return updater

    def apart(self, row: Row, counted: list[int]) -> Any:
        made = self.engine.DeviceDirectBackend.__new__(self.engine.DeviceDirectBackend)
        args = arguments(row)
        chunk = Model(row, WORLD.stage(), "meta")
        made.__dict__.update(args=args, model=[chunk], kept=chunk, model_name="", quantization_config=None, weight_version=0, device=DEVICE,
                             _is_pp_src_rank=row["sends"], _group_name="one", _use_bridge=True, rollout_engines={}, lock=Anything(),
                             _model_update_groups="all", _model_update_groups_for_actor_fwd_ref="all")  # fmt: skip
        made._batch_request = lambda *_a: []
        made._bridge_converter = self.bridge_converter.BridgeConverter(args, [chunk], None)
        self.converter(made._bridge_converter, row)

        def gather(object_list: list[Any] | None = None, obj: Any = None, group: Any = None) -> None:
            assert object_list is not None
            shift = row["experts"] // row["expert"]
            for i in range(len(object_list)):
                # names of the rank's own experts, of which each expert rank has as many
                object_list[i] = [moved(n, r"(weight)(\d+)$", i * shift) for n in obj]

        dist.all_gather_object = gather
        real = made._update_bucket_weights_from_distributed

        def counts(*a: Any, **k: Any) -> None:
            counted[0] += 1
            real(*a, **k)

        made._update_bucket_weights_from_distributed = counts
        made.update_weights = made.update_weights_for_rollout
        return made


class Said:
    """What the other ranks say of a bucket's experts, in Relax's own encoding. A tensor of the device has no numbers: they are handed
    over by the next look at them."""

    def __init__(self, code: Any, iterator: Any, row: Row) -> None:
        self.code, self.row = code, row
        self.answer: Any = None
        self.infos: list[Any] = []
        self.slot = 0
        self.size, self.encode = code.__dict__["_compute_slot_size"], code.__dict__["_encode_metadata"]
        self.words: dict[str, list[Any]] = {}
        for bucket in iterator._expert_buckets:
            for info in bucket:
                shape = list(info.shape)
                shape[info.attrs["partition_dim"]] *= row["expert_tensor"]
                made = iterator._bridge_converter.convert(info.name, torch.empty(shape, dtype=info.dtype, device="meta"))
                self.words[info.name] = [
                    (name, types.SimpleNamespace(ndim=t.ndim, shape=t.shape, dtype=t.dtype)) for name, t in made
                ]
        code._compute_slot_size = self.asked
        dist.all_reduce = self.all_reduce
        torch.Tensor.item = lambda _t: self.answer
        torch.Tensor.cpu = lambda _t, *_a, **_k: self.answer

    def asked(self, all_converted: list[Any], infos: list[Any]) -> int:
        self.infos = infos
        return int(self.size(all_converted, infos))

    def all_reduce(self, tensor: torch.Tensor, op: Any = None, group: Any = None) -> None:
        ranks = WORLD.members(group)
        own = WORLD.row["experts"] // WORLD.row["expert"]
        rank = WORLD.expert_rank()
        here = [info for info in self.infos if group == "ep" or number_in(r"weight(\d+)$", info.name) // own == rank]
        names = {info.name for info in here}
        said = [self.words[info.name] if info.name in names else None for info in self.infos]
        if tensor.numel() == 1:
            self.slot = self.size(said, self.infos)
            self.answer = self.slot
        else:
            self.answer = self.encode(said, self.infos, set(ranks), WORLD.rank, self.slot)


class Slime:
    """slime's updater with its HfWeightIteratorBridge, of one release."""

    PACKAGE = "slime.backends.megatron_utils"

    def __init__(self, clone: Path, release: str, bridge: Bridge) -> None:
        self.bridge = bridge
        for name in [n for n in sys.modules if n == "slime" or n.startswith("slime.")]:
            del sys.modules[name]
        module("slime.utils.distributed_utils", get_gloo_group=lambda: "gloo", init_process_group=lambda **_k: "all")
        import contextlib

        module(
            "slime.utils.megatron_bridge_utils",
            patch_megatron_model=lambda _m: contextlib.nullcontext(),
            patch_auto_bridge_hf_config=lambda b: b,
        )
        sys.modules["slime.utils"].__dict__["megatron_bridge_utils"] = sys.modules["slime.utils.megatron_bridge_utils"]
        chunking = "slime/utils/iter_utils.py" if release in ("0.2.0", "0.2.1") else "slime/utils/misc.py"
        self.load(clone, TAGS[release], chunking, only="chunk_named_params_by_size")
        module(
            f"{self.PACKAGE}.sglang",
            FlattenedTensorBucket=Bucket,
            MultiprocessingSerializer=types.SimpleNamespace(serialize=lambda *_a, **_k: ""),
        )

        def unpadded(args: Any, megatron_param_name: str, hf_param_name: str, param: torch.Tensor) -> torch.Tensor:
            return without_padding(megatron_param_name, param, args.vocab_size)

        module(f"{self.PACKAGE}.megatron_to_hf", postprocess_hf_param=unpadded)
        same = lambda converted_named_params, **_k: converted_named_params  # noqa: E731
        module(f"{self.PACKAGE}.megatron_to_hf.processors", quantize_params=same)
        module(f"{self.PACKAGE}.misc_utils", strip_param_name_prefix=without_module)
        at = f"{self.PACKAGE}.update_weight"
        anything(f"{at}.update_weight_from_distributed")
        module(f"{at}.hf_weight_iterator_direct", HfWeightIteratorDirect=None)
        auto = types.SimpleNamespace(from_hf_pretrained=lambda *_a, **_k: self)
        sys.modules["megatron.bridge"].__dict__["AutoBridge"] = auto
        module("slime_plugins.megatron_bridge")
        for name in ("hf_weight_iterator_base", "hf_weight_iterator_bridge", "update_weight_from_tensor"):
            self.load(clone, TAGS[release], f"{at.replace('.', '/')}/{name}.py")
        self.tensor = sys.modules[f"{at}.update_weight_from_tensor"]

    def load(self, clone: Path, tag: str, path: str, only: str = "") -> None:
        name = path.removesuffix(".py").replace("/", ".")
        text = source(clone, tag, path).replace(".cuda()", f'.to("{DEVICE}")')
        made = module(name)
        made.__package__ = name.rpartition(".")[0]
        if only:
            start = text.index(f"def {only}")
            text = "from typing import *\nfrom collections.abc import *\nimport torch\n" + text[start:].split("\n\n\n# ")[0]
            text = re.split(r"\n\n\n(?!def _chunk_by_size)", text)[0] + "\n"
        exec(compile(text, name, "exec"), made.__dict__)

    # what stands for AutoBridge
    def get_conversion_tasks(self, model: list[Any]) -> list[Any]:
        """build_conversion_tasks: every parameter of all stages, by its number of layer, then by name; experts are those of the rank."""
        row, own = World.row, {}
        for name, param in model[0].named_parameters():
            own[without_module(name)] = param
        names: dict[str, tuple[str, int]] = {}
        each = row["layers"] // row["pipeline"]
        for stage, local in self.axes:
            names[moved(local, r"(layers\.)(\d+)", stage * each)] = (local, stage)
        if row["tied"]:
            names.pop("output_layer.weight", None)
        registry = self.bridge.registry(row)
        order = sorted(names, key=lambda n: (number_in(r"layers\.(\d+)", n), number_in(r"(?:bias|weight)(\d+)", n), n))
        tasks = []
        shift = (row["experts"] // row["expert"]) * WORLD.expert_rank() if row["experts"] else 0
        for name in order:
            local, stage = names[name]
            everywhere = moved(name, r"(weight)(\d+)$", shift) if ".experts." in name else name
            mapping = registry.megatron_to_hf_lookup(everywhere)
            inner = getattr(mapping, "_tp_mapping", mapping)
            if type(inner).__name__ == "AutoMapping":
                inner._detected_type = {0: "column", 1: "row", -1: "replicated"}[self.axes[(stage, local)]]
                inner._mapping = inner._get_or_create_mapping(inner._detected_type)
            for m in {id(x): x for x in (mapping, inner, getattr(inner, "_mapping", inner))}.values():
                m.pp_group, m.ep_group, m._tp_group, m._etp_group = "pp", "ep", "tp", "etp"
            here = local in own and stage == WORLD.stage()
            donor = types.SimpleNamespace(config=configuration(row)) if here else None
            tasks.append(Task(local, everywhere, mapping, donor, own[local] if here else None))
        return tasks

    def export_hf_weights(self, _model: Any, cpu: bool, conversion_tasks: Any) -> Any:
        """stream_weights_megatron_to_hf without adapters, and with the names of slime's own branch of Megatron-Bridge."""
        assert not cpu
        for task in conversion_tasks:
            megatron_weights = task.param_weight
            megatron_module = task.megatron_module
            converted_weights_dict = task.mapping.megatron_to_hf(megatron_weights, megatron_module)
            for hf_name, tensor in converted_weights_dict.items():
                yield hf_name, tensor, task.global_param_name

    def shared(self, row: Row, counted: list[int]) -> Any:
        args = arguments(row)
        chunk = Model(row, WORLD.stage(), "meta")
        host = {f"vp_stages.0.{without_module(n)}": p.detach() for n, p in Model(row, WORLD.stage(), "cpu").named}
        config = configuration(row)
        specs = {}
        for stage in range(row["pipeline"]):
            for name, param in Model(row, stage, "meta").named:
                specs[(stage, without_module(name))] = param
        self.axes = {key: param.partition_dim for key, param in specs.items()}
        mapping = self.bridge.mapping.MegatronParamMapping
        each_rank = row["experts"] // row["expert"]

        def object_from_stage(_self: Any, obj: Any, *asked: Any) -> Any:
            return obj if obj is not None else each_rank if "num_experts_per_rank" in asked else config

        def tensor_from_stage(self_: Any, tensor: Any, **_k: Any) -> Any:
            if row["pipeline"] == 1 or tensor is not None:
                return tensor
            name = self_.megatron_param
            each = row["layers"] // row["pipeline"]
            found = re.search(r"layers\.(\d+)\.", name)
            stage = int(found[1]) // each if found else (0 if "embedding" in name else row["pipeline"] - 1)
            local = re.sub(r"layers\.(\d+)\.", lambda m: f"layers.{int(m[1]) % each}.", name)
            if ".experts." in local:
                local = re.sub(r"weight(\d+)$", lambda m: f"weight{int(m[1]) % (row['experts'] // row['expert'])}", local)
            return torch.empty(specs[(stage, local)].shape, dtype=torch.bfloat16, device=DEVICE)

        mapping.broadcast_obj_from_pp_rank = object_from_stage
        mapping.broadcast_from_pp_rank = tensor_from_stage
        updater = self.tensor.UpdateWeightFromTensor(
            args, [chunk], weights_getter=lambda: host, model_name="", quantization_config=None
        )
        updater._ipc_engine, updater._ipc_gather_src, updater._ipc_gather_group = Anything(), WORLD.rank, "all"
        updater.rollout_engines, updater.use_distribute = [], False
        send = Bucket.get_flattened_tensor

        def sent(bucket: Bucket) -> torch.Tensor:
            counted[0] += 1
            return send(bucket)

        self.tensor.__dict__["FlattenedTensorBucket"] = type("Counted", (Bucket,), {"get_flattened_tensor": sent})
        return updater


def run(code: Any, row: Row) -> Row:
    World.row = row
    WORLD.rank = row["rank"]
    dist.broadcast = lambda *_a, **_k: Handle()
    counted = [0]
    updater = (code.shared if row["colocated"] else code.apart)(row, counted)
    gc.collect()
    storages = Counted()
    for held in [*getattr(updater, "model", []), *([updater.kept] if hasattr(updater, "kept") else [])]:
        for _, tensor in [*held.named, *held.buffers]:
            storages.own(tensor)
    gc.disable()
    with storages:
        updater.update_weights()
        peak = storages.highest
    gc.enable()
    return row | {"peak": peak, "left": storages.live, "buckets": counted[0]}


def rows() -> list[Row]:
    dense = [DENSE, DENSE | {"tensor": 2}, DENSE | {"tensor": 4, "groups": 4}, DENSE | {"tensor": 2, "tied": True},
             DENSE | {"tensor": 2, "bias": True, "buffer": 1 << 20}, DENSE | {"tensor": 2, "buffer": 64 << 20}, DENSE | {"groups": 1},
             DENSE | {"tensor": 2, "pipeline": 2}, DENSE | {"tensor": 2, "pipeline": 2, "tied": True},
             DENSE | {"tensor": 4, "groups": 8, "pipeline": 2, "vocab": 20000}]  # fmt: skip
    experts = [MOE, MOE | {"tensor": 2, "data": 2, "expert": 4}, MOE | {"tensor": 2, "expert": 1, "expert_tensor": 2},
               MOE | {"tensor": 2, "data": 2, "expert": 2, "expert_tensor": 2, "pipeline": 2},
               MOE | {"tensor": 1, "data": 4, "expert": 4, "pipeline": 2, "buffer": 2 << 20},
               MOE | {"tensor": 1, "data": 1, "expert": 1, "pipeline": 2}, MOE | {"data": 8, "expert": 8, "buffer": 16 << 20},
               LATENT | {"tensor": 2, "data": 2, "expert": 4},
               LATENT | {"tensor": 1, "data": 2, "expert": 2, "pipeline": 2, "buffer": 1 << 20},
               FUSED | {"tensor": 2, "data": 2, "expert": 4}, FUSED | {"expert": 1}]  # fmt: skip
    out = []
    for base in dense + experts:
        out.append(base | {"rank": 0})
        if base["expert"] > 1:
            out.append(base | {"rank": base["expert_tensor"] * (base["expert"] - 1)})
        if base["pipeline"] > 1:
            out.append(base | {"rank": base["tensor"] * base["data"], "stage": 1})
    for base in dense + experts:
        for sends in (True, False):
            for stage in range(base["pipeline"]):
                at = stage * base["tensor"] * base["data"]
                out.append(base | {"colocated": False, "sends": sends, "stage": stage, "rank": at})
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("relax", "bridge", "slime", "bridge_of_slime"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--output", type=Path, default=ROOT / "tests/data/executed_bridge_update.jsonl")
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    by = f"torch {torch.__version__.split('+')[0]}"
    stand_in()
    with options.output.open("w", encoding="utf-8") as file:

        def write(framework: str, release: str, code: Any, some: list[Row], source: str) -> None:
            for row in some:
                line = {"framework": framework, "release": release} | run(code, row) | {"source": f"{by}, {source}"}
                file.write(json.dumps(line, separators=(",", ":")) + "\n")
            print(framework, release)

        if options.only in ("", "slime"):
            some = [row for row in rows() if row["colocated"] and row["model"] != "glm45"]
            for release in ("0.2.0", "0.2.4", "0.3.0"):
                bridge = Bridge(options.bridge_of_slime)
                write("slime", release, Slime(options.slime, release, bridge), some, f"slime {release}, Megatron-Bridge 0.2.0")
        if options.only in ("", "relax"):
            bridge = Bridge(options.bridge)
            write("relax", "2026.08", Relax(options.relax, bridge), rows(), "Relax e38d4faa, Megatron-Bridge 2faedbf6")


if __name__ == "__main__":
    main()
