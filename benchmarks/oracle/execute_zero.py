"""Makes tests/data/executed_zero.jsonl: training steps under DeepSpeed's ZeRO, executed by DeepSpeed itself.

    python benchmarks/oracle/execute_zero.py [--output tests/data/executed_zero.jsonl]

Needs torch, transformers and deepspeed; no GPU. Rank 0 of eight on PyTorch's fake process group, a small Llama in bf16 on the CPU,
SGD. The third step is judged: the coordinator of stage 3 then has its trace. Attention is a node that saves and makes what
flash-attention does. A dispatch mode follows the life of every storage; what lives when the engine has been made is counted by
looking for tensors. Every run has a process of its own, because DeepSpeed keeps its groups. Lines are those of execute.py.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import subprocess
import sys
import weakref
from pathlib import Path
from typing import Any

from row_lines import write_rows

ROOT = Path(__file__).resolve().parents[2]
Row = dict[str, Any]
RANKS = 8
LLAMA: Row = {
    "model_type": "llama",
    "hidden_size": 512,
    "intermediate_size": 1024,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": 4096,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
}
# Few words and few tokens: a layer's backward pass is the highest point, and in it the weights. With biases beside its matrices.
FEW_WORDS: Row = LLAMA | {"model_type": "qwen2", "num_hidden_layers": 6, "vocab_size": 128}
FEW_EXPERTS: Row = FEW_WORDS | {"hidden_size": 256, "num_hidden_layers": 4, "num_experts_per_tok": 2}
CONFIGS = {
    "llama": LLAMA,
    "qwen2_few_words": FEW_WORDS,
    "llama_few_words": LLAMA | {"vocab_size": 128, "intermediate_size": 1408},
    "qwen3_moe": FEW_EXPERTS | {"model_type": "qwen3_moe", "num_experts": 8, "moe_intermediate_size": 512, "head_dim": 32},
    "mixtral": FEW_EXPERTS | {"model_type": "mixtral", "num_local_experts": 8, "intermediate_size": 512},
}
# One layer without experts where the family has such, shared experts where it has such.
ROUTED: Row = {
    "n_routed_experts": 8,
    "moe_intermediate_size": 512,
    "first_k_dense_replace": 1,
    "n_shared_experts": 1,
    "n_group": 1,
    "topk_group": 1,
}
LATENT: Row = {
    "num_key_value_heads": 8,
    "q_lora_rank": 96,
    "kv_lora_rank": 64,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 16,
    "v_head_dim": 48,
}
MORE_EXPERTS: dict[str, Row] = {
    "olmoe": {"num_experts": 8, "intermediate_size": 512},
    "granitemoe": {"num_local_experts": 8, "intermediate_size": 512},
    "glm4_moe": {**ROUTED, "head_dim": 32, "use_qk_norm": True, "partial_rotary_factor": 0.5},
    "deepseek_v3": {**ROUTED, **LATENT},
    "minimax_m2": {"head_dim": 32, "num_local_experts": 8, "intermediate_size": 512, "rotary_dim": 16, "use_qk_norm": True},
    "ernie4_5_moe": {"moe_num_experts": 8, "moe_k": 2, "moe_intermediate_size": 512, "moe_num_shared_experts": 1, "head_dim": 32},
}
CONFIGS |= {name: FEW_EXPERTS | {"model_type": name} | fields for name, fields in MORE_EXPERTS.items()}
TOKENS = {
    "llama": 512,
    "qwen2_few_words": 64,
    "llama_few_words": 32,
    **dict.fromkeys(["qwen3_moe", "mixtral", *MORE_EXPERTS], 64),
}
# Small enough that a model of 13.6 million parameters is gathered, kept and released as a large one.
SMALL: Row = {
    "reduce_bucket": 2_500_000,
    "prefetch_bucket": 300_000,
    "max_live": 1_500_000,
    "max_reuse_distance": 1_000_000,
    "persistence_threshold": 1_000,
    "sub_group": 500_000,
}
SPELLINGS = {
    "stage": "stage",
    "overlap_comm": "overlap_comm",
    "reduce_bucket": "reduce_bucket_size",
    "prefetch_bucket": "stage3_prefetch_bucket_size",
    "max_live": "stage3_max_live_parameters",
    "max_reuse_distance": "stage3_max_reuse_distance",
    "persistence_threshold": "stage3_param_persistence_threshold",
    "sub_group": "sub_group_size",
}
# Each weight is gathered where it is used, and released behind it.
EAGER = {"prefetch_bucket": 0, "max_reuse_distance": 0}
RANK = 16  # of adapters
FEW = ["q_proj", "v_proj"]
# checkpointing, settings of zero, micro-batches; of adapters their targets, and the implementation of experts
OF_LLAMA: list[tuple[str, Row, int]] = [
    ("none", {"stage": 3, **SMALL}, 1),
    ("reentrant", {"stage": 3, **SMALL}, 1),
    ("nonreentrant", {"stage": 3, **SMALL}, 1),
    ("none", {"stage": 3, **SMALL, **EAGER}, 1),
    ("none", {"stage": 2, "reduce_bucket": 2_500_000}, 1),
    ("none", {"stage": 2, "reduce_bucket": 2_500_000, "overlap_comm": True}, 1),
    ("none", {"stage": 1, "reduce_bucket": 2_500_000}, 1),
    *[("none", {"stage": 1, "reduce_bucket": 2_500_000, "overlap_comm": True}, n) for n in (1, 2, 3)],
    ("none", {"stage": 1, "reduce_bucket": 300_000, "overlap_comm": True}, 3),
    ("nonreentrant", {"stage": 1, "reduce_bucket": 2_500_000, "overlap_comm": True}, 2),
    *[("none", {"stage": 1, "reduce_bucket": 2_500_000}, n) for n in (2, 3)],
    *[("none", {"stage": 2, "reduce_bucket": 2_500_000}, n) for n in (2, 3)],
    ("none", {"stage": 2, "reduce_bucket": 2_500_000, "overlap_comm": True}, 3),
    ("nonreentrant", {"stage": 2, "reduce_bucket": 300_000}, 2),
    *[(mode, {"stage": 3, **SMALL}, n) for mode, n in (("none", 2), ("none", 3), ("nonreentrant", 3), ("reentrant", 2))],
]
OF_FEW_WORDS: list[tuple[str, Row, int]] = [
    *[(mode, {"stage": 3, **SMALL, **EAGER}, 1) for mode in ("none", "reentrant", "nonreentrant")],
    *[("nonreentrant", {"stage": 3, **SMALL, "max_reuse_distance": most}, n) for most, n in ((0, 1), (500_000, 1), (500_000, 3))],
    ("nonreentrant", {"stage": 3, **SMALL, **EAGER, "max_live": 100_000, "persistence_threshold": 0}, 1),
    ("nonreentrant", {"stage": 3, **SMALL, "max_reuse_distance": 0, "prefetch_bucket": 2_000_000, "max_live": 4_000_000}, 2),
    ("reentrant", {"stage": 2, "reduce_bucket": 2_500_000}, 1),
    ("nonreentrant", {"stage": 1, "reduce_bucket": 300_000}, 1),
    ("nonreentrant", {"stage": 1, "reduce_bucket": 300_000, "overlap_comm": True}, 1),
]
ADAPTED: list[tuple[str, Row, int, Row]] = [
    (mode, {"stage": 3, **SMALL, **more}, 1, {"targets": targets})
    for mode in ("none", "reentrant", "nonreentrant")
    for more in ({}, EAGER)
    for targets in ("all-linear", FEW)
]
CODES = {"qwen3_moe": ("grouped_mm",), "mixtral": ("grouped_mm", "eager")}
OF_EXPERTS: list[tuple[str, Row]] = [
    ("none", {"stage": 3, **SMALL}),
    *((mode, {"stage": 3, **SMALL, **more}) for mode in ("reentrant", "nonreentrant") for more in ({}, EAGER)),
]
RUNS: list[tuple[str, str, Row, int, Row]] = [
    *(("llama", *run, {}) for run in OF_LLAMA),
    *(("qwen2_few_words", *run, {}) for run in OF_FEW_WORDS),
    *((config, *run) for config in ("qwen2_few_words", "llama_few_words") for run in ADAPTED),
    *((config, *run, 1, {"experts": code}) for config, codes in CODES.items() for code in codes for run in OF_EXPERTS),
    *(("qwen3_moe", mode, {"stage": 3, **SMALL}, 1, {"experts": "batched_mm"}) for mode in ("none", "nonreentrant")),
    ("qwen3_moe", "none", {"stage": 3, **SMALL, **EAGER}, 1, {"experts": "grouped_mm"}),
    *(("qwen3_moe", mode, {"stage": 3, **SMALL}, 2, {"experts": "grouped_mm"}) for mode in ("none", "nonreentrant")),
    ("qwen3_moe", "none", {"stage": 3, **SMALL}, 1, {"targets": FEW, "experts": "grouped_mm"}),
    *((config, *run, 1, {"experts": "grouped_mm"}) for config in MORE_EXPERTS for run in OF_EXPERTS),
]


# Stages 1 and 2 keep gradients of whole parameters of which the rank has a piece. The first has the largest piece, the second and
# the seventh keep most (a table's end and layers; more of the layers); the highest is written down, phase by phase.
DIFFERENT = (0, 1, 6)


def stand_in(attention: Any) -> None:
    """The process group of the rank that RANK says, and transformers with `attention`, whose results are zeros.

    Results left as they are found may overflow, and then stage 3 skips the step and leaves its small parameters partitioned.
    """
    import deepspeed  # noqa: F401 - its modules are changed below
    import torch
    import transformers
    import transformers.masking_utils
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.empty_like = torch.zeros_like
    sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None  # would be compiled
    torch.distributed.init_process_group("fake", store=FakeStore(), rank=int(os.environ["RANK"]), world_size=RANKS)
    transformers.AttentionInterface.register("executed", attention)
    transformers.masking_utils.ALL_MASK_ATTENTION_FUNCTIONS["executed"] = lambda *_, **__: None
    transformers.masking_utils.find_packed_sequence_indices = lambda *_, **__: None  # reads data: nothing is packed


def attend_by_token() -> Any:
    """Attention whose result lies token by token, whatever the layer joined: how flash-attention lays it is part of the kernel."""
    import torch

    class ByToken(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, q: Any, k: Any, v: Any) -> Any:
            batch, heads, tokens, _ = q.shape
            out = torch.zeros(batch, tokens, heads, v.shape[3], dtype=q.dtype)
            lse, state = torch.zeros(batch, heads, tokens), torch.zeros(2, dtype=torch.int64)
            ctx.save_for_backward(q, k, v, out, lse, state)
            return out

        @staticmethod
        def backward(ctx: Any, *_gradient: Any) -> Any:
            return tuple(torch.zeros_like(x) for x in ctx.saved_tensors[:3])

    return lambda _module, q, k, v, _mask, **_options: (ByToken.apply(q, k, v), None)


def spread(model: Any) -> None:
    """Tokens go to all experts evenly, whatever the routers' weights say."""
    import torch

    def evenly(_router: Any, _given: Any, out: Any) -> None:
        indices = out[-1]
        indices.data.copy_(torch.arange(indices.numel()).reshape(indices.shape) % 8)

    for module in model.modules():
        if type(module).__name__.lower().endswith("topkrouter"):
            module.register_forward_hook(evenly)


