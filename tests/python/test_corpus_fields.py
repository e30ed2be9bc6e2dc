"""The accuracy runner's rows: no field of an executed step is passed over, and none is guessed."""

from __future__ import annotations

import copy
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks" / "accuracy"))

Row = dict[str, Any]
CORPUS = ROOT / "models" / "architectures" / "rows.jsonl"  # configs are looked for beside it; there is no such file
FIGURES: Row = {"peak_bytes": 5, "peaks_by_phase": {"forward": {"bytes": 3}, "backward": {"bytes": 4}, "optimizer": {"bytes": 5}}}

STEP: Row = {
    "id": "step",
    "model": "Qwen/Qwen3-8B",
    "layers": 4,
    "layers_override": {"full": 36, "used": 4},
    "dtype": "fp32",
    "attention": "fa2",
    "experts": None,
    "batch": 1,
    "seq": 1024,
    "padding_mask": False,
    "checkpointing": "none",
    "peft": None,
    "optimizer": "adamw",
    "optimizer_impl": "foreach",
    "weight_decay": 0.01,
    "clip": True,
    "loss": "hf_loss",
    "logits_to_keep": 0,
    "use_cache": False,
    "sharding": None,
    "grad_accum": 1,
    "versions": {"torch": "2.13.0+cpu", "transformers": "5.23.0"},
    **FIGURES,
}
FSDP = {"world": 8, "param_dtype": "bf16", "reduce_dtype": "fp32"}
STEPS: dict[str, Row] = {
    "single": STEP | {"dtype": "fp32_autocast_bf16", "logits_to_keep": 512},
    "adapters": STEP
    | {"dtype": "bf16", "peft": {"r": 16, "targets": ["q_proj", "v_proj"], "dropout": 0.05, "fp32_adapters": False}},
    "fsdp2": STEP
    | {"sharding": FSDP | {"reshard": True, "wrap_embedding": True, "wrap_head": True, "replicate": 2}, "autocast": True},
    "fsdp2 offloaded": STEP | {"sharding": FSDP, "offload": {"parameters": True, "optimizer": True}},
    "fsdp1": STEP
    | {
        "sharding": FSDP | {"engine": "fsdp1", "strategy": "SHARD_GRAD_OP", "backward_prefetch": "POST", "forward_prefetch": True}
    },
    "ddp": STEP | {"dtype": "bf16", "sharding": {"engine": "ddp", "world": 2, "bucket_mb": 100, "gradient_as_bucket_view": True}},
    "ulysses": STEP
    | {
        "sharding": FSDP,
        "sequence_parallel": {"size": 2, "implementation": "areal"},
        "tokens_per_rank": 512,
        "loss": "areal_compiled",
    },
    "small vocabulary": STEP | {"config_overrides": {"vocab_size": 1024}, "dtype": "bf16"},
    "experts": STEP
    | {"model": "Qwen/Qwen3-30B-A3B", "layers_override": {"full": 48, "used": 4}, "dtype": "bf16", "experts": "grouped_mm"},
}

MEGATRON: Row = {
    "id": "megatron",
    "model": "llama3-8b",
    "tp": 2,
    "pp": 1,
    "vpp": None,
    "cp": 1,
    "ep": 1,
    "dp": 2,
    "world": 4,
    "stage": 0,
    "sp": True,
    "micro_batch": 1,
    "micro_batches": 2,
    "seq": 4096,
    "impl": "te",
    "attention": "fused",
    "recompute": None,
    "cross_entropy": "te",
    "gradient_accumulation_fusion": True,
    "distributed_optimizer": True,
    "grads": "fp32",
    "dropout": 0.0,
    "arch": {"layers": 4, "hidden": 4096, "heads": 32, "groups": 8, "kv_channels": 128, "ffn": 14336, "vocab": 128256},
    "parameters_on_rank": 1,
    "versions": {"torch": "2.13.0+cpu", "megatron-core": "0.16.1", "transformer-engine stand-in": "2.11"},
    **FIGURES,
}
ROUTED: Row = {
    "layers": 4,
    "hidden": 2048,
    "heads": 32,
    "groups": 4,
    "kv_channels": 128,
    "ffn": 6144,
    "vocab": 151936,
    "qk_norm": True,
    "moe": {
        "experts": 128,
        "topk": 8,
        "ffn": 768,
        "shared": 768,
        "dense_layers": 1,
        "pre_softmax": True,
        "balancing": "aux_loss",
    },
}
PLAIN: Row = {
    "layers": 4,
    "hidden": 1024,
    "heads": 16,
    "ffn": 4096,
    "vocab": 51200,
    "gated": False,
    "act": "gelu",
    "norm": "LayerNorm",
    "bias": True,
    "position": "learned_absolute",
    "tied": True,
}
LAUNCHES: dict[str, Row] = {
    "dense": MEGATRON | {"recompute": {"granularity": "selective", "modules": ["core_attn"]}, "cp": 2, "world": 8},
    "pipeline": MEGATRON
    | {"pp": 2, "vpp": 2, "world": 8, "stage": 1, "recompute": {"granularity": "full", "method": "uniform", "num_layers": 1}},
    "experts": MEGATRON
    | {"model": "any", "arch": ROUTED, "ep": 4, "etp": 1, "permute_fusion": True, "router_dtype": "fp32", "moe_capacity": 1.5},
    "latent": MEGATRON
    | {
        "arch": {key: value for key, value in ROUTED.items() if key not in ("groups", "kv_channels", "qk_norm", "moe")}
        | {"mla": {"q_lora": 1536, "kv_lora": 512, "qk_head": 128, "rope_head": 64, "v_head": 128}}
    },
    "plain": MEGATRON | {"arch": PLAIN, "dropout": 0.1},
    "local": MEGATRON
    | {"arch": PLAIN, "impl": "local", "attention": "unfused", "cross_entropy": None, "gradient_accumulation_fusion": False},
}

