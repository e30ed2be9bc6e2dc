"""Makes tests/data/executed_slime_fsdp.jsonl: slime's FSDP backend, its own step executed as rank 0 of PyTorch's fake process group.

    python benchmarks/oracle/execute_slime_fsdp.py SLIME... [--output tests/data/executed_slime_fsdp.jsonl]

Every SLIME is a folder of a release, 0.2.0 to 0.2.2. FSDPTrainRayActor._train_step and _compute_log_prob, apply_fsdp2 and the functions
of the loss (slime/backends/fsdp_utils/actor.py) run as they are, on fake tensors, around FSDP2's own code. log_softmax and gather are
compiled there: inductor writes the program (inductor_program.py), and what that allocates and frees is done. The parts of a
packed batch are cut by slime's own function, outside of every mode, because it looks at numbers. The model has its cache of keys and
values, as slime leaves it. Lines are those of execute.py; rows of a pass for log-probs say forward_only.
"""

from __future__ import annotations

import argparse
import ast
import gc
import re
import types
from pathlib import Path
from typing import Any

import execute_fsdp1
import execute_parallel
import sharded
import torch
import torch.distributed as dist
import torch.nn.functional as F
import transformers
import transformers.masking_utils
from execute import ROOT, SMALL, Row
from inductor_program import DTYPES, Inductor, Program, indented
from row_lines import write_rows
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import _disable_current_modes
from trl_code import definitions, load

ACTOR = "slime/backends/fsdp_utils/actor.py"
NARROW: Row = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 1, "num_attention_heads": 2}
NARROW |= {"num_key_value_heads": 2, "vocab_size": 40000, "max_position_embeddings": 16384}
CONFIGS: dict[str, Row] = {
    "narrow": {"model_type": "llama", **SMALL, **NARROW},
    "narrow, tied": {"model_type": "qwen2", **SMALL, **NARROW, "tie_word_embeddings": True},
    "qwen3, 5 layers": {"model_type": "qwen3", **SMALL, "num_hidden_layers": 5, "head_dim": 64, "vocab_size": 8192},
    "llama, 6 layers": {"model_type": "llama", **SMALL, "num_hidden_layers": 6, "vocab_size": 4096},
}
RESPONSES = (3, 5)  # of eight parts of a sequence
# config, ranks, tokens, checkpointed, with a KL term
Case = tuple[str, int, int, bool, bool]
CASES: list[Case] = [
    *(("narrow", 2, tokens, True, False) for tokens in (256, 1000, 2048, 4096)),
    *(("narrow, tied", 4, tokens, False, True) for tokens in (512, 3000)),
    *(("qwen3, 5 layers", ranks, 2048, again, True) for ranks in (2, 8) for again in (False, True)),
    *(("llama, 6 layers", 4, tokens, again, False) for tokens in (512, 4096) for again in (False, True)),
]


def on_cpu(program: Program) -> Any:
    """The program's allocations and frees, its kernels left out."""
    lines = [line for line in program.lines if not re.match(r"(with |#|torch\.cuda\.|raw_stream|assert_|triton_)", line)]
    shim = types.SimpleNamespace(**{dtype: getattr(torch, dtype) for dtype in DTYPES})
    make = lambda shape, stride, dtype: torch.empty_strided(shape, stride, dtype=dtype)  # noqa: E731
    names = {"torch": shim, "empty_strided_cuda": make, "reinterpret_tensor": torch.as_strided, "copy_if_misaligned": lambda x: x}
    exec(compile("\n".join(["def call(args):", *indented(lines)]), "generated", "exec"), names)
    return names["call"]


class Compiled(torch.autograd.Function):
    """CompiledFunction of AOTAutograd: the forward program's further results are saved."""

    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, targets: torch.Tensor, programs: list[Any]) -> torch.Tensor:
        out = programs[0]([logits, targets])
        ctx.save_for_backward(*out[1:])
        ctx.backward_program = programs[1]
        return out[0]

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return ctx.backward_program([*ctx.saved_tensors, *gradients])[0], None, None


class Selective:
    """selective_log_softmax_compiled, one program for each number of rows; a pass without gradients has one of its own."""

    inductor = Inductor()
    programs: dict[Any, list[Any]] = {}  # noqa: RUF012  # of all releases, whose function is one

    def __init__(self, function: Any) -> None:
        self.function = function

    def compile(self, rows: int, vocab: int) -> None:
        for trains in (True, False) if (rows, vocab, True) not in self.programs else ():
            torch._dynamo.reset()
            self.inductor.programs = []
            logits = torch.zeros(rows, vocab, requires_grad=trains)
            targets = torch.zeros(rows + 1, dtype=torch.int64)[1:]
            with torch.set_grad_enabled(trains):
                out = torch.compile(self.function, backend=self.inductor, dynamic=False)(logits, targets)
                if trains:
                    out.sum().backward()
            self.programs[rows, vocab, trains] = [on_cpu(program) for program in self.inductor.programs]

    def __call__(self, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        trains = torch.is_grad_enabled()
        programs = self.programs[(*logits.shape, trains)]
        return Compiled.apply(logits, targets, programs) if trains else programs[0]([logits, targets])[0]


class Nothing:
    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: Any) -> None:
        pass


