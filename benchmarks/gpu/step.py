"""One case of measure.py: reads it from standard input, trains two steps, prints the row. Nothing else runs in this process."""

from __future__ import annotations

import contextlib
import gc
import gzip
import json
import os
import platform
import sys
import time
from pathlib import Path
from typing import Any

import torch
import transformers
from live import live_at_peak, requests_of
from torch.nn.attention import SDPBackend, sdpa_kernel

ROOT = Path(__file__).resolve().parents[2]
Row = dict[str, Any]
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
PHASES = ("forward", "backward", "optimizer")
STEPS = 2  # the first makes the optimizer's states, the second is what every further step is
TIMED_STEPS = 3  # after those, without the allocator's history, which slows every allocation


def configuration(case: Row) -> Any:
    """The model's config from the catalog, with the layers that the case asks for."""
    path = ROOT / "models" / "architectures" / (case["model"].replace("/", "--") + ".json")
    fields = json.loads(path.read_text(encoding="utf-8"))["config"]
    fields = {key: value for key, value in fields.items() if key not in ("dtype", "torch_dtype", "architectures")}
    fields["num_hidden_layers"] = case["layers"]
    if isinstance(fields.get("layer_types"), list):
        fields["layer_types"] = fields["layer_types"][: case["layers"]]
    return transformers.AutoConfig.for_model(fields.pop("model_type"), **fields)


def make_model(case: Row, device: str) -> Any:
    config = configuration(case)
    config.use_cache = False
    attention = "flash_attention_2" if case["attention"] == "fa2" else case["attention"]
    with torch.device(device):
        model = transformers.AutoModelForCausalLM.from_config(
            config, dtype=DTYPES[case["dtype"].split("_")[0]], attn_implementation=attention
        )
    model.train()
    if case["checkpointing"] != "none":
        reentrant = case["checkpointing"] == "reentrant"
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": reentrant})
    return model


def make_optimizer(case: Row, parameters: Any) -> Any:
    form = {name: name == case["optimizer_impl"] for name in ("foreach", "fused")}
    kind = {"adamw": torch.optim.AdamW, "adam": torch.optim.Adam, "sgd": torch.optim.SGD}[case["optimizer"]]
    return kind(parameters, lr=1e-6, weight_decay=case["weight_decay"], **form)


def loss_of(case: Row, model: Any, ids: torch.Tensor) -> torch.Tensor:
    """The heads by their names in docs/training.md."""
    if case["loss"] == "hf_loss":
        loss: torch.Tensor = model(input_ids=ids, labels=ids).loss
        return loss
    logits = model(input_ids=ids).logits
    if case["loss"] == "logprob_fp32":
        logits = logits.float()
    elif case["loss"] != "logprob_bf16":
        raise SystemExit(f"the head {case['loss']} is not known here")
    return -torch.log_softmax(logits, dim=-1).gather(-1, ids.unsqueeze(-1)).mean()


def attention_of(case: Row, cuda: bool) -> Any:
    """What the steps run in: SDPA keeps to one kernel, so that the row says which."""
    backend = SDPBackend.FLASH_ATTENTION if cuda and case["dtype"] != "fp32" else SDPBackend.MATH
    return sdpa_kernel(backend) if case["attention"] == "sdpa" else contextlib.nullcontext()


class Meter:
    """Highest allocated and reserved bytes of each phase of the last step; nothing on a CPU."""

    def __init__(self, cuda: bool) -> None:
        self.cuda = cuda
        self.began = 0.0
        self.seconds: list[dict[str, float]] = [{} for _ in range(STEPS + TIMED_STEPS)]
        self.allocated: dict[str, int] = {}
        self.reserved: dict[str, int] = {}
        self.first_step = 0

    def begin(self) -> None:
        if self.cuda:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
        self.began = time.perf_counter()

    def end(self, phase: str, step: int) -> None:
        if not self.cuda:
            return
        torch.cuda.synchronize()
        spent = self.seconds[step]
        spent[phase] = spent.get(phase, 0.0) + time.perf_counter() - self.began
        allocated = torch.cuda.max_memory_allocated()
        if step == 0:
            self.first_step = max(self.first_step, allocated)
        elif step < STEPS:
            self.allocated[phase] = max(self.allocated.get(phase, 0), allocated)
            self.reserved[phase] = max(self.reserved.get(phase, 0), torch.cuda.max_memory_reserved())