def make_engine(config: Row, checkpointing: str, zero: Row, micro_batches: int, targets: Any = None, experts: str = "") -> Any:
    import deepspeed
    import torch
    import transformers
    from execute_parallel import attend

    stand_in(attend_by_token() if config["model_type"] in MORE_EXPERTS else attend)
    fields = {key: value for key, value in config.items() if key != "model_type"}
    described = transformers.AutoConfig.for_model(config["model_type"], **fields, use_cache=False)
    model = transformers.AutoModelForCausalLM.from_config(described, dtype=torch.bfloat16, attn_implementation="executed")
    if experts:
        model.set_experts_implementation(experts)
        spread(model)
    model.train()
    if checkpointing != "none":
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": checkpointing == "reentrant"})
    if targets is not None:
        import peft

        if checkpointing != "none":
            model.enable_input_require_grads()
        adapters = peft.LoraConfig(task_type="CAUSAL_LM", r=RANK, target_modules=targets)
        model = peft.get_peft_model(model, adapters, autocast_adapter_dtype=False)
    settings = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": micro_batches,
        "bf16": {"enabled": True},
        "zero_allow_untested_optimizer": True,
        "zero_optimization": {SPELLINGS[key]: value for key, value in zero.items()},
    }
    optimizer = torch.optim.SGD([one for one in model.parameters() if one.requires_grad], lr=1e-5)
    return deepspeed.initialize(model=model, optimizer=optimizer, config=settings, dist_init_required=False)[0]


