"""The C library, called as any other language would."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
LIBRARY = Path(os.environ.get("OOMPLAN_C_LIBRARY", str(ROOT / "build" / "liboomplan_c.so")))
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
    assert library.oomplan_abi() == 2
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
    request = json.dumps({"keep": 2, "allow": "speed", "threads": 1}).encode()
    assert library.oomplan_search(catalog, JOB, len(JOB), None, request, ctypes.byref(out)) in (0, 1)
    assert text(library, out)["schema"] == "oomplan.search/1"
    deep = b'{"fixed": ' + b"[" * 80_000 + b"]" * 80_000 + b"}"
    twice, typed, misspelt = b'{"keep": 2, "keep": 3}', b'{"fixed": ["layout", 4]}', b'{"fixed": ["layuot"]}'
    for wrong in (b"[]", b"{", b'{"kep": 2}', b'{"keep": 0}', b'{"allow": "all"}', deep, twice, typed, misspelt):
        assert library.oomplan_search(catalog, JOB, len(JOB), None, wrong, ctypes.byref(out)) == 2
        assert text(library, out)["schema"] == "oomplan.error/1"


def test_a_wrong_models_folder(library: ctypes.CDLL) -> None:
    error = ctypes.c_void_p()
    assert not library.oomplan_open(b"/no/such/folder", ctypes.byref(error))
    assert text(library, error)["schema"] == "oomplan.error/1"


def test_only_its_own_symbols(library: ctypes.CDLL) -> None:
    done = subprocess.run(["nm", "-D", "--defined-only", str(LIBRARY)], capture_output=True, text=True)
    names = {line.split()[-1] for line in done.stdout.splitlines()}
    assert names and all(name.startswith("oomplan_") for name in names), names