def annotated_away(nodes: list[ast.stmt]) -> list[ast.stmt]:
    """Annotations of variables inside of functions go too."""
    for node in nodes:
        for inner in ast.walk(node):
            if isinstance(inner, ast.arg | ast.FunctionDef):
                inner.annotation = inner.returns = None  # type: ignore[attr-defined]
    return nodes


def functions_of(folder: Path) -> tuple[Row, Any]:
    """Names of the release's actor.py, and its class."""
    path = folder / ACTOR
    text = path.read_text(encoding="utf-8")
    loss = "get_logprob_and_entropy" + ("_with_cp" if "def get_logprob_and_entropy_with_cp" in text else "")
    wanted = {"selective_log_softmax_raw", "gather_log_probs_packed", loss, "sum_of_sample_mean", "apply_fsdp2"}
    names: Row = {"torch": torch, "dist": dist, "F": F, "os": None}
    load(annotated_away(definitions(path, wanted | ({"sum_of_token"} if "def sum_of_token" in text else set()))), names)
    utils = folder / "slime/utils/ppo_utils.py"
    load(annotated_away(definitions(utils, {"compute_approx_kl", "compute_policy_loss"})), names)
    packing = load(
        annotated_away(definitions(folder / "slime/backends/fsdp_utils/data_packing.py", {"unpack_sequences"})), {"torch": torch}
    )

    def unpack(batch: Row) -> Any:
        with _disable_current_modes():
            return packing["unpack_sequences"](batch)

    class Quiet:
        @staticmethod
        def info(*_: Any) -> None:
            pass

    names |= {"unpack_sequences": unpack, "logger": Quiet, "timer": lambda _name: Nothing(), "tqdm": lambda x, **_: x}
    names |= {"get_gloo_group": lambda: None}
    names["selective_log_softmax_compiled"] = Selective(names["selective_log_softmax_raw"])
    log_probs = "_compute_log_prob" if "def _compute_log_prob" in text else "compute_log_prob"
    inputs = "_get_model_inputs_args" if "def _get_model_inputs_args" in text else "get_model_inputs_args"
    methods = definitions(path, {"_train_step", log_probs, inputs}, "FSDPTrainRayActor")
    names = load([ast.ClassDef("Actor", [], [], annotated_away(methods), [])], names)
    names["log_probs"] = log_probs
    return names, names["Actor"]


def arguments(kl: bool) -> types.SimpleNamespace:
    out = types.SimpleNamespace(true_on_policy_mode=False, rollout_temperature=1.0, use_rollout_logprobs=False, use_opsm=False)
    out.__dict__.update(advantage_estimator="grpo", eps_clip=0.2, eps_clip_high=0.28, use_tis=False, entropy_coef=0.0, fp16=False)
    out.__dict__.update(calculate_per_token_loss=False, use_kl_loss=kl, kl_loss_type="low_var_kl", kl_loss_coef=0.0)
    out.__dict__.update(use_unbiased_kl=False, global_batch_size=8, clip_grad=1.0)
    return out


