"""The C library, called as any other language would."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
LIBRARY = Path(os.environ.get("OOMPLAN_C_LIBRARY", str(ROOT / "build" / "liboomplan_c.so")))
STOP = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
JOB = (ROOT / "examples" / "grpo.yaml").read_bytes()


@pytest.fixture(scope="module")
def library() -> ctypes.CDLL:
    if not LIBRARY.exists():
        pytest.skip("built without -DOOMPLAN_C=ON")
    c = ctypes.CDLL(str(LIBRARY))
    c.oomplan_version.restype = ctypes.c_char_p
    c.oomplan_open.restype = ctypes.c_void_p
    c.oomplan_open.argtypes = [ctypes.c_char_p, ctypes.c_void_p]
    c.oomplan_close.argtypes = [ctypes.c_void_p]
    for call in (c.oomplan_estimate, c.oomplan_explain):
        call.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_void_p]
    c.oomplan_search.argtypes = [
        ctypes.c_void_p,
        ctypes.c_char_p,
        ctypes.c_size_t,
        ctypes.c_char_p,
        ctypes.c_char_p,
        ctypes.c_void_p,
    ]
    c.oomplan_search_watched.argtypes = [*c.oomplan_search.argtypes[:-1], STOP, ctypes.c_void_p, ctypes.c_void_p]
    c.oomplan_text_data.restype = ctypes.c_char_p
    c.oomplan_text_data.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    c.oomplan_text_free.argtypes = [ctypes.c_void_p]
    return c


@pytest.fixture
def catalog(library: ctypes.CDLL) -> Iterator[int]:
    opened = library.oomplan_open(None, None)
    assert opened
    yield opened
    library.oomplan_close(opened)


def text(library: ctypes.CDLL, handle: ctypes.c_void_p) -> dict[str, Any]:
    size = ctypes.c_size_t()
    data = library.oomplan_text_data(handle, ctypes.byref(size))
    assert len(data) == size.value
    library.oomplan_text_free(handle)
    loaded: dict[str, Any] = json.loads(data)
    return loaded


def test_estimate(library: ctypes.CDLL, catalog: int) -> None:
    assert library.oomplan_abi() == 3
    out = ctypes.c_void_p()
    status = library.oomplan_estimate(catalog, JOB, len(JOB), None, ctypes.byref(out))
    answer = text(library, out)
    assert answer["schema"] == "oomplan.estimate/1"
    assert status == (0 if answer["fits"] else 1)
    assert answer["oomplan_version"] == library.oomplan_version().decode()


def test_overrides_and_errors(library: ctypes.CDLL, catalog: int) -> None:
    out = ctypes.c_void_p()
    assert library.oomplan_estimate(catalog, JOB, len(JOB), b"actor.layuot=d4\nactor.x=1", ctypes.byref(out)) == 2
    answer = text(library, out)
    assert answer["schema"] == "oomplan.error/1" and len(answer["problems"]) == 2
    assert library.oomplan_estimate(None, JOB, len(JOB), None, ctypes.byref(out)) == 2
    text(library, out)
    assert library.oomplan_estimate(catalog, None, 0, None, ctypes.byref(out)) == 2
    text(library, out)
    assert library.oomplan_estimate(catalog, JOB, len(JOB), None, None) == 3


def test_search(library: ctypes.CDLL, catalog: int) -> None:
    out = ctypes.c_void_p()
    request = json.dumps({"keep": 2, "allow": "speed", "threads": 1, "min_probability": 0.95}).encode()
    assert library.oomplan_search(catalog, JOB, len(JOB), None, request, ctypes.byref(out)) in (0, 1)
    answer = text(library, out)
    assert answer["schema"] == "oomplan.search/1" and answer["min_probability"] == 0.95
    deep = b'{"fixed": ' + b"[" * 80_000 + b"]" * 80_000 + b"}"
    twice, typed, misspelt = b'{"keep": 2, "keep": 3}', b'{"fixed": ["layout", 4]}', b'{"fixed": ["layuot"]}'
    unlikely = (b'{"min_probability": 1.5}', b'{"min_probability": "0.9"}')
    for wrong in (b"[]", b"{", b'{"kep": 2}', b'{"keep": 0}', b'{"allow": "all"}', deep, twice, typed, misspelt, *unlikely):
        assert library.oomplan_search(catalog, JOB, len(JOB), None, wrong, ctypes.byref(out)) == 2
        assert text(library, out)["schema"] == "oomplan.error/1"
    described = json.dumps({"keep": 1, "start": {"model": "qwen2.5-7b", "gpus": 8, "algorithm": "sft", "batch": 64}}).encode()
    assert library.oomplan_search(catalog, None, 0, None, described, ctypes.byref(out)) == 0
    assert text(library, out)["best"][0]["job_file"].startswith("# Supervised fine-tuning of Qwen/Qwen2.5-7B on 8 GPUs")
    for job, n in ((JOB, len(JOB)), (None, 0)):
        unknown = described.replace(b'"batch"', b'"bach"') if job is None else described
        assert library.oomplan_search(catalog, job, n, None, unknown, ctypes.byref(out)) == 2
        assert text(library, out)["schema"] == "oomplan.error/1"


# What takes long in each: layouts of many GPUs; what nothing fits on; schedules of pipelines; sizes; fractions.
SLOW = {
    "many_gpus": (["qwen2.5-72b", "512 x H100-80GB", "d64t4", "d256"], {"allow": "numerics"}),
    "nothing_fits": (["llama-3.1-405b", "8 x H100-80GB", "d1t4", "d4"], {}),
    "lengths": (["qwen2.5-72b", "64 x H100-80GB", "d8t4", "d32"], {"maximise": "length", "keep": 1000}),
    "pipeline": ("megatron_llama_70b.yaml", {"keep": 1000}),
    "server": ("serving.yaml", {"allow": "semantics", "keep": 1000}),
}


def slow_job(words: str | Sequence[str]) -> bytes:
    if isinstance(words, str):
        return (ROOT / "examples" / words).read_bytes()
    model, gpus, served, trained = words
    return (
        f"oomplan: 1\nmodel: {model}\ngpus: {gpus}\nprompt_tokens: 1024\nresponse_tokens: 8192\n"
        f"rollout: {{engine: sglang, layout: {served}}}\n"
        f"actor: {{engine: fsdp2, layout: {trained}, tokens_per_micro_batch: 16k}}\n"
    ).encode()


@pytest.mark.parametrize("name", SLOW)
@pytest.mark.parametrize("after", [0.0, 0.1, 0.7])
def test_a_search_that_is_stopped(library: ctypes.CDLL, catalog: int, name: str, after: float) -> None:
    words, request = SLOW[name]
    job, wish = slow_job(words), json.dumps(request).encode()
    began, seen = time.monotonic(), []

    def stop(context: int) -> int:
        assert context == 4711
        if time.monotonic() - began < after:
            return 0
        seen.append(time.monotonic())
        return 1

    out = ctypes.c_void_p()
    status = library.oomplan_search_watched(catalog, job, len(job), None, wish, STOP(stop), 4711, ctypes.byref(out))
    ended = time.monotonic()
    answer = text(library, out)
    assert answer["schema"] == "oomplan.search/1", answer
    if not seen:  # it was done before
        assert status in (0, 1) and not answer["interrupted"]
        return
    assert status == 4 and answer["interrupted"] is True
    assert len(seen) == 1 and ended - seen[0] < 0.2


def test_a_search_that_is_watched_answers_as_one_that_is_not(library: ctypes.CDLL, catalog: int) -> None:
    answers = []
    watched: list[Callable[[int], int] | None] = [None, lambda _: 0]
    for stop in watched:
        out = ctypes.c_void_p()
        given = STOP(stop) if stop else STOP()
        assert library.oomplan_search_watched(catalog, JOB, len(JOB), None, b'{"keep": 2}', given, None, ctypes.byref(out)) == 0
        answers.append(text(library, out))
    out = ctypes.c_void_p()
    assert library.oomplan_search(catalog, JOB, len(JOB), None, b'{"keep": 2}', ctypes.byref(out)) == 0
    assert answers == [text(library, out)] * 2
    wrong = STOP(lambda _: 1)
    assert library.oomplan_search_watched(catalog, JOB, len(JOB), b"x=1", None, wrong, None, ctypes.byref(out)) == 2
    assert text(library, out)["schema"] == "oomplan.error/1"


def test_a_wrong_models_folder(library: ctypes.CDLL) -> None:
    error = ctypes.c_void_p()
    assert not library.oomplan_open(b"/no/such/folder", ctypes.byref(error))
    assert text(library, error)["schema"] == "oomplan.error/1"


def test_only_its_own_symbols(library: ctypes.CDLL) -> None:
    done = subprocess.run(["nm", "-D", "--defined-only", str(LIBRARY)], capture_output=True, text=True)
    names = {line.split()[-1] for line in done.stdout.splitlines()}
    assert names and all(name.startswith("oomplan_") for name in names), names
