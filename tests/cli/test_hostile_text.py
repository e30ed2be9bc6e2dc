"""No text, however broken, ends in a defect, in bytes that are not UTF-8, or in marks that steer a terminal."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = os.environ.get("OOMPLAN_PROGRAM", str(ROOT / "build" / "oomplan"))
PIECES = {
    "not_utf8": b"\xff\xfe",
    "half_a_dash": b"\xe2\x80",
    "a_surrogate": b"\xed\xa0\x80",
    "turned": "\u202eabc".encode(),
    "isolated": "\u2067abc".encode(),
    "coloured": b"a\x1b[31m",
    "a_dash": "\u2013".encode(),
    "faces": ("😀" * 30).encode(),
    "cut_in_a_character": ("é" * 199 + "\u2013" * 9).encode(),
    "moved_by_one": ("a" + "é" * 300).encode(),
}
COMMANDS: list[list[bytes]] = [
    [b"%"],
    [b"estimate", b"%"],
    [b"search", b"--gpus", b"8", b"--model", b"%"],
    [b"search", b"--gpus", b"%", b"--model", b"qwen-7b"],
    [b"search", b"--gpus", b"8", b"--model", b"qwen-7b", b"--fix", b"%"],
    [b"model", b"%"],
    [b"facts", b"vllm", b"--version", b"%"],
    [b"serve", b"--", b"vllm", b"serve", b"%"],
    [b"serve", b"--", b"vllm", b"serve", b"Qwen/Qwen3-8B", b"--%", b"3"],
    [b"serve", b"--", b"vllm", b"serve", b"Qwen/Qwen3-8B", b"--dtype", b"%"],
    [b"serve", b"--", b"vllm", b"serve", b"Qwen/Qwen3-8B", b"--hf-overrides", b'{"%": "%"}'],
    [b"serve", b"--gpu", b"%", b"--", b"vllm", b"serve", b"Qwen/Qwen3-8B"],
    [b"read", b"--facts", b"%"],
]
FILES = [
    b"oomplan: 1\nmodel: %\n",
    b"oomplan: 1\nmodel: qwen-7b\ngpus: 8 x H100-80GB\ntrainer: {engine: fsdp2, layout: d4%t1}\n",
    b"%: 3\noomplan: 1\n",
    b'# %\nmodel: "%"\n',
    b"allocation_mode: sglang:d4%+fsdp:d4\nactor:\n  path: Qwen/Qwen2.5-7B\n",
    b'actor:\n  backend: "fsdp:d4%t1"\n  path: Qwen/Qwen2.5-7B\nrollout:\n  backend: sglang:d4\n'
    b"cluster:\n  n_nodes: 1\n  n_gpus_per_node: 8\n",
]
ON_FILES: list[list[bytes]] = [
    [b"estimate"],
    [b"estimate", b"--json"],
    [b"read", b"--facts"],
    [b"read"],
    [b"explain"],
    [b"model"],
]


def check(arguments: list[bytes]) -> None:
    done = subprocess.run([PROGRAM.encode(), *arguments], capture_output=True, timeout=120)
    assert done.returncode in (0, 1, 2), done.stderr
    for said in (done.stdout.decode(), done.stderr.decode()):  # either is UTF-8
        assert not set(said) & set("\u202e\u2067\x1b"), said


@pytest.mark.parametrize("piece", PIECES.values(), ids=list(PIECES))
def test_of_a_command(piece: bytes) -> None:
    for command in COMMANDS:
        check([word.replace(b"%", piece) for word in command])


@pytest.mark.parametrize("piece", PIECES.values(), ids=list(PIECES))
def test_of_a_file(piece: bytes, tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    for text in FILES:
        file.write_bytes(text.replace(b"%", piece))
        for command in ON_FILES:
            check([command[0], os.fsencode(file), *command[1:]])
    file.write_bytes(FILES[1].replace(b"%", b""))
    check([b"estimate", os.fsencode(file), b"trainer.layout=" + piece])
    check([b"estimate", os.fsencode(file), piece + b"=3"])


@pytest.mark.parametrize("escape", [r"\ud800", r"\udc00x", r"\u202e", r"\x80", r"\U0010ffff"])
def test_of_escapes(escape: str, tmp_path: Path) -> None:
    job = tmp_path / "job.yaml"
    job.write_text(f'oomplan: 1\nmodel: "{escape}"\ngpus: "{escape}"\n', encoding="utf-8")
    config = tmp_path / "config.json"
    config.write_text(f'{{"model_type": "{escape}", "architectures": ["{escape}"]}}', encoding="utf-8")
    for command in ON_FILES:
        check([command[0], os.fsencode(job), *command[1:]])
    check([b"model", os.fsencode(config)])