def used_by_process() -> int:
    """What NVML counts on the device: nobody else is expected on it."""
    free, total = torch.cuda.mem_get_info()
    return int(total - free)


def train(case: Row, model: Any, optimizer: Any, meter: Meter, device: str, steps: range) -> None:
    ids = torch.randint(0, model.config.vocab_size, (case["batch"], case["seq"]), device=device)
    autocast = case["dtype"].endswith("autocast_bf16")
    for step in steps:
        for _ in range(case["grad_accum"]):
            meter.begin()
            with torch.autocast(device, dtype=torch.bfloat16) if autocast else contextlib.nullcontext():
                loss = loss_of(case, model, ids)
            meter.end("forward", step)
            meter.begin()
            loss.backward()
            meter.end("backward", step)
            del loss
        meter.begin()
        if case["clip"]:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        meter.end("optimizer", step)
        optimizer.zero_grad()


def device_row(meter: Meter, context: int) -> Row:
    properties = torch.cuda.get_device_properties(0)
    return {
        "gpu": properties.name,
        "total_bytes": properties.total_memory,
        "capability": f"{properties.major}.{properties.minor}",
        "cuda": torch.version.cuda,
        "context_bytes": context,
        "reserved_peak_bytes": max(meter.reserved.values()),
        "reserved_by_phase": meter.reserved,
        "process_bytes": used_by_process(),
        "allocator": os.environ.get("PYTORCH_CUDA_ALLOC_CONF", ""),
        "retries": torch.cuda.memory_stats()["num_alloc_retries"],
    }


def row_of(case: Row, model: Any, optimizer: Any, meter: Meter, device: Row, snapshot: Row) -> Row:
    parameters = list(model.parameters())
    states = [value for state in optimizer.state.values() for value in state.values() if torch.is_tensor(value)]
    return {
        **case,
        "sharding": None,
        "peft": None,
        "parameters": sum(p.numel() for p in parameters),
        "parameter_bytes": sum(p.nbytes for p in parameters),
        "optimizer_state_bytes": sum(s.nbytes for s in states if s.is_cuda),
        "peak_bytes": max(meter.allocated.values()),
        "peaks_by_phase": {phase: {"bytes": value} for phase, value in meter.allocated.items()},
        "first_step_peak_bytes": meter.first_step,
        "live_at_peak_top15": live_at_peak(snapshot)[:15],
        "seconds_by_phase": {phase: round(min(step[phase] for step in meter.seconds[STEPS:]), 6) for phase in PHASES},
        "device": device,
        "versions": {
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "python": platform.python_version(),
        },
    }


def main() -> None:
    settings = json.load(sys.stdin)
    case: Row = settings["case"]
    cuda = not settings["rehearse"]
    if not cuda:
        case.update(layers=2, seq=16)
    device = "cuda" if cuda else "cpu"
    context = 0
    if cuda:
        torch.zeros(1, device=device)
        torch.cuda.synchronize()
        context = used_by_process() - torch.cuda.memory_reserved()
        torch.cuda.memory._record_memory_history(max_entries=2_000_000, stacks="python")
    transformers.logging.set_verbosity_error()
    model = make_model(case, device)
    gc.collect()
    gc.disable()  # storages die by reference counts, as in the executed rows
    meter = Meter(cuda)
    optimizer = make_optimizer(case, model.parameters())
    with attention_of(case, cuda):
        train(case, model, optimizer, meter, device, range(STEPS))
    if not cuda:
        print(json.dumps({"id": case["id"]}))
        return
    seen = device_row(meter, context)
    snapshot: Row = torch.cuda.memory._snapshot()
    if settings["snapshot"]:
        Path(settings["snapshot"]).write_bytes(gzip.compress(json.dumps(requests_of(snapshot)).encode()))
    torch.cuda.memory._record_memory_history(enabled=None)
    with attention_of(case, cuda):
        train(case, model, optimizer, meter, device, range(STEPS, STEPS + TIMED_STEPS))
    print(json.dumps(row_of(case, model, optimizer, meter, seen, snapshot)))


if __name__ == "__main__":
    main()
