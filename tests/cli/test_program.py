"""The program's manners: exit statuses, messages, streams, and that nothing in its input makes it crash."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = os.environ.get("OOMPLAN_PROGRAM", str(ROOT / "build" / "oomplan"))
JOB = ROOT / "examples" / "grpo.yaml"
COMMANDS = [
    "estimate",
    "explain",
    "advise",
    "search",
    "read",
    "snapshot",
    "model",
    "models",
    "serve",
    "op",
    "gpus",
    "schema",
    "facts",
    "version",
    "help",
]


def run(*arguments: str, text: str | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [PROGRAM, *arguments], input=text, capture_output=True, text=True, timeout=60, env={**os.environ, **environment}
    )


def values(text: str) -> str:
    """A job file without its comments, which tell where each value is from."""
    return "\n".join(line for line in (re.sub(r"(^| +)#.*", "", line) for line in text.splitlines()) if line)


def test_no_command_shows_help_and_fails() -> None:
    done = run()
    assert done.returncode == 2 and not done.stdout and "Usage" in done.stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_usage_and_an_example(command: str) -> None:
    done = run(command, "--help")
    assert done.returncode == 0 and not done.stderr
    assert done.stdout.startswith(f"Usage: oomplan {command}")
    assert f"\n  oomplan {command}" in done.stdout
    assert done.stdout == run("help", command).stdout


@pytest.mark.parametrize(
    ("version", "warning"),
    [("99", "vllm 99 has not been read: answered as "), ("0.19.7", "the nearest older one that is known"), ("0.19.1", "")],
)
def test_facts_of_a_version_that_was_not_read_say_so(version: str, warning: str) -> None:
    done = run("facts", "vllm", "--version", version)
    assert done.returncode == 0
    assert done.stdout.startswith("engine")
    assert (warning in done.stderr) if warning else done.stderr == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["estimte"], "did you mean 'estimate'?"),
        ([str(JOB)], "a job file follows its command"),
        (["estimate"], "no job file"),
        (["estimate", "actor.x=1"], "the job file before the overrides"),
        (["estimate", "no-such.yaml"], "no-such.yaml: cannot be opened: No such file or directory"),
        (["estimate", str(ROOT)], "found a folder, expected a job file"),
        (["estimate", "/dev/zero"], "found a device, expected a job file"),
        (["estimate", ""], "an empty file name"),
        (["estimate", str(JOB), "--jsno"], "did you mean '--json'?"),
        (["estimate", str(JOB), "--color", "sometimes"], "expected always, never or auto"),
        (["estimate", str(JOB), "--models", "/no/such"], "/no/such"),
        (["estimate", str(JOB), "actor.layuot=d4"], "layout"),
        (["estimate", str(JOB), "actor.layout"], "actor.layout"),
        (["search"], "oomplan search FILE"),
        (["search", "--model", "qwen2.5-7b"], "--gpus"),
        (["search", "--model", "qwen2.5-7b", "--gpus", "many"], "--gpus: found 'many'"),
        (["search", "--model", "qwen2.5-7b", "--gpus", "0"], "--gpus: found '0'"),
        (["search", str(JOB), "--allow", "numerixs"], "did you mean 'numerics'?"),
        (["search", str(JOB), "--max", "token"], "did you mean 'tokens'?"),
        (["model"], "no model"),
        (["model", "qwen2.5-7c"], "qwen2.5"),
        (["facts", "sglan"], "did you mean 'sglang'?"),
        (["facts", "vllm", "--version", "new"], "numbers joined by dots"),
        (["gpus", "h100"], "no more than 0"),
        (["help", "serch"], "did you mean 'search'?"),
        (["--jason"], "no command"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_input_is_told(arguments: list[str], message: str) -> None:
    done = run(*arguments)
    assert done.returncode == 2, done.stdout
    assert message in done.stderr and not done.stdout
    assert all(line.startswith("oomplan: ") for line in done.stderr.splitlines())
    with_json = run(*arguments, "--json")
    assert with_json.returncode == 2
    assert json.loads(with_json.stdout)["schema"] == "oomplan.error/1"


def test_all_problems_at_once() -> None:
    done = run("estimate", "-", text="oomplan: 1\ngpus: 8 x H100-80GX\nmodl: qwen2.5-7b\nactor: {layuot: d8}\n")
    assert done.returncode == 2 and len(done.stderr.splitlines()) >= 3
    assert "<stdin>:" in done.stderr


def test_standard_input_and_options_in_front() -> None:
    from_file, from_input = run("read", str(JOB)), run("read", "-", text=JOB.read_text())
    assert from_file.returncode == from_input.returncode == 0
    assert values(from_file.stdout) == values(from_input.stdout)
    assert run("--json", "read", str(JOB)).stdout == run("read", str(JOB), "--json").stdout


def test_read_is_a_fixed_point() -> None:
    once = run("read", str(JOB)).stdout
    assert values(run("read", "-", text=once).stdout) == values(once)


def test_piped_text_is_plain() -> None:
    done = run("estimate", str(JOB))
    assert done.stdout.isascii() and "\x1b" not in done.stdout
    assert done.returncode == (0 if done.stdout.startswith("fits") else 1)
    assert "\x1b[" in run("estimate", str(JOB), "--color", "always").stdout
    assert "\x1b[" in run("estimate", str(JOB), "--color=always", NO_COLOR="1").stdout


def test_a_full_disk_and_a_closed_pipe() -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run([PROGRAM, "gpus"], stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 2 and "cannot be written" in done.stderr
    piped = subprocess.run(f"'{PROGRAM}' facts --json | head -c 10 >/dev/null", shell=True, stderr=subprocess.PIPE, text=True)
    assert piped.returncode == 0 and not piped.stderr


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x00" * 100,
        b"\xff\xfe\x00\x01",
        b"\x80\x1f oomplan: 1",
        b"[" * 100_000,
        b"{" * 100_000,
        b"? " * 100_000,
        b"oomplan: 1\n" * 1000,
        b"a: &a [1,2]\nb: *b\n",
        b"oomplan: 1\ngpus: \x1b[31mred\n",
        b"oomplan: 99999999999999999999\n",
        b"- 1\n- 2\n",
        b"oomplan: 1\ngpus: 8 x H100-80GB\nmodel: ../../../../etc/passwd\nactor: {}\n",
    ],
    ids=lambda data: repr(data[:12]),
)
def test_garbage(data: bytes) -> None:
    for command in ("estimate", "read", "search"):
        done = subprocess.run([PROGRAM, command, "-"], input=data, capture_output=True, timeout=60)
        assert done.returncode == 2, done.stderr[-300:]
        assert done.stderr.startswith(b"oomplan: ") and b"\x1b" not in done.stderr


def test_version() -> None:
    assert run("version").stdout == run("--version").stdout
    assert run("version").stdout.startswith("oomplan ")


def test_an_interrupted_search_says_so() -> None:
    words = ["search", "--gpus", "512", "--model", "qwen2.5-72b", "--allow", "numerics"]
    for json_form in ([], ["--json"]):
        process = subprocess.Popen([PROGRAM, *words, *json_form], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        time.sleep(0.4)
        process.send_signal(signal.SIGINT)
        began = time.monotonic()
        out, error = process.communicate(timeout=60)
        assert process.returncode == 130, error
        assert time.monotonic() - began < 2
        if json_form:
            assert json.loads(out)["interrupted"] is True
        else:
            assert out.splitlines()[1].startswith("interrupted after ") and "what was found so far:" in out
            assert "nothing fits" not in out
