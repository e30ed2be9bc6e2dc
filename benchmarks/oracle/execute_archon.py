"""Makes tests/data/executed_archon.jsonl: steps of AReaL's Archon engine, its own models and plans, executed by PyTorch.

    python benchmarks/oracle/execute_archon.py AREAL TORCHAO [--output tests/data/executed_archon.jsonl]

AREAL is a clone of areal-project/AReaL with its history, TORCHAO a wheel of torchao 0.15.0: model code, parallelize_fn, activation checkpoints, Ulysses exchange and
the chunked log-probs are read from it at a release and run as they are, as rank 0 of PyTorch's fake process group, on fake CPU
tensors. Attention is Archon's own operator, by its fake implementation. torch.compile is left out of the log-probs, as AReaL leaves
it out on an NPU (head areal_eager). Two steps with AdamW; the second counts. Lines are those of execute.py.
"""

from __future__ import annotations

import argparse
import gc
import json
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from archon_code import archon_model, archon_modules, code_of, parallelize, unpack
from archon_fp8_code import torchao_modules
from execute import ROOT, Row
from row_lines import write_rows
from sharded import ResizedParts, follow_resizing, on_fake_tensors
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch.autograd.graph import saved_tensors_hooks
from torch.distributed._tools import fake_collectives  # noqa: F401  # registers the collectives of fake tensors
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.testing._internal.distributed.fake_pg import FakeStore
from tree_code import OPERATORS, Branch, tree_mask

