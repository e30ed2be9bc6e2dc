"""The section `deepspeed` of Oumi's files: what DeepSpeed gets of it, in which formats it runs, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from test_oumi import EXAMPLES, role, run

FILE = (EXAMPLES / "sft_8b.yaml").read_text().split("fsdp:\n", maxsplit=1)[0]
OFFLOAD = "  offload_optimizer:\n    device: CPU\n"


@pytest.fixture
def file(tmp_path: Path) -> Any:
    def make(*lines: str, changes: tuple[str, str] = ("", "")) -> Path:
        section = "deepspeed:\n  enable_deepspeed: True\n" + "".join(f"  {line}\n" for line in lines)
        (tmp_path / "train.yaml").write_text(FILE.replace(*changes) + section)
        return tmp_path

    return make


MIXED = ('torch_dtype_str: "bfloat16"', 'torch_dtype_str: "float32"')


def trainer(folder: Path, *more: str) -> dict[str, Any]:
    return role("train.yaml", "--gpus", "8", *more, folder=folder)


def test_numbers_of_its_own(file: Any) -> None:
    lines = (
        "zero_stage: ZERO_3",
        "reduce_bucket_size: 200000000",
        "stage3_max_live_parameters: 100000000",
        "sub_group_size: 100000000",
    )
    told = trainer(file(*lines))
    assert (told["engine"], told["layout"], told["zero.stage"]) == ("deepspeed", "d8", 3)
    assert (told["zero.reduce_bucket"], told["zero.max_live"], told["zero.sub_group"]) == (200_000_000, 100_000_000, 100_000_000)
    assert (told["zero.prefetch_bucket"], told["zero.persistence_threshold"]) == (50_000_000, 100_000)


def test_auto_is_of_the_hidden_size(file: Any) -> None:
    keys = ("reduce_bucket_size", "stage3_prefetch_bucket_size", "stage3_param_persistence_threshold")
    told = trainer(file("zero_stage: ZERO_3", *(f"{key}: auto" for key in keys)))
    assert told["zero.reduce_bucket"] == 4096 * 4096
    assert told["zero.prefetch_bucket"] == 15_099_494
    assert told["zero.persistence_threshold"] == 40_960


def test_offload(file: Any) -> None:
    told = trainer(file("zero_stage: ZERO_3", "offload_optimizer:", "  device: CPU", "offload_param:", "  device: CPU"))
    assert told["zero.offload_optimizer"] is True and told["zero.offload_parameters"] is True
    assert trainer(file("zero_stage: ZERO_3"))["zero.offload_optimizer"] is False


def test_mixed_precision_alone_decides_the_format(file: Any) -> None:
    """`precision` makes "bf16": {"enabled": "auto"}, and TrainingArguments' bf16 is mixed_precision_dtype."""
    plain = file("zero_stage: ZERO_3", "precision: BF16")
    told = trainer(plain)
    assert (told["precision.storage"], told["precision.reduce"], told["zero.load"]) == ("bf16", "fp32", "whole")
    said = " ".join(run("estimate", "train.yaml", "--gpus", "8", folder=plain).stdout.split())
    assert "DeepSpeed runs without its 16-bit mode" in said
    mixed = trainer(file("zero_stage: ZERO_3", changes=MIXED), "training.mixed_precision_dtype=BF16")
    assert (mixed["precision.storage"], mixed["precision.reduce"], mixed["zero.load"]) == ("bf16", "bf16", "whole_fp32")


def test_every_gpu_loads_the_whole_model(file: Any) -> None:
    folder = file("zero_stage: ZERO_3")
    phases = run("estimate", "train.yaml", "--gpus", "8", folder=folder).stdout
    load = next(line.split() for line in phases.splitlines() if line.strip().startswith("trainer.load"))
    assert float(load[1]) > 8_030_261_248 * 2 / 2**30  # GiB


def test_advice_speaks_its_keys(file: Any) -> None:
    done = run("advise", "train.yaml", "--gpus", "2", "--gpu", "A100-40GB", folder=file("zero_stage: ZERO_3"))
    assert done.returncode in (0, 1), done.stderr
    assert "--deepspeed." in done.stdout, done.stdout


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (("zero_stage: ZERO_0",), "deepspeed.zero_stage: found 'ZERO_0': not supported yet: DeepSpeed with ZeRO stage 0"),
        ((), "deepspeed.zero_stage: found 'ZERO_0': not supported yet: DeepSpeed with ZeRO stage 0"),
        (("zero_stage: ZERO_1",), "not supported yet: ZeRO stage 1 of a model in bf16 without DeepSpeed"),
        (("deepspeed_config_path: ds.json",), "a file of DeepSpeed's beside Oumi's"),
        (("zero_stage: ZERO_3", "offload_param:", "  device: NVME"), "not supported yet: an offload to NVME"),
        (
            ("zero_stage: ZERO_3", "train_micro_batch_size_per_gpu: 4"),
            "ds train_micro_batch_size_per_gpu=4 vs hf per_device_train_batch_size=2",
        ),
        (
            ("zero_stage: ZERO_3", "gradient_accumulation_steps: 1"),
            "ds gradient_accumulation_steps=1 vs hf gradient_accumulation_steps=4",
        ),
    ],
)
def test_what_is_refused(file: Any, lines: tuple[str, ...], said: str) -> None:
    done = run("check", "train.yaml", "--gpus", "8", folder=file(*lines))
    assert done.returncode == 2 and said in done.stderr, done.stderr


def test_what_was_read_is_read_again_as_the_same(file: Any, tmp_path: Path) -> None:
    folder = file("zero_stage: ZERO_3", "precision: BF16")
    (tmp_path / "job.yaml").write_text(run("read", "train.yaml", "--gpus", "8", folder=folder).stdout)
    first = run("estimate", "train.yaml", "--gpus", "8", folder=folder).stdout.splitlines()
    assert run("estimate", "job.yaml", folder=tmp_path).stdout.splitlines()[:6] == first[:6]
