"""Makes tests/data/executed_slime_actor.jsonl: whole passes of slime's actor on the Megatron that slime installs, executed.

    python benchmarks/oracle/execute_slime_actor.py --core MEGATRON --te TRANSFORMER_ENGINE --slime SLIME [--older SLIME]
        [--output tests/data/executed_slime_actor.jsonl] [--only N...]

MEGATRON is commit 1dcf0dafa (0.16.0rc0) of NVIDIA/Megatron-LM with SLIME's docker/patch/latest/megatron.patch applied, SLIME the work
tree of THUDM/slime 624b824a, the older one that of 0.2.4, whose loss works sample by sample as Relax's does. Transformer Engine 2.17.1
is needed as Python alone; no GPU. Megatron's own parser makes the arguments of a command line; slime's _set_default_megatron_args,
_get_model_provider_func, forward_only, train_one_step, get_batch, get_log_probs_and_entropy and loss_function run as they are, in
Megatron's own schedule, as one rank of PyTorch's fake process group. The optimizer does nothing: its level is another row's.

Stood in for is what megatron_te.py says, and attention as in execute_megatron_vision.py. Every gradient goes as soon as it has been
added up. A line: the settings, parameters of the rank, and `peaks` above what lives between two micro-batches: `log_probs` of a pass
without gradients, `forward` and `backward` of the last of two micro-batches of training.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import inspect
import json
import os
import sys
import types
import warnings
from pathlib import Path
from typing import Any

import execute_megatron_vision as vision
import megatron_te
import torch
import torch.distributed as dist
from execute import ROOT, Row
from execute_megatron_local import Resized
from torch.testing._internal.distributed.fake_pg import FakeStore

BASE: Row = {
    "layers": 4,
    "hidden": 256,
    "heads": 8,
    "groups": 4,
    "ffn": 512,
    "vocab": 512,
    "qk_norm": True,
    "tied": False,
    "experts": 0,
    "top": 2,
    "expert_ffn": 96,
    "shared_ffn": 0,
    "latent": False,
    "lengths": [[40, 100], [30, 90]],  # prompt and all of each sequence of a micro-batch
    "tensor": 1,
    "expert": 1,
    "recompute": "none",
    "flags": {},  # slime's own
    "release": "0.4.0",
}
SPLIT: Row = {"tensor": 2}
# a role of Relax with weights alone, of which it turns sequence parallelism off behind Megatron's checks: log-probs only
WEIGHTS: Row = {"weights_only": True}
UNIFORM: Row = {"recompute": "full"}
SELECTIVE: Row = {"recompute": "selective"}
LARGE: Row = {"vocab": 8192}  # the loss has the highest levels
LONG: Row = {"lengths": [[100, 700], [50, 300]]}
ONE: Row = {"lengths": [[60, 250]]}
FIVE: Row = {"lengths": [[10, 60], [20, 90], [10, 50], [5, 45], [2, 10]]}
ROUTED: Row = {"experts": 8, "vocab": 512}
LATENT: Row = {"latent": True, "experts": 8, "shared_ffn": 192, "groups": 8, "qk_norm": True}
# every row is one of a response: what the loss copies, it copies of all
OLDER: Row = {"release": "0.2.4", "lengths": [[1, 128], [1, 128]]}
OLDER_ONE: Row = {"lengths": [[1, 256]]}
OLDER_FOUR: Row = {"lengths": [[1, 64]] * 4}
WARM: Row = {"flags": {"rollout_temperature": 0.8}}
ENTROPY: Row = {"flags": {"entropy_coef": 0.01}}
CHUNKS: Row = {"flags": {"log_probs_chunk_size": 64}}
AGAIN: Row = {"flags": {"recompute_loss_function": True}}
BOTH: Row = {"flags": {"recompute_loss_function": True, "log_probs_chunk_size": 64}}
SUPERVISED: Row = {"flags": {"loss_type": "sft_loss"}}
PER_TOKEN: Row = {"flags": {"calculate_per_token_loss": True}}
RUNS: list[Row] = [
    *(kind | run for kind in ({}, SPLIT, UNIFORM, SPLIT | UNIFORM) for run in ({}, LARGE, LONG, ONE, FIVE)),
    {"tied": True},
    LARGE | {"tied": True} | UNIFORM,
    {"qk_norm": False},
    SELECTIVE,
    SPLIT | SELECTIVE | LARGE,
    *(
        LARGE | kind | run
        for kind in ({}, SPLIT | UNIFORM)
        for run in (WARM, ENTROPY, CHUNKS, AGAIN, BOTH, SUPERVISED, PER_TOKEN)
    ),
    *(
        ROUTED | run
        for run in ({}, SPLIT, UNIFORM, SPLIT | UNIFORM, {"expert": 2}, {"expert": 2} | UNIFORM, LARGE, LARGE | UNIFORM)
    ),
    *(LATENT | run for run in ({}, SPLIT, UNIFORM, SPLIT | UNIFORM, {"expert": 2} | UNIFORM, LARGE)),
    *(
        OLDER | run
        for run in ({}, LARGE, LARGE | UNIFORM, LARGE | OLDER_ONE, LARGE | OLDER_FOUR | UNIFORM, LARGE | SPLIT | UNIFORM)
    ),
    *(OLDER | LARGE | UNIFORM | run for run in (WARM, ENTROPY, CHUNKS, AGAIN, SUPERVISED, PER_TOKEN)),
    OLDER | ROUTED | LARGE | UNIFORM,
    *(ROUTED | SPLIT | {"expert": 2} | WEIGHTS | run for run in ({}, LARGE, LONG)),
    ROUTED | SPLIT | WEIGHTS,
]


class Anything(types.ModuleType):
    """A module of which nothing is called here."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *_a, **_k: None