aten = torch.ops.aten
RELEASE = "v1.0.4"
SIZES: Row = {"hidden_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 64}
SIZES |= {"intermediate_size": 1408, "rms_norm_eps": 1e-6, "max_position_embeddings": 8192}
EXPERTS: Row = {"num_experts": 16, "num_experts_per_tok": 4, "moe_intermediate_size": 256, "norm_topk_prob": True}
EXPERTS |= {"decoder_sparse_step": 1, "mlp_only_layers": []}
BROAD: Row = {
    "hidden_size": 2048,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 6144,
}
TIED = {"qwen2": True, "qwen3": False}

# family, tied, vocabulary, d, c, t, recomputation, tokens of a rank's micro-batch, reshard policy, role; micro-batches, what more
RUNS: list[tuple[Any, ...]] = [
    *((family, False, 2048, 2, 1, 1, mode, 4096, "default", "actor") for family in TIED for mode in ("none", "full", "op", "2")),
    *((family, True, 16384, 4, 1, 1, mode, 2048, "default", "actor") for family in TIED for mode in ("none", "op")),
    *(("qwen3", False, 16384, 2, 1, 1, "full", 4096, policy, "actor") for policy in ("always", "never")),
    *((family, False, 2048, 1, 1, 1, mode, 4096, "default", "actor") for family in TIED for mode in ("none", "op")),
    *((family, False, 2048, 2, 2, 1, mode, 4096, "default", "actor") for family in TIED for mode in ("none", "full", "op")),
    ("qwen2", False, 2048, 1, 8, 1, "op", 8192, "default", "actor"),
    *((family, False, 2048, 2, 1, 2, mode, 4096, "default", "actor") for family in TIED for mode in ("none", "full", "op")),
    *((family, False, 2048, 2, 2, 2, mode, 8192, "default", "actor") for family in TIED for mode in ("none", "op")),
    *((family, True, 16384, 2, 1, 2, "op", 4096, "default", "actor") for family in TIED),
    *(("qwen2", tied, 16384, 2, 1, 1, "op", 2048, "default", "actor", 2) for tied in (True, False)),
    ("qwen3", False, 16384, 2, 1, 4, "op", 8192, "default", "actor"),
    *(("qwen3_moe", False, 2048, 2, 1, 1, mode, 4096, "default", "actor") for mode in ("none", "full", "op")),
    *(("qwen3_moe", False, 2048, 2, 2, 1, mode, 4096, "default", "actor") for mode in ("none", "op")),
    *((family, False, 2048, 2, 1, 1, mode, 4096, "default", "critic") for family in TIED for mode in ("none", "op")),
    *(
        (family, False, 2048, 2, 1, 1, mode, 1024, "default", "actor", 1, "tree")
        for family in TIED
        for mode in ("none", "full", "op")
    ),
    *(("qwen3", True, 151936, 2, 1, 1, mode, 2048, "default", "actor", 1, "tree") for mode in ("none", "op")),
    ("qwen2", False, 151936, 2, 1, 1, "full", 2560, "default", "actor", 2, "tree"),
    *(
        (family, False, 2048, 2, 1, 1, mode, 4096, "default", "actor", 1, "fp8")
        for family in TIED
        for mode in ("none", "full", "op")
    ),
    *(("qwen3_moe", False, 2048, 2, 1, 1, mode, 4096, "default", "actor", 1, "fp8") for mode in ("none", "op")),
    ("qwen3", True, 16384, 2, 2, 1, "op", 4096, "default", "actor", 1, "fp8"),
    *((family, False, 2048, 2, 1, 1, "full", 1024, "default", "actor", 1, "broad") for family in TIED),
]


def config_of(run: tuple[Any, ...]) -> Row:
    family, tied, vocabulary = run[:3]
    config = {"model_type": family, **SIZES, "vocab_size": vocabulary, "tie_word_embeddings": tied}
    config |= EXPERTS if family == "qwen3_moe" else {}
    config |= {"head_dim": 128} if "wide" in run[11:] else {}
    config |= BROAD if "broad" in run[11:] else {}
    return config | {"attention_bias": family == "qwen2"}


def micro_batches_of(run: tuple[Any, ...]) -> int:
    return run[10] if len(run) > 10 else 1


def packs_trees(run: tuple[Any, ...]) -> bool:
    return "tree" in run[11:]


def in_8_bits(run: tuple[Any, ...]) -> bool:
    return "fp8" in run[11:]


def compiles(run: tuple[Any, ...]) -> bool:
    return "compile" in run[11:]


def checkpoints_of(mode: str) -> Row | None:
    if mode == "none":
        return None
    return {"mode": "full"} if mode == "full" else {"mode": "selective", "selective_ac_option": mode}


def local(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


class Lives(ResizedParts):
    """What runs otherwise on CUDA: a row of booleans that picks where a number is put is no index, but masked_fill_."""

    @classmethod
    def is_infra_mode(cls) -> bool:
        """Dynamo leaves everything alone under any other mode."""
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in OPERATORS:  # all of what they do is seen
            with self:
                return OPERATORS[func](*args, **(kwargs or {}))
        puts = func in (aten.index_put_.default, aten._index_put_impl_.default)
        if puts and any(i is not None and i.dtype == torch.bool for i in args[1]):
            return args[0]
        if func is aten.histc.default:  # of integers on CUDA alone
            func, args, kwargs = aten.new_empty.default, (args[0], [EXPERTS["num_experts"]]), {}
        return super().__torch_dispatch__(func, types, args, kwargs)


class Engine:
    """What of ArchonEngine and its SequentialRunner decides about memory (archon_engine.py, archon_runner.py)."""

    def __init__(self, run: tuple[Any, ...], fake: FakeTensorMode) -> None:
        self.critic, self.tokens, self.trees = run[9] == "critic", run[7], packs_trees(run)
        _family, _tied, _vocabulary, d, c, t, mode, _tokens, reshard, _role = run[:10]
        dims = code_of("areal.experimental.models.archon.parallel_dims").ArchonParallelDims
        self.dims = dims(dp_shard=d, cp=c, tp=t, world_size=d * c * t, device_type="cpu")
        self.losses = code_of("areal.utils.functional.vocab_parallel")
        self.tree_losses = code_of("areal.models.tree_attn.functional") if self.trees else None
        self.exchange = code_of("areal.experimental.models.archon.ulysses")
        self.dims.build_mesh()
        self.tensor_group = self.dims.get_group("tp") if t > 1 else None
        self.context = self.dims.cp_enabled
        self.model = archon_model(config_of(run), self.critic, "tree" if self.trees else "varlen")
        if in_8_bits(run):
            code_of("areal.experimental.models.archon.fp8").enable_fp8_linear(self.model)
        with fake:
            on_fake_tensors(self.model)
            parallelize(self.model, config_of(run), self.dims, checkpoints_of(mode), reshard, compiles(run))
            self.model.init_buffers(buffer_device="cpu")

    def micro_batch(self) -> Row:
        ids, positions = (torch.empty(1, self.tokens, dtype=torch.int64) for _ in range(2))
        labels = ids if self.trees else torch.roll(ids, shifts=-1, dims=-1)
        lengths = torch.empty(2, dtype=torch.int32)
        inputs: Row = {"input_ids": ids, "position_ids": positions, "cu_seqlens": lengths}
        if self.context:
            inputs, labels = self.exchange.ulysses_slice_inputs(inputs, labels, 0, self.dims.cp)
        return inputs | {"labels": labels if self.trees else labels.squeeze(0)}

    def forward(self, given: Row) -> Any:
        ids, positions, lengths = (given[key] for key in ("input_ids", "position_ids", "cu_seqlens"))
        meta = tree_mask(self.tokens) if self.trees else None
        logits = self.model(ids, positions, cu_seqlens=lengths, max_seqlen=self.tokens, tree_attn_meta=meta)
        return logits.squeeze(0)

    def loss(self, logits: Any, labels: torch.Tensor) -> torch.Tensor:
        if self.critic:
            return logits.squeeze(-1).mean()
        if self.trees:
            log_probs, _entropy = self.tree_losses.gather_packed_tree_logprobs_entropy(logits, Branch(self.tokens), labels)
            return log_probs.mean()
        log_probs, _entropy = self.losses.gather_logprobs_entropy(logits, labels, tp_group=self.tensor_group)
        return log_probs.mean()

    def log_probs(self, logits: Any, labels: torch.Tensor) -> torch.Tensor:
        if self.critic:
            return logits.squeeze(-1)
        if self.trees:
            return self.tree_losses._gather_packed_tree_logprobs(logits, Branch(self.tokens), labels)
        return self.losses.gather_logprobs(logits, labels, tp_group=self.tensor_group)


def run_once(engine: Engine) -> None:
    """What is compiled is compiled before anything is looked at."""
    given = engine.micro_batch()
    with torch.no_grad():
        engine.forward(given)
    engine.loss(engine.forward(given), given["labels"]).backward()
    engine.model.zero_grad()


def meshes_are_real() -> None:
    """Numbers of ranks are read, so their tensors are no fake ones."""
    plain = DeviceMesh._concatenate

    def concatenate(meshes: Any) -> Any:
        with unset_fake_temporarily():
            return plain(meshes)

    DeviceMesh._concatenate = staticmethod(concatenate)


def watch_layer(model: Any, lives: ResizedParts, saved: dict[int, Row]) -> Any:
    def enter(*_: Any) -> None:
        lives.in_layer = True

    def leave(*_: Any) -> None:
        lives.in_layer = False

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        made = lives.known.get(local(tensor).untyped_storage()._cdata, ({}, 0))[0]
        if made.get("in_layer"):
            saved[id(made)] = made
        return tensor

    middle = list(model.layers.values())[2]
    middle.register_forward_pre_hook(enter)
    middle.register_forward_hook(leave)
    return saved_tensors_hooks(pack, lambda tensor: tensor)


def execute(run: tuple[Any, ...]) -> tuple[Row, list[list[Any]]]:
    fake, lives = FakeTensorMode(allow_non_fake_inputs=True), Lives()
    lives.pause_propagation()
    saved: dict[int, Row] = {}
    peaks: Row = {}
    engine = Engine(run, fake)
    with fake:
        if compiles(run):
            run_once(engine)
        hooks = watch_layer(engine.model, lives, saved)
        optimizer = torch.optim.AdamW(engine.model.parameters(), lr=1e-3, foreach=False, fused=True)
        gc.collect()
        gc.disable()
        tensors = [*engine.model.parameters(), *engine.model.buffers()]
        resident = sum(lives.own(local(t)) for t in tensors)
        held = [local(t).untyped_storage() for t in tensors]
        del tensors
        ResizedParts.now = lives
        with lives:
            with torch.no_grad():
                given = engine.micro_batch()
                logits = engine.forward(given)
                engine.log_probs(logits, given["labels"])
                peaks["log_probs"] = resident + lives.highest
                del logits, given
            for _ in range(2):
                optimizer.zero_grad()
                peaks |= {"forward": 0, "backward": 0}
                for _micro_batch in range(micro_batches_of(run)):
                    given = engine.micro_batch()
                    lives.highest = lives.live
                    logits = engine.forward(given)
                    loss = engine.loss(logits, given["labels"])
                    peaks["forward"] = max(peaks["forward"], resident + lives.highest)
                    lives.highest = lives.live
                    loss.backward()
                    peaks["backward"] = max(peaks["backward"], resident + lives.highest)
                del loss, given, logits
                optimizer.step()
            if not compiles(run):  # hooks are another program
                with hooks:  # which make cycles of what a node saves of its own results
                    logits = engine.forward(engine.micro_batch())
                del logits
        ResizedParts.now = None
        gc.enable()
    del held
    counted = Counter(json.dumps([made["dtype"].replace("uint", "int"), made["shape"]]) for made in saved.values())
    return peaks, [[*json.loads(key), count] for key, count in sorted(counted.items())]


def job_of(run: tuple[Any, ...], forward_only: bool, release: str = RELEASE) -> Row:
    _family, _tied, _vocabulary, d, c, t, mode, tokens, reshard, role = run[:10]
    trainer: Row = {
        "engine": "archon",
        "kernels": "archon",
        "layout": f"d{d}c{c}t{t}",
        "precision": {"storage": "bf16", "compute": "bf16", "reduce": "fp32"},
        "recompute": {"op": "selective", "2": "full"}.get(mode, mode),
        "optimizer": "adamw",
        "optimizer_form": "fused",
        "head": "value" if role == "critic" else "areal_eager",
        "tokens_per_micro_batch": tokens,
        "wrap_embedding": True,
        "wrap_head": True,
        "wrap_norm": True,
        "reshard_after_forward": reshard != "never",
        "reshard_last": reshard == "always",
        "kernel_internals": False,
    }
    if mode == "2":
        trainer["recompute_every"] = 2
    if packs_trees(run):
        trainer["tree_training"] = True
    if in_8_bits(run):
        trainer["float8"] = "blockwise"
    if compiles(run):
        trainer["compile"] = True
    if micro_batches_of(run) > 1:
        trainer["micro_batches"] = micro_batches_of(run)
    return {"framework": f"areal {release.removeprefix('v')}", "trainer": trainer, "apart": {"forward_only": forward_only}}


def rows_of(run: tuple[Any, ...], config: str, peaks: Row, saved: list[list[Any]], release: str = RELEASE) -> list[Row]:
    name = "archon/" + "/".join(map(str, run))
    source = f"torch {torch.__version__.split('+')[0]}, AReaL {release} executed on fake tensors"
    step = {"id": name, "config": config, "job": job_of(run, False, release), "source": source}
    step["peaks"] = {phase: peaks[phase] for phase in ("forward", "backward")}
    if run[6] == "none" and not compiles(run):
        step |= {"layer": 2, "saved": saved}
    alone = {"id": name + "/log_probs", "config": config, "job": job_of(run, True, release), "source": source}
    return [step, alone | {"peaks": {"forward": peaks["log_probs"]}}]


def add_run(run: tuple[Any, ...], lines: list[Row], release: str) -> None:
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=run[3] * run[4] * run[5])
    peaks, saved = execute(run)
    dist.destroy_process_group()
    name = " ".join([run[0], str(run[2]), *(["tied"] if run[1] else []), *(tag for tag in ("wide", "broad") if tag in run[11:])])
    config = {"config": name, "fields": config_of(run)}
    if config not in lines:
        lines.append(config)
    lines += rows_of(run, name, peaks, saved, release)
    print("/".join(map(str, run)), peaks, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("areal", type=Path)
    parser.add_argument("torchao", type=Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--output", type=Path, default=ROOT / "tests" / "data" / "executed_archon.jsonl")
    options = parser.parse_args()
    follow_resizing()
    meshes_are_real()
    lines: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        archon_modules(unpack(options.areal, RELEASE, Path(folder)))
        torchao_modules(options.torchao)
        for run in RUNS:
            if options.only in "/".join(map(str, run)):
                add_run(run, lines, RELEASE)
    write_rows(options.output, lines)


if __name__ == "__main__":
    main()
