"""One word, one meaning: the program, Python, C++ and C estimate the same jobs, with the same verdict, probability and bytes."""

from __future__ import annotations

import ctypes
import json
import os
import random
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

import oomplan

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = Path(os.environ.get("OOMPLAN_PROGRAM", str(ROOT / "build" / "oomplan"))).resolve()
LIBRARY = Path(os.environ.get("OOMPLAN_C_LIBRARY", str(ROOT / "build" / "liboomplan_c.so")))
NOT_COMPARED = ("notes", "remedies", "job")  # the program adds remedies, C knows no file's name


def drawn(n: int) -> list[str]:
    """Jobs of trainers alone, of servers alone and of both."""
    draw = random.Random(20261123)
    out: list[str] = []
    while len(out) < n:
        gpus = draw.choice((1, 2, 4, 8))
        trainer = {
            "engine": "fsdp2" if gpus > 1 else "single",
            "recompute": draw.choice(("none", "full")),
            "sequence_tokens": draw.choice((1000, 2048, 5000)),
            "sequences_per_micro_batch": draw.choice((1, 2, 3, 7)),
            "micro_batches": draw.choice((1, 2, 3)),
        }
        job: dict[str, Any] = {
            "oomplan": 1,
            "gpus": f"{gpus} x {draw.choice(('H100-80GB', 'A100-40GB', 'L4-24GB'))}",
            "model": draw.choice(("qwen2.5-0.5b", "qwen2.5-1.5b", "qwen3-0.6b", "meta-llama/Llama-3.2-1B")),
        }
        if draw.random() < 0.3:
            job["server"] = {"engine": draw.choice(("vllm", "sglang")), "layout": "d1"}
        else:
            job["framework"] = "torch"
            if gpus > 1:
                trainer["layout"] = f"d{gpus}"
            job["trainer"] = trainer
        try:
            oomplan.read(job)
        except oomplan.InputError:
            continue
        out.append(json.dumps(job))
    return out


def worst(answer: oomplan.Estimate) -> tuple[int, int]:
    gpu = answer.gpus[0]
    assert gpu.worst is not None
    return gpu.worst.capacity_needed_bytes, gpu.usable_bytes


def at_the_edge() -> list[str]:
    """Jobs that fit by their levels and not by the replay: others hold so much that the limit lies between the two."""
    out = []
    for name in ("sft_torch", "dpo_lora_7b", "grpo", "vlm_sft"):
        path = str(ROOT / "examples" / f"{name}.yaml")
        levels, usable = worst(oomplan.estimate(path, quick=True))
        replayed, _ = worst(oomplan.estimate(path))
        job = oomplan.read(path, f"others={usable - (levels + replayed) // 2}B")
        if levels < replayed:
            out.append(job.to_yaml())
    return out


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("doors")
    texts = [path.read_text() for path in sorted((ROOT / "examples").glob("*.yaml"))]
    texts += [(ROOT / "examples" / "areal" / "grpo_7b.yaml").read_text(), *drawn(12), *at_the_edge()]
    paths = [folder / f"{number}.yaml" for number in range(len(texts))]
    for path, text in zip(paths, texts):
        path.write_text(text)
    for number, text in enumerate(SCRIPTS):
        paths.append(folder / f"{number}.sh")
        paths[-1].write_text(text)
    return paths


SCRIPTS = [
    "#!/bin/bash\nTP=2\nvllm serve Qwen/Qwen3-8B --tensor-parallel-size $TP --max-model-len $((4 * 1024)) 2>&1 | tee log\n",
    "#!/bin/bash\nARGS=(--tp 4\n  --mem-fraction-static 0.8 # of it\n)\nsrun -N 1 python3 -m sglang.launch_server --model-path Qwen/Qwen3-8B ${ARGS[@]}\n",
]

Answers = list[tuple[dict[str, Any], dict[str, Any]]]  # of every file: estimate and quick


def by_program(files: list[Path]) -> Answers:
    def one(path: Path, *flags: str) -> dict[str, Any]:
        done = subprocess.run([str(PROGRAM), "estimate", str(path), "--json", *flags], capture_output=True, text=True)
        assert done.returncode in (0, 1), done.stdout + done.stderr
        answer: dict[str, Any] = json.loads(done.stdout)
        assert done.returncode == (0 if answer["fits"] else 1)
        return answer

    return [(one(path), one(path, "--quick")) for path in files]


def by_python(files: list[Path]) -> Answers:
    jobs = [oomplan.read(path) for path in files]
    one = [(oomplan.estimate(job).to_dict(), oomplan.estimate(job, quick=True).to_dict()) for job in jobs]
    many = zip(oomplan.estimate_many(jobs, threads=2), oomplan.estimate_many(jobs, quick=True))
    assert one == [(full.to_dict(), quick.to_dict()) for full, quick in many]
    return one