def residents(storages: Any) -> None:
    """Storages that are there already."""
    import torch

    for found in gc.get_objects():
        try:
            if not isinstance(found, torch.Tensor) or found.device.type == "meta":
                continue
            storage = found.untyped_storage()
        except ReferenceError:
            continue
        if storage._cdata in storages.known:
            continue
        storages.known[storage._cdata] = {}, int(storage.nbytes())
        storages.live += int(storage.nbytes())
        weakref.finalize(storage, storages.died, storage._cdata)


def hf_loss(engine: Any, ids: Any, labels: Any) -> Any:
    return engine(input_ids=ids, labels=labels).loss


def third_step(engine: Any, sequences: int, tokens: int, micro_batches: int, loss_of: Any = hf_loss, storages: Any = None) -> Row:
    """Peaks of the third step: what a coordinator knows of a step is the same from then on."""
    import torch
    from execute import Storages

    gc.collect()
    gc.disable()
    storages = storages or Storages()
    residents(storages)
    peaks = {"forward": 0, "backward": 0, "optimizer": 0}
    for _ in range(3):
        peaks = dict.fromkeys(peaks, 0)
        for _ in range(micro_batches):
            with storages:
                ids = torch.zeros(sequences, tokens, dtype=torch.int64)
                labels = torch.zeros_like(ids)
                storages.highest = storages.live
                loss = loss_of(engine, ids, labels)
                peaks["forward"] = max(peaks["forward"], storages.highest)
                storages.highest = storages.live
                engine.backward(loss)
                peaks["backward"] = max(peaks["backward"], storages.highest)
                del loss, ids, labels
                storages.highest = storages.live
                engine.step()
                peaks["optimizer"] = storages.highest  # of the last micro-batch, whose gradients are applied
    return peaks


