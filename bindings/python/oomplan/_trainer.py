"""Objects of Transformers' and TRL's trainers: their arguments as the text that oomplan reads, and a callback for them."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import warnings
from importlib import import_module
from pathlib import Path

from . import DoesNotFit, InputError, _core, check, estimate, gpus, read

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from . import Estimate

# Classes of arguments, the more special ones first, and what the reader calls their trainers.
TRAINERS = {
    "SFTConfig": "sft",
    "DPOConfig": "dpo",
    "GRPOConfig": "grpo",
    "KTOConfig": "kto",
    "RewardConfig": "reward",
    "RLOOConfig": "rloo",
    "TrainingArguments": "hf",
}


def is_arguments(source: object) -> bool:
    """Is it a TrainingArguments of Transformers, or of a class made of it?"""
    return any(
        kind.__name__ == "TrainingArguments" and kind.__module__ == "transformers.training_args" for kind in _classes(source)
    )


def _classes(source: object) -> tuple[type, ...]:
    return type(source).__mro__


def arguments_text(arguments: Any, model: str) -> dict[str, Any]:
    """The arguments as a dict of texts and numbers, with the model and the name of the trainer."""
    names = [kind.__name__ for kind in _classes(arguments)]
    held = {key: value for key, value in arguments.to_dict().items() if value is not None}
    held.pop("hub_token", None)
    held["trainer"] = next(TRAINERS[name] for name in names if name in TRAINERS)
    if model:
        held["model_name_or_path"] = model
    return held


def release_of(arguments: object) -> str:
    """What is installed, as --framework-version has it."""
    trl = any(kind.__module__.split(".")[0] == "trl" for kind in _classes(arguments))
    name = "trl" if trl else "transformers"
    version = getattr(sys.modules.get(name), "__version__", "")
    return f"{name} {version}" if version else ""


def _settings_of_adapters(model: Any) -> dict[str, Any]:
    """Of a PeftModel: what ModelConfig of TRL calls its adapter."""
    held = getattr(model, "peft_config", None)
    if not held:
        return {}
    if len(held) > 1:
        raise _core.refusal("peft_config", f"{len(held)} adapters", "one adapter; several are not supported yet")
    (adapter,) = held.values()
    kind = str(getattr(adapter.peft_type, "value", adapter.peft_type))
    if kind != "LORA":
        raise _core.refusal("peft_config", kind, "LORA; other adapters are not supported yet")
    targets = adapter.target_modules
    out = {
        "use_peft": True,
        "lora_r": adapter.r,
        "lora_alpha": adapter.lora_alpha,
        "lora_dropout": adapter.lora_dropout,
        "lora_target_modules": targets if isinstance(targets, str) else sorted(targets or ()),
        "lora_modules_to_save": sorted(adapter.modules_to_save or ()),
        "use_dora": bool(adapter.use_dora),
    }
    return {key: value for key, value in out.items() if value not in (None, [], False)}


def _settings_of_model(model: Any) -> dict[str, Any]:
    """What the arguments do not say and the model shows: format, attention, adapters, quantisation."""
    config = model.config
    out: dict[str, Any] = {"dtype": str(model.dtype).rpartition(".")[2]}
    attention = getattr(config, "_attn_implementation", None)
    if attention:
        out["attn_implementation"] = attention
    packed = getattr(config, "quantization_config", None)
    if packed is not None:
        told = packed if isinstance(packed, dict) else packed.to_dict()
        for key in ("load_in_4bit", "load_in_8bit"):
            if told.get(key):
                out[key] = True
        if not (out.get("load_in_4bit") or out.get("load_in_8bit")):
            raise _core.refusal(
                "quantization_config", str(told.get("quant_method")), "bitsandbytes; others are not supported yet"
            )
        if told.get("load_in_4bit"):
            out["bnb_4bit_quant_type"] = told.get("bnb_4bit_quant_type", "fp4")
            out["use_bnb_nested_quant"] = bool(told.get("bnb_4bit_use_double_quant"))
    return {**out, **_settings_of_adapters(model)}


def _gpu_here() -> str:
    """The kind of the GPU of this process, in our spelling; "" where there is none. Raises InputError: it is not known."""
    torch: Any = import_module("torch")
    if not torch.cuda.is_available():
        return ""
    name = torch.cuda.get_device_name()
    total = torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory
    return gpu_named(name, total)


def gpu_named(name: str, total_bytes: int) -> str:
    """The kind whose name CUDA says; of several that are called alike the one that has most nearly as much memory."""
    known = gpus()
    for one in known:
        if name in one["aliases"]:
            return str(one["name"])
    words = name.replace("-", " ").split()
    alike = [one for one in known if one["name"].partition("-")[0] in words]
    if not alike:
        raise _core.refusal("gpu", f"'{name}'", "gpu=, one of oomplan.gpus()")
    return str(min(alike, key=lambda one: abs(int(one["usable_bytes"]) - total_bytes))["name"])


def _say_accelerate() -> None:
    """accelerate launch tells its engine in variables, which no argument shows."""
    for variable, engine in (("ACCELERATE_USE_FSDP", "FSDP"), ("ACCELERATE_USE_DEEPSPEED", "DeepSpeed")):
        if os.environ.get(variable, "").lower() in ("1", "true"):
            raise _core.refusal(
                variable,
                f"{engine} of accelerate launch",
                "not supported yet by the callback: `oomplan check -- accelerate launch ...`",
            )


class _Measured:
    """The highest of what the allocator of this process held, in the two parts of a step."""

    PARTS = ("forward_backward", "optimizer")

    def __init__(self) -> None:
        self.steps = 0
        self.peaks: dict[str, dict[str, int]] = {}

    @staticmethod
    def _cuda() -> Any:
        torch: Any = import_module("torch")

        return torch.cuda if torch.cuda.is_available() else None

    def begin(self) -> None:
        cuda = self._cuda()
        if cuda is not None:
            cuda.reset_peak_memory_stats()

    def take(self, part: str) -> None:
        cuda = self._cuda()
        if cuda is None:
            return
        now = {"allocated_bytes": cuda.max_memory_allocated(), "reserved_bytes": cuda.max_memory_reserved()}
        before = self.peaks.get(part, now)
        self.peaks[part] = {key: max(value, before[key]) for key, value in now.items()}
        cuda.reset_peak_memory_stats()


def predicted_parts(answer: Estimate) -> dict[str, int]:
    """Bytes that tensors hold in the parts of a step, on the fullest GPU."""
    parts = {"trainer.forward": "forward_backward", "trainer.backward": "forward_backward", "trainer.optimizer": "optimizer"}
    out: dict[str, int] = {}
    for one in answer.gpus:
        for moment in one.phases:
            part = parts.get(moment.phase)
            if part is not None:
                out[part] = max(out.get(part, 0), moment.allocated_bytes)
    return out


def made(
    *,
    gpu: str,
    model: str,
    sequence_tokens: int,
    image_size: str,
    framework_version: str,
    checks: bool,
    strict: bool,
    record: str,
) -> Any:
    """The callback; see oomplan.callback."""
    base: Any = import_module("transformers").TrainerCallback

    class OomplanCallback(base):  # type: ignore[misc]
        """Checks before the first step, and records what is measured. `.estimate` is the answer, `.job` what was asked."""

        def __init__(self) -> None:
            self.job: Any = None
            self.estimate: Estimate | None = None
            self.measured = _Measured()

        def on_train_begin(self, args: Any, state: Any, control: Any, **held: Any) -> None:
            if checks or record:
                self._ask(args, state, held["model"])
            self.measured.begin()

        def _ask(self, args: Any, state: Any, trained: Any) -> None:
            try:
                kind = gpu or _gpu_here()
                if not kind:
                    raise _core.refusal("gpu", "no GPU in this process", 'gpu=, such as gpu="H100-80GB"')
                self._judge(args, trained, kind)
            except InputError as error:
                if strict:
                    raise
                warnings.warn(f"oomplan does not know what this training needs: {error}", stacklevel=2)
                return
            if state.is_world_process_zero:
                print(self.estimate)

        def _judge(self, args: Any, trained: Any, kind: str) -> None:
            _say_accelerate()
            with tempfile.TemporaryDirectory() as folder:
                file = Path(folder) / "config.json"
                file.write_text(json.dumps(_config_of(trained)))
                told = {**arguments_text(args, model or str(file)), **_settings_of_model(trained)}
                self.job = read(
                    told,
                    gpus=args.world_size,
                    gpu=kind,
                    dialect="transformers",
                    framework_version=framework_version or release_of(args),
                    sequence_tokens=sequence_tokens,
                    image_size=image_size,
                )
                try:
                    self.estimate = check(self.job) if checks else estimate(self.job)
                except DoesNotFit as no:
                    self.estimate = no.estimate
                    raise

        def on_step_begin(self, args: Any, state: Any, control: Any, **held: Any) -> None:
            self.measured.begin()

        def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **held: Any) -> None:
            self.measured.take("forward_backward")

        def on_step_end(self, args: Any, state: Any, control: Any, **held: Any) -> None:
            self.measured.take("optimizer")
            self.measured.steps += 1

        def on_train_end(self, args: Any, state: Any, control: Any, **held: Any) -> None:
            if record:
                rank = int(args.process_index)
                path = Path(record)
                file = path if rank == 0 else path.with_name(f"{path.stem}.rank{rank}{path.suffix}")
                file.write_text(json.dumps(self.recorded(rank), indent=1) + "\n")

        def recorded(self, rank: int = 0) -> dict[str, Any]:
            """What was predicted and what was measured, part by part, in bytes. Empty where there was no GPU."""
            return {
                "schema": "oomplan.recorded/1",
                "rank": rank,
                "steps": self.measured.steps,
                "predicted": {} if self.estimate is None else predicted_parts(self.estimate),
                "measured": self.measured.peaks,
                "job": None if self.job is None else self.job.to_dict(),
            }

    return OomplanCallback()


def _config_of(trained: Any) -> dict[str, Any]:
    """config.json of the model, without what stands on top of it."""
    config: dict[str, Any] = trained.config.to_dict()
    for key in ("quantization_config", "_name_or_path", "transformers_version"):
        config.pop(key, None)
    return json.loads(json.dumps(config, default=str))  # type: ignore[no-any-return]