def stand_ins(*names: str) -> None:
    for name in names:
        sys.modules[name] = Anything(name)
        parent, _, last = name.rpartition(".")
        if parent in sys.modules:
            setattr(sys.modules[parent], last, sys.modules[name])


def by_position(function: Any = None, **_: Any) -> Any:
    """torch.compile of slime's functions, which are called with names."""
    if function is None:
        return by_position
    kernel, signature = megatron_te.fused(function), inspect.signature(function)

    def called(*args: Any, **named: Any) -> Any:
        bound = signature.bind(*args, **named)
        bound.apply_defaults()
        return kernel(*bound.arguments.values())

    return called


def prepare(core: Path, te: Path) -> None:
    sys.path.insert(0, str(core))
    megatron_te.DotProductAttention = vision.DotProductAttention  # type: ignore[assignment,misc]
    megatron_te.stand_in(te)
    torch.cuda.get_device_capability = lambda *_: (9, 0)  # type: ignore[assignment]
    stand_ins("flask", "flask_restful", "wandb", "six", "nltk", "sentencepiece", "tiktoken", "ray", "httpx", "sglang_router")


def install(slime: Path) -> None:
    """The modules of one release, in place of another's."""
    for name in [n for n in sys.modules if n == "slime" or n.startswith("slime.")]:
        del sys.modules[name]
    for name in ("slime", "slime.utils", "slime.observability", "slime.backends", "slime.backends.megatron_utils"):
        vision.without_init(name, slime)
        parent, _, last = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], last, sys.modules[name])
    stand_ins(
        "slime.utils.accelerator",
        "slime.utils.http_utils",
        "slime.utils.memory_utils",
        "slime.utils.tracking_utils",
        "slime.utils.wandb_utils",
        "slime.observability.logging_utils",
        "slime.observability.train_metric_utils",
        "slime.backends.megatron_utils.checkpoint",
        "slime.backends.megatron_utils.stateless_adam",
    )
    accelerator = sys.modules["slime.utils.accelerator"]
    accelerator.device = accelerator.current_device = lambda: "cpu"  # type: ignore[attr-defined]