def by_cpp(files: list[Path], prefix: Path, folder: Path) -> Answers:
    libraries = next(prefix.rglob("oomplan.pc")).parent
    flags = subprocess.run(
        ["pkg-config", "--cflags", "--libs", "oomplan"],
        env={**os.environ, "PKG_CONFIG_PATH": str(libraries)},
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split()
    door = folder / "doors"
    subprocess.run(["c++", "-std=c++20", str(ROOT / "tests" / "doors" / "doors.cpp"), *flags, "-o", str(door)], check=True)
    done = subprocess.run([str(door), *map(str, files)], check=True, capture_output=True, text=True)
    texts = done.stdout.split("\x1e")[:-1]
    return [(json.loads(a), json.loads(b)) for a, b in zip(texts[::2], texts[1::2])]


def by_c(files: list[Path]) -> Answers:
    c = ctypes.CDLL(str(LIBRARY))
    c.oomplan_open.restype = ctypes.c_void_p
    c.oomplan_text_data.restype = ctypes.c_char_p
    c.oomplan_text_data.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    c.oomplan_text_free.argtypes = [ctypes.c_void_p]
    catalog = ctypes.c_void_p(c.oomplan_open(None, None))

    def one(call: Any, text: bytes) -> dict[str, Any]:
        out = ctypes.c_void_p()
        status = call(catalog, text, ctypes.c_size_t(len(text)), None, ctypes.byref(out))
        answer: dict[str, Any] = json.loads(c.oomplan_text_data(out, None))
        c.oomplan_text_free(out)
        assert status == (0 if answer["fits"] else 1)
        return answer

    texts = [path.read_bytes() for path in files]
    answers = [(one(c.oomplan_estimate, text), one(c.oomplan_estimate_quick, text)) for text in texts]
    c.oomplan_close(catalog)
    return answers


def compared(answers: Answers) -> Answers:
    def without(answer: dict[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in answer.items() if key not in NOT_COMPARED}

    return [(without(full), without(quick)) for full, quick in answers]


def test_four_doors(files: list[Path], prefix: Path, tmp_path: Path) -> None:
    known = compared(by_program(files))
    others = {"Python": by_python(files), "C++": by_cpp(files, prefix, tmp_path), "C": by_c(files)}
    for door, answers in others.items():
        assert len(answers) == len(files)
        for path, mine, theirs in zip(files, known, compared(answers)):
            assert mine == theirs, f"{door}: {path.read_text()}"
    for full, quick in known:
        assert (full["replayed"], quick["replayed"]) == (True, False)
        assert quick["fit_probability"] is None
        assert full["gpus"] and full["verdict"] and quick["verdict"]
    # What makes the word matter: the two differ where the replay needs more than the levels.
    assert sum(quick["fits"] and not full["fits"] for full, quick in known) >= 2


def test_check_says_what_estimate_says(files: list[Path]) -> None:
    """Also of jobs that fit by their levels alone."""
    for path in files:
        answer = subprocess.run([str(PROGRAM), "check", str(path)], capture_output=True, text=True)
        assert answer.returncode == (0 if oomplan.estimate(path).fits else 1), answer.stdout


HOSTILE = ("null", "[]", "{a: 1}", "-1", "0", "9223372036854775807", "x", "1.5", "True", '"${oc.env:NOPE}"')


def test_no_value_of_verls_keys_hurts() -> None:
    """Every key that a fact rests on, with values that it is not made for: a job, or an error with its place."""
    arr = "actor_rollout_ref"
    base = ["python3", "-m", "verl.trainer.main_ppo", f"{arr}.model.path=Qwen/Qwen3-8B", f"{arr}.rollout.name=vllm"]
    base += [f"{arr}.actor.use_dynamic_bsz=True", f"{arr}.actor.use_kl_loss=True", "critic.model.path=Qwen/Qwen3-8B"]
    said = subprocess.run(
        [PROGRAM, "read", "--facts", "--framework-version", "0.8.0", "--", *base], capture_output=True, text=True, check=True
    ).stdout
    keys = sorted(set(re.findall(r'"w": "((?:actor_rollout_ref|critic|data|trainer|algorithm)\.[\w.]+)"', said)))
    keys += [f"{arr}.{key}" for key in ("actor.ppo_max_token_len_per_gpu", "rollout.tensor_model_parallel_size", "rollout.n")]
    keys += ["trainer.nnodes", "trainer.n_gpus_per_node", "data.max_prompt_length", f"{arr}.actor.fsdp_config.fsdp_size"]
    read = refused = 0
    for key in keys:
        for value in HOSTILE:
            try:
                oomplan.read(command=[*base, f"{key}={value}"], framework_version="0.8.0")
                read += 1
            except oomplan.InputError as error:
                assert all(problem.found or problem.expected or problem.why for problem in error.problems)
                refused += 1
    assert read > 20 and refused > 20
