"""oomplan.callback() in a real Trainer on the CPU (./dev trainer), and what it makes of arguments and models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import oomplan

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")


def small_model() -> Any:
    config = transformers.Qwen3Config(
        vocab_size=256,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
    )
    return transformers.Qwen3ForCausalLM(config)


def arguments(folder: Path, **said: Any) -> Any:
    return transformers.TrainingArguments(
        output_dir=str(folder), max_steps=2, use_cpu=True, report_to=[], save_strategy="no", disable_tqdm=True, **said
    )


def train(folder: Path, callback: Any, model: Any = None, **said: Any) -> Any:
    samples = [{"input_ids": torch.arange(16), "labels": torch.arange(16)} for _ in range(4)]
    trainer = transformers.Trainer(
        model=model or small_model(), args=arguments(folder, **said), train_dataset=samples, callbacks=[callback]
    )
    trainer.train()
    return trainer


def test_a_training_that_fits_is_trained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    callback = oomplan.callback(gpu="H100-80GB", sequence_tokens=16, strict=True, record=tmp_path / "recorded.json")
    trainer = train(tmp_path, callback, per_device_train_batch_size=2)
    assert trainer.state.global_step == 2
    assert callback.estimate.fits and capsys.readouterr().out.startswith("fits: ")
    settings = callback.job.to_dict()["roles"][0]["settings"]
    assert settings["sequences_per_micro_batch"] == 2 and settings["precision.storage"] == "fp32"
    held = json.loads((tmp_path / "recorded.json").read_text())
    assert held["schema"] == "oomplan.recorded/1" and held["steps"] == 2
    assert held["measured"] == {}  # there is no GPU
    weights = sum(p.numel() * 4 for p in trainer.model.parameters())
    assert held["predicted"]["optimizer"] > 4 * weights  # with gradients and two states


def test_a_training_that_does_not_fit_takes_no_step(tmp_path: Path) -> None:
    callback = oomplan.callback(gpu="H100-80GB", sequence_tokens=4096)
    with pytest.raises(oomplan.DoesNotFit) as no:
        train(tmp_path, callback, per_device_train_batch_size=65536)
    assert not callback.estimate.fits and callback.measured.steps == 0
    assert no.value.remedies


def test_what_is_measured_stands_beside_what_was_predicted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for CUDA's allocator: the highest of both steps is kept, part by part."""
    taken = iter([700, 900, 800, 850])
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda: None)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: next(taken))
    monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda: 1000)
    callback = oomplan.callback(gpu="H100-80GB", sequence_tokens=16, strict=True)
    monkeypatch.setattr(type(callback.measured), "_cuda", staticmethod(lambda: torch.cuda))
    train(tmp_path, callback, per_device_train_batch_size=2)
    assert callback.recorded()["measured"] == {
        "forward_backward": {"allocated_bytes": 800, "reserved_bytes": 1000},
        "optimizer": {"allocated_bytes": 900, "reserved_bytes": 1000},
    }


def test_without_a_gpu_it_is_said_and_training_goes_on(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="no GPU in this process"):
        trainer = train(tmp_path, oomplan.callback(sequence_tokens=16), per_device_train_batch_size=2)
    assert trainer.state.global_step == 2
    with pytest.raises(oomplan.InputError, match="no GPU in this process"):
        train(tmp_path, oomplan.callback(sequence_tokens=16, strict=True))


def test_what_is_not_supported_is_a_warning_or_an_error(tmp_path: Path) -> None:
    with pytest.raises(oomplan.InputError, match="sequence-tokens"):
        train(tmp_path, oomplan.callback(gpu="H100-80GB", strict=True))  # nothing says how long samples are


def test_engines_of_accelerate_are_not_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    callback = oomplan.callback(gpu="H100-80GB", sequence_tokens=16, strict=True)
    trainer = transformers.Trainer(
        model=small_model(),
        args=arguments(tmp_path),
        train_dataset=[{"input_ids": torch.arange(16), "labels": torch.arange(16)}],
        callbacks=[callback],
    )
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    with pytest.raises(oomplan.InputError, match="FSDP of accelerate launch"):
        trainer.callback_handler.on_train_begin(trainer.args, trainer.state, trainer.control)


def test_adapters_are_taken_from_the_model(tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    model = peft.get_peft_model(small_model(), peft.LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"]))
    callback = oomplan.callback(gpu="H100-80GB", sequence_tokens=16, strict=True)
    train(tmp_path, callback, model=model, per_device_train_batch_size=1)
    settings = callback.job.to_dict()["roles"][0]["settings"]
    assert settings["lora.rank"] == 4 and settings["lora.targets"] == "[q_proj, v_proj]"


def test_arguments_are_read_by_themselves(tmp_path: Path) -> None:
    said = arguments(tmp_path, bf16=True, per_device_train_batch_size=4, gradient_accumulation_steps=2)
    job = oomplan.read(said, model="Qwen/Qwen3-8B", gpus=8, gpu="H200-141GB", sequence_tokens=1024)
    text = job.to_yaml()
    assert "gpus: 8 x H200-141GB" in text and "sequences_per_micro_batch: 4" in text and "engine: ddp" in text
    with pytest.raises(oomplan.InputError):
        oomplan.read(said, gpus=8, sequence_tokens=1024)  # no model


def test_a_model_beside_another_source_is_refused() -> None:
    with pytest.raises(oomplan.InputError, match="model= beside a source that names one"):
        oomplan.read("examples/grpo.yaml", model="Qwen/Qwen3-8B")


@pytest.mark.parametrize(
    ("name", "total", "kind"),
    [
        ("NVIDIA H100 80GB HBM3", 85_000_000_000, "H100-80GB"),
        ("NVIDIA H200", 150_100_000_000, "H200-141GB"),
        ("NVIDIA A100-SXM4-40GB", 42_400_000_000, "A100-40GB"),
        ("NVIDIA A100-SXM4-80GB", 85_100_000_000, "A100-80GB"),
        ("NVIDIA H100 NVL", 100_000_000_000, "H100-96GB"),
        ("NVIDIA A100-PCIE-40GB", 42_300_000_000, "A100-40GB"),
    ],
)
def test_names_of_cuda_are_kinds(name: str, total: int, kind: str) -> None:
    from oomplan._trainer import gpu_named

    assert gpu_named(name, total) == kind
    with pytest.raises(oomplan.InputError, match=r"oomplan\.gpus"):
        gpu_named("Voodoo 3", 16_000_000)