# What of a row is no setting: its name, figures, and what follows from other fields.
NO_SETTINGS = {"id", "peak_bytes", "peaks_by_phase", "parameters_on_rank"}
NONSENSE: list[Any] = ["nonsense", -7, [], {"nonsense": 1}, True, 3]


def mapped(row: Row) -> tuple[str, str]:
    """The job and config of a row, as text; "" and why there is none."""
    from corpus import schema_of
    from run import cases_of

    case = cases_of(schema_of(row), row, CORPUS)[0]
    return ("", case.why_not) if case.why_not else (json.dumps(case.job, sort_keys=True) + case.config, "")


def answered(row: Row) -> str:
    """Bytes, or why the job's reader refuses it."""
    from corpus import schema_of
    from run import Library, cases_of, judge

    library = Library()
    out = []
    for case in cases_of(schema_of(row), row, CORPUS):
        predicted = judge(case, library)
        out.append(case.why_not if predicted is None else str(predicted))
    return ", ".join(out)


def places(row: Row, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Every field, and every field of a map."""
    for name, value in row.items():
        if not path and name in NO_SETTINGS:
            continue
        yield (*path, name)
        if isinstance(value, dict):
            yield from places(value, (*path, name))


def changed(row: Row, path: tuple[str, ...], change: Callable[[Row, str], None]) -> Row:
    out: Row = copy.deepcopy(row)
    at = out
    for name in path[:-1]:
        at = at[name]
    change(at, path[-1])
    return out


ROWS = {f"step, {name}": row for name, row in STEPS.items()} | {f"megatron, {name}": row for name, row in LAUNCHES.items()}


@pytest.mark.parametrize("name", ROWS)
def test_rows_are_mapped_and_answered(name: str) -> None:
    job, why = mapped(ROWS[name])
    assert job and not why
    figures = answered(ROWS[name]).split(", ")
    assert len(figures) == 4 and all(figure.isdigit() for figure in figures), figures


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("value", [1, True, False, "yes", 0, [1], {"a": 1}])
def test_an_unknown_field_is_refused_by_its_name(name: str, value: Any) -> None:
    row = ROWS[name]
    maps = [path for path in places(row) if isinstance(value_at(row, path), dict)]
    for path in [(), *maps]:

        def add(at: Row, key: str) -> None:
            at[key] = value

        job, why = mapped(changed(row, (*path, "new_knob"), add))
        assert not job and ".".join((*path, "new_knob")) in why, (path, why)


def value_at(row: Row, path: tuple[str, ...]) -> Any:
    at: Any = row
    for name in path:
        at = at[name]
    return at


@pytest.mark.parametrize("name", ROWS)
def test_no_value_of_a_field_is_passed_over(name: str) -> None:
    """A field with nonsense in it changes the job, or the row is refused; the job's reader refuses what is no job."""
    row = ROWS[name]
    before = mapped(row)[0]
    silent = []
    for path in places(row):
        if path == ("model",) and "arch" in row:  # a name: the arguments describe the model
            continue
        for value in NONSENSE:
            if type(value) is type(value_at(row, path)) and value == value_at(row, path):
                continue

            def put(at: Row, key: str, value: Any = value) -> None:
                at[key] = value

            job, _ = mapped(changed(row, path, put))
            if job == before and not same_meaning(path, value):
                silent.append((".".join(path), value))
    assert not silent


def same_meaning(path: tuple[str, ...], value: Any) -> bool:
    """Another value of a field that bears no memory, where it is one that the field can have."""
    return (path, type(value)) in {(("use_cache",), bool), (("weight_decay",), int)} and value in (True, 3)


@pytest.mark.parametrize(
    ("name", "field", "value"),
    [
        ("step, single", "attention", "flex_attention"),
        ("step, single", "dtype", "fp8"),
        ("step, single", "loss", "verl_unknown"),
        ("step, single", "optimizer", "lion"),
        ("step, single", "optimizer", "sgd_nesterov"),
        ("step, single", "layers", 99),
        ("step, single", "model", "nobody/none"),
        ("step, experts", "experts", "deepgemm"),
        ("megatron, dense", "impl", "inference_optimized"),
        ("megatron, dense", "world", 6),
        ("megatron, dense", "grads", "fp8"),
        ("megatron, experts", "router_dtype", "fp8"),
    ],
)
def test_what_cannot_be_mapped_is_refused(name: str, field: str, value: Any) -> None:
    assert not mapped(ROWS[name] | {field: value})[0]


def test_weight_decay_is_mapped_where_it_makes_copies() -> None:
    row = STEPS["single"]

    def said(optimizer: str, form: str, decay: float) -> Any:
        job = mapped(row | {"optimizer": optimizer, "optimizer_impl": form, "weight_decay": decay})[0]
        return json.loads(job.split("}{")[0] + "}")["trainer"].get("weight_decay")

    for optimizer in ("adam", "sgd", "sgd_momentum"):
        assert said(optimizer, "foreach", 0.1) == said(optimizer, "loop", 0.1) == 0.1
        assert said(optimizer, "foreach", 0) is None
        assert said(optimizer, "foreach", 0.01) is None  # AdamW's own, which alone was given it
    assert said("adamw", "foreach", 0.1) is None and said("adam", "fused", 0.1) is None
    decayed = row | {"optimizer": "adam", "weight_decay": 0.1, "optimizer_impl": "loop"}
    assert answered(decayed) != answered(decayed | {"weight_decay": 0})


def test_experts_of_transformers_are_mapped() -> None:
    row = STEPS["experts"]
    said = {name: json.loads(mapped(row | {"experts": name})[0].split("}{")[0] + "}")["trainer"]["experts"] for name in LOOPS}
    assert said == LOOPS
    for name in LOOPS:
        assert all(figure.isdigit() for figure in answered(row | {"experts": name}).split(", ")), name


LOOPS = {"grouped_mm": "grouped_mm", "batched_mm": "batched_mm", "eager": "eager", "eager_balanced": "eager"}


def test_modules_of_megatron_itself_are_asked_for() -> None:
    local, engine = LAUNCHES["local"], LAUNCHES["local"] | {"impl": "te"}
    assert answered(local) != answered(engine)


def test_experts_are_split_as_megatron_splits_them() -> None:
    """--expert-tensor-parallel-size is that of everything else where nobody says it."""
    silent = {key: value for key, value in LAUNCHES["experts"].items() if key != "etp"}
    assert answered(silent) == answered(silent | {"etp": 2}) != answered(silent | {"etp": 1})


def test_layers_without_experts_in_front_of_others_are_dense() -> None:
    all_routed = copy.deepcopy(LAUNCHES["experts"])
    del all_routed["arch"]["moe"]["dense_layers"]
    assert answered(all_routed) != answered(LAUNCHES["experts"])


def test_an_activation_without_a_word_on_gates_is_not_guessed() -> None:
    from corpus import CannotExpress, config_from_arch

    sizes = {"layers": 24, "hidden": 2048, "ffn": 8192, "heads": 32, "vocab": 51200}
    with pytest.raises(CannotExpress, match="gates"):
        config_from_arch(sizes, "phi-1.5")
    assert config_from_arch(sizes, "Llama 7B")["model_type"] == "llama"
    with pytest.raises(CannotExpress, match="gates"):
        row = copy.deepcopy(LAUNCHES["plain"])
        del row["arch"]["gated"]
        from megatron_command import command_of

        command_of(row)


def test_figures_refuse_what_a_job_file_refuses() -> None:
    from oomplan import InputError, _core

    trainer = {"engine": "fsdp2", "layout": "d8", "precision": {"storage": "fp32"}, "reshard_ranks": 3, "head": "hf_loss"}
    with pytest.raises(InputError, match="a divisor of 8 ranks"):
        _core.training_figures(json.dumps({"model": "Qwen/Qwen3-8B", "trainer": trainer}))
    server = {"engine": "vllm 0.11.0", "layout": "t3"}
    with pytest.raises(InputError):
        _core.serving_figures(json.dumps({"model": "Qwen/Qwen3-8B", "server": server}))