def execute(config: str, checkpointing: str, zero: Row, micro_batches: int, more: Row) -> Row:
    return third_step(make_engine(CONFIGS[config], checkpointing, zero, micro_batches, **more), 1, TOKENS[config], micro_batches)


def trainer_of(checkpointing: str, optimizer: Row, head: str) -> Row:
    """What the jobs of steps under ZeRO have in common."""
    return {
        "engine": "deepspeed",
        "layout": f"d{RANKS}",
        "kernels": "hf_flash",
        "precision": {"storage": "bf16", "compute": "bf16", "reduce": "bf16"},
        "recompute": "none" if checkpointing == "none" else "full",
        "reentrant": checkpointing == "reentrant",
        **optimizer,
        "head": head,
    }


def job_of(config: str, checkpointing: str, zero: Row, micro_batches: int, more: Row) -> Row:
    trainer = trainer_of(checkpointing, {"optimizer": "sgd"}, "hf_loss") | {
        "sequences_per_micro_batch": 1,
        "sequence_tokens": TOKENS[config],
        "micro_batches": micro_batches,
        "kernel_internals": False,
        "zero": zero,
    }
    if "experts" in more:
        trainer["experts"] = more["experts"]
    if targets := more.get("targets"):
        trainer["lora"] = {"rank": RANK, "format": "storage"} | ({"targets": targets} if isinstance(targets, list) else {})
    # plain SGD, which no job has under DeepSpeed, leaves nothing but the engine's own buffers
    return {"framework": "torch", "trainer": trainer, "apart": {"forward_only": False, "beyond": ["optimizer"]}}


def name_of(config: str, checkpointing: str, zero: Row, micro_batches: int, more: Row) -> str:
    words = [] if config == "llama" else [config]
    words += [f"zero{zero['stage']}", *(f"{key}={value}" for key, value in zero.items() if key != "stage"), checkpointing]
    words += [more["experts"]] if "experts" in more else []
    if targets := more.get("targets"):
        words.append("lora-" + (targets if isinstance(targets, str) else "-".join(targets)))
    return "/".join([*words, str(micro_batches)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=ROOT / "tests" / "data" / "executed_zero.jsonl")
    parser.add_argument("--only", default="", help="runs whose name has this")
    parser.add_argument("--run", type=int, help="execute one run and print its peaks")
    options = parser.parse_args()
    if options.run is not None:
        print("peaks " + json.dumps(execute(*RUNS[options.run])))
        return
    from importlib import metadata

    versions = ", ".join(f"{name} {metadata.version(name).split('+')[0]}" for name in ("deepspeed", "torch", "transformers"))
    place = {"LOCAL_RANK": "0", "WORLD_SIZE": str(RANKS), "LOCAL_WORLD_SIZE": str(RANKS), "DS_ACCELERATOR": "cpu"}
    place |= {"MASTER_ADDR": "localhost", "MASTER_PORT": "29999"}
    lines: list[Row] = [{"config": name, "fields": config} for name, config in CONFIGS.items()]
    for number, run in enumerate(RUNS):
        config, _, zero, _, _ = run
        name = name_of(*run)
        if options.only not in name:
            continue
        peaks: Row = {}
        for rank in DIFFERENT if zero["stage"] < 3 else DIFFERENT[:1]:
            command = [sys.executable, __file__, "--run", str(number)]
            env = os.environ | place | {"RANK": str(rank)}
            told = subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout
            of_rank = json.loads(next(line for line in told.splitlines() if line.startswith("peaks "))[6:])
            peaks = {phase: max(level, peaks.get(phase, 0)) for phase, level in of_rank.items()}
        row = {"id": name, "config": config, "job": job_of(*run)}
        lines.append(row | {"source": f"{versions} executed on the fake process group", "peaks": peaks})
        print(name, peaks, flush=True)
    write_rows(options.output, lines)


if __name__ == "__main__":
    main()