def batch_of(tokens: int, kl: bool) -> Row:
    """Two sequences, as pack_sequences puts them together; slime keeps numbers on the host."""
    lengths = [tokens // 2, tokens - tokens // 2]
    responses = [length * part // 8 for length, part in zip(lengths, RESPONSES, strict=True)]
    flat = torch.ones(sum(responses))
    out: Row = {
        "tokens": torch.ones(tokens, dtype=torch.int64),
        "loss_masks": torch.ones(sum(responses), dtype=torch.int32),
        "position_ids": torch.cat([torch.arange(length) for length in lengths]).int(),
        "cu_seqlens": torch.tensor([0, lengths[0], tokens], dtype=torch.int32),
        "rewards": torch.ones(2),
        "raw_reward": [1, 1],
        "response_lengths": responses,
        "advantages": flat,
        "returns": flat.clone(),
        "rollout_log_probs": torch.empty(0),
        "log_probs": torch.zeros(tokens - 1),
    }
    if kl:
        out["ref_log_probs"] = torch.zeros(tokens - 1)
    return out


def build(config: Row, again: bool) -> Any:
    fields = {key: value for key, value in config.items() if key != "model_type"}
    settings = transformers.AutoConfig.for_model(config["model_type"], **fields)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(settings, dtype=torch.float32, attn_implementation="eager")
    model.config._attn_implementation = "executed"
    model._no_split_modules = sorted(model._no_split_modules)  # a list in transformers 4
    model.train()
    if again:
        model.gradient_checkpointing_enable({"use_reentrant": True})  # what transformers 4 takes where nothing is said
    return model


def execute(folder: Path, case: Case) -> Row:
    name, ranks, tokens, again, kl = case
    names, actor_class = functions_of(folder)
    config = CONFIGS[name]
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=ranks)
    mesh = init_device_mesh("cpu", (ranks,))
    model = build(config, again)
    fake, lives = FakeTensorMode(allow_non_fake_inputs=True), sharded.ResizedParts()
    lives.pause_propagation()
    peaks: Row = {}
    made: Any = object.__new__(actor_class)
    made.__dict__.update(args=arguments(kl), dp_size=ranks, cp_size=1, cp_rank=0, cp_group=None, ref_model=None)
    made.fsdp_cpu_offload = False
    made.prof = types.SimpleNamespace(iterate_train_log_probs=lambda x: x)
    batches = [batch_of(tokens, kl) for _ in range(4)]
    backward = torch.Tensor.backward

    def marked(loss: torch.Tensor, *given: Any, **options: Any) -> None:
        peaks["forward"] = resident + lives.highest
        lives.highest = lives.live
        backward(loss, *given, **options)
        peaks["backward"] = resident + lives.highest

    with fake:
        sharded.on_fake_tensors(model)
        made.model = names["apply_fsdp2"](model, mesh=mesh, cpu_offload=False, **extra(names))
        gc.collect()
        gc.disable()
        tensors = [*model.parameters(), *model.buffers()]
        resident = sum(lives.own(t.to_local() if isinstance(t, DTensor) else t) for t in tensors)
        held = [(t.to_local() if isinstance(t, DTensor) else t).untyped_storage() for t in tensors]
        del tensors
        sharded.ResizedParts.now = lives
        torch.Tensor.backward = marked  # type: ignore[method-assign]
        with lives:
            while batches:
                lives.highest = lives.live
                getattr(made, names["log_probs"])("actor", [batches.pop()])
                peaks["log_probs"] = resident + lives.highest
                lives.highest = lives.live
                made._train_step(packed_batch=batches.pop(), reported_accum={}, mbs_id=0, grad_accum=[])
                for p in model.parameters():
                    p.grad = None
        torch.Tensor.backward = backward  # type: ignore[method-assign]
        sharded.ResizedParts.now = None
        gc.enable()
    del held
    dist.destroy_process_group()
    return peaks


def extra(names: Row) -> Row:
    """0.2.0 hands no arguments on."""
    return {"args": arguments(False)} if "args" in names["apply_fsdp2"].__code__.co_varnames else {}


def job_of(case: Case, forward_only: bool) -> Row:
    _name, ranks, tokens, again, _kl = case
    trainer: Row = {
        "engine": "fsdp2",
        "layout": f"d{ranks}",
        "kernels": "hf_flash",
        "precision": {"storage": "fp32", "compute": "bf16", "reduce": "fp32"},
        "autocast": False,
        "recompute": "full" if again else "none",
        "reentrant": True,
        "optimizer": "sgd",
        "head": "slime_fsdp",
        "kernel_internals": False,
        "micro_batches": 1,
        "root_reshard": False,
        "sequences_per_micro_batch": 1,
        "sequence_tokens": tokens,
    }
    return {"framework": "torch", "trainer": trainer, "apart": {"forward_only": forward_only}}


def stand_in() -> None:
    execute_fsdp1.stand_in()
    sharded.follow_resizing()
    transformers.AttentionInterface.register("executed", execute_parallel.attend)
    transformers.masking_utils.ALL_MASK_ATTENTION_FUNCTIONS["executed"] = lambda *_, **__: None
    transformers.masking_utils.find_packed_sequence_indices = lambda *_, **__: None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("slime", type=Path, nargs="+")
    parser.add_argument("--only", default="")
    parser.add_argument("--output", type=Path, default=ROOT / "tests" / "data" / "executed_slime_fsdp.jsonl")
    options = parser.parse_args()
    stand_in()
    by = f"torch {torch.__version__.split('+')[0]}, transformers {transformers.__version__}"
    lines: list[Row] = [{"config": name, "fields": fields} for name, fields in CONFIGS.items()]
    selective = functions_of(options.slime[0])[0]["selective_log_softmax_compiled"]
    for name, _, tokens, *_ in CASES:
        selective.compile(tokens - 1, CONFIGS[name]["vocab_size"])
    for folder in options.slime:
        release = folder.name.removeprefix("slime-v")
        for case in CASES:
            name, ranks, tokens, again, kl = case
            title = f"{release}/{name}/d{ranks}/s{tokens}" + ("/checkpointed" if again else "") + ("/kl" if kl else "")
            if options.only not in title:
                continue
            peaks = execute(folder, case)
            print(title, peaks, flush=True)
            source = f"{by}, slime {release} executed on fake tensors"
            log_probs = {"forward": peaks.pop("log_probs")}
            lines.append({"id": title, "config": name, "job": job_of(case, False), "source": source, "peaks": peaks})
            row = {"id": f"{title}/log_probs", "config": name, "job": job_of(case, True), "source": source}
            lines.append(row | {"peaks": log_probs})
    write_rows(options.output, lines)


if __name__ == "__main__":
    main()