def command(run: Row) -> list[str]:
    """Megatron's flags as scripts have them."""
    words: Row = {
        "num-layers": run["layers"],
        "hidden-size": run["hidden"],
        "ffn-hidden-size": run["ffn"],
        "num-attention-heads": run["heads"],
        "vocab-size": run["vocab"],
        "make-vocab-size-divisible-by": 1,
        "normalization": "RMSNorm",
        "tensor-model-parallel-size": run["tensor"],
        "expert-model-parallel-size": run["expert"],
        "attention-backend": "flash",
        "attention-dropout": 0.0,
        "hidden-dropout": 0.0,
        "micro-batch-size": 1,
        "global-batch-size": 2 * run["expert"],
        "transformer-impl": "transformer_engine",
        "position-embedding-type": "rope",
        "lr": 1e-6,
        "seq-length": 4096,
        "max-position-embeddings": 4096,
        "train-iters": 10,
        "tokenizer-type": "NullTokenizer",
    }
    on = ["use-rotary-position-embeddings", "disable-bias-linear", "swiglu", "no-gradient-accumulation-fusion"][:3]
    on += ["accumulate-allreduce-grads-in-fp32", "attention-softmax-in-fp32", "no-create-attention-mask-in-dataloader"][:2]
    if not run["tied"]:
        on.append("untie-embeddings-and-output-weights")
    if run["qk_norm"]:
        on.append("qk-layernorm")
    if run["tensor"] > 1:
        on.append("sequence-parallel")
    if run["latent"]:
        on += ["multi-latent-attention", "no-rope-fusion"]
        words |= {"q-lora-rank": 96, "kv-lora-rank": 64, "qk-head-dim": 32, "qk-pos-emb-head-dim": 16, "v-head-dim": 32}
        words |= {"kv-channels": 32}
    else:
        on.append("group-query-attention")
        words |= {"num-query-groups": run["groups"], "kv-channels": run["hidden"] // run["heads"]}
    if run["recompute"] == "full":
        words |= {"recompute-granularity": "full", "recompute-method": "uniform", "recompute-num-layers": 1}
    if run["recompute"] == "selective":
        words |= {"recompute-granularity": "selective"}
    if run["experts"]:
        words |= {"num-experts": run["experts"], "moe-router-topk": run["top"], "moe-ffn-hidden-size": run["expert_ffn"]}
        words |= {"moe-token-dispatcher-type": "alltoall", "moe-router-load-balancing-type": "none", "moe-aux-loss-coeff": 0}
        words |= {"expert-tensor-parallel-size": 1 if run["expert"] > 1 else run["tensor"]}
        on += ["moe-grouped-gemm", "moe-permute-fusion"][:1]
    if run["shared_ffn"]:
        words |= {"moe-shared-expert-intermediate-size": run["shared_ffn"], "moe-router-score-function": "sigmoid"}
        words |= {"moe-router-dtype": "fp32"}
        on += ["moe-router-enable-expert-bias"]
        words |= {"moe-layer-freq": f"[0]*1+[1]*{run['layers'] - 1}"}
    for name, _value in run["flags"].items():
        if name == "calculate_per_token_loss":
            on.append("calculate-per-token-loss")
    return [*(word for name, value in words.items() for word in (f"--{name}", str(value))), *(f"--{name}" for name in on)]


def own_defaults(release: str) -> Row:
    table = json.loads((ROOT / "models/frameworks/slime.json").read_text(encoding="utf-8"))
    number = {name: i for i, name in enumerate(table["releases"])}
    return {
        row["dest"]: row.get("default")
        for row in table["flags"]
        if number[row["first"]] <= number[release] <= number[row["last"]]
    }


def arguments_of(run: Row, ranks: int) -> Any:
    from megatron.training import arguments

    os.environ |= {"RANK": "0", "WORLD_SIZE": str(ranks), "LOCAL_RANK": "0", "CUDA_DEVICE_MAX_CONNECTIONS": "1"}
    outer, sys.argv = sys.argv, ["train.py", *command(run)]
    try:
        args = arguments.parse_args(ignore_unknown_args=True)
    finally:
        sys.argv = outer
    args.bf16, args.use_distributed_optimizer = True, True  # _set_default_megatron_args
    args.padded_vocab_size = args.vocab_size
    arguments.validate_args(args)
    args.variable_seq_lengths, args.moe_token_dispatcher_type = True, "alltoall"  # validate_args
    if run.get("weights_only"):
        args.sequence_parallel = False
    for name, value in own_defaults(run["release"]).items():
        if not hasattr(args, name):
            setattr(args, name, value)
    for name in ("allgather_cp", "use_rollout_logprobs", "qkv_format", "only_train_params_name_list", "rollout_top_p"):
        if not hasattr(args, name):
            setattr(args, name, {"qkv_format": "thd", "rollout_top_p": 1.0}.get(name, False))
    for name, value in run["flags"].items():
        setattr(args, name, value)
    args.use_dynamic_batch_size = True
    args.eps_clip_high = args.eps_clip  # slime_validate_args
    args.loss_type = run["flags"].get("loss_type", "policy_loss")
    return args


def rollout_of(run: Row) -> Row:
    """Two micro-batches of the same sequences."""
    out: Row = {name: [] for name in ("tokens", "loss_masks", "total_lengths", "response_lengths", "log_probs", "advantages")}
    for prompt, length in [*run["lengths"], *run["lengths"]]:
        out["tokens"].append(torch.zeros(length, dtype=torch.int64))
        out["loss_masks"].append(torch.ones(length - prompt, dtype=torch.int32))
        out["total_lengths"].append(length)
        out["response_lengths"].append(length - prompt)
        for name in ("log_probs", "advantages"):
            out[name].append(torch.zeros(length - prompt, dtype=torch.float32))
    out["rollout_mask_sums"] = [mask.sum() for mask in out["loss_masks"]]
    count = len(run["lengths"])
    out["micro_batch_indices"] = [list(range(count)), list(range(count, 2 * count))]
    return out


class Optimizer:
    def zero_grad(self) -> None: ...

    def prepare_grads(self) -> bool:
        return False

    def get_grad_norm(self) -> float:
        return 0.0

    def step(self, **_: Any) -> Any:
        return True, 0.0, 0


class Levels:
    """Highest levels of the second micro-batch above those in front of it, by kind of pass."""

    def __init__(self, storages: Resized) -> None:
        self.storages, self.passes = storages, []  # type: ignore[var-annotated]

    def around(self, kind: str, function: Any) -> Any:
        def run(*args: Any, **named: Any) -> Any:
            storages = self.storages
            gc.collect()
            before = storages.live
            storages.highest = before
            out = function(*args, **named)
            self.passes.append((kind, before, storages.highest))
            return out

        return run


def peaks_of(passes: Any) -> Row:
    """A forward pass and the backward pass behind it stand on what was there before the first of them."""
    last = {kind: (before, highest) for kind, before, highest in passes}
    floor = last["forward"][0]
    return {kind: highest - floor for kind, (_, highest) in last.items()}


def execute(run: Row, slime: Path) -> Row:
    install(slime)
    from megatron.core import parallel_state
    from megatron.core.pipeline_parallel import schedules
    from megatron.core.transformer.module import Float16Module

    ranks = max(run["tensor"], run["expert"])
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=ranks)
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=run["tensor"],
        expert_model_parallel_size=run["expert"],
        expert_tensor_parallel_size=1 if run["expert"] > 1 else None,
        create_gloo_process_groups=False,
    )
    parallel_state.get_global_memory_buffer().buffer.clear()
    forward_step, backward_step = schedules.forward_step, schedules.backward_step
    try:
        args = arguments_of(run, ranks)
        outer, torch.compile = torch.compile, by_position
        from slime.backends.megatron_utils import data, loss, model, model_provider

        torch.compile = outer
        from megatron.training.arguments import core_transformer_config_from_args

        megatron_te.Router.top = run["top"]
        config = core_transformer_config_from_args(args)
        config.perform_initialization = False
        model_provider.core_transformer_config_from_args = lambda _args: config
        made = provider_of(model_provider)(args)(True, True)
        whole = Float16Module(config, made)
        for module in whole.modules():
            if hasattr(module, "_maintain_float32_expert_bias"):
                module._maintain_float32_expert_bias()
        for parameter in whole.parameters():
            parameter.main_grad = torch.empty(parameter.shape, dtype=torch.float32)
            parameter.grad_added_to_main_grad = False
            parameter.register_post_accumulate_grad_hook(lambda p: setattr(p, "grad", None))
        whole.zero_grad_buffer = lambda: None
        whole.train()
        storages = Resized()
        for tensor in [*whole.parameters(), *whole.buffers()]:
            storages.own(tensor)
        model.get_args = lambda: args
        model.tqdm = lambda **_: types.SimpleNamespace(close=lambda: None, update=lambda _n: None)
        rollout = rollout_of(run)
        gc.collect()
        megatron_te.Clock.now = storages

        def once() -> Row:
            levels = Levels(storages)
            older = "micro_batch_size" in inspect.signature(data.DataIterator).parameters
            iterator = data.DataIterator(rollout, *[None] * older, rollout["micro_batch_indices"])
            schedules.forward_step = levels.around("forward", forward_step)
            model.forward_only(loss.get_log_probs_and_entropy, args, [whole], [iterator], [2])
            gc.collect()
            out = {"log_probs": peaks_of(levels.passes)["forward"]}
            if run.get("weights_only"):
                return out
            levels = Levels(storages)
            schedules.forward_step = levels.around("forward", forward_step)
            schedules.backward_step = levels.around("backward", backward_step)
            iterator.reset()
            step = (args, 0, 0, [iterator], [whole], Optimizer(), types.SimpleNamespace(step=lambda **_: None), 2)
            model.train_one_step(*step, *[2] * (not older))
            gc.collect()
            return out | peaks_of(levels.passes)

        with storages:
            for _ in range(2):  # what they make and leave is there from now on
                once()
            live = storages.live
            second, third = once(), once()
        assert storages.live == live and second == third, (run, second, third, storages.live - live)
        return {"run": run, "parameters": sum(p.numel() for p in whole.parameters()), "peaks": second}
    finally:
        schedules.forward_step, schedules.backward_step = forward_step, backward_step
        megatron_te.Clock.now = None
        parallel_state.destroy_model_parallel()
        dist.destroy_process_group()
        sys.modules["transformer_engine.pytorch.module.base"]._dummy_wgrads.clear()
        gc.collect()


def provider_of(module: Any) -> Any:
    return getattr(module, "_get_model_provider_func", None) or module.get_model_provider_func


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("core", "te", "slime"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--older", type=Path)
    parser.add_argument("--output", type=Path, default=ROOT / "tests/data/executed_slime_actor.jsonl")
    parser.add_argument("--only", type=int, nargs="+", help="numbers of runs, told and not written")
    given = parser.parse_args()
    warnings.filterwarnings("ignore")
    prepare(given.core, given.te)
    trees = {"0.4.0": given.slime, "0.2.4": given.older}

    def line(changes: Row) -> str:
        run = {**BASE, **changes}
        with contextlib.redirect_stdout(sys.stderr):
            row = execute(run, trees[run["release"]])
        return json.dumps(row, separators=(",", ":"))

    if given.only:
        for number in given.only:
            print(line(RUNS[number]))
        return
    with given.output.open("w", encoding="utf-8") as out:
        for changes in RUNS:
            print(line(changes), file=out, flush=True)


if __name__ == "__main__":
    main()
