"""Nothing that is put into the program ends it, makes it wait, or is called a defect: numbers, structures, files and lengths.

Seconds are those of the processor: other tests run beside this one.
"""

from __future__ import annotations

import os
import resource
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = os.environ.get("OOMPLAN_PROGRAM", str(ROOT / "build" / "oomplan"))
NATIVE = str(ROOT / "examples" / "grpo.yaml")
AREAL = str(ROOT / "examples" / "areal" / "grpo_7b.yaml")
SERVE = ["serve", "--", "vllm", "serve", "Qwen/Qwen3-8B"]
MEGATRON = ["estimate", "--", "torchrun", "--nproc-per-node", "8", "pretrain_gpt.py", "--bf16", "--vocab-size", "1000"]
MEGATRON += ["--num-layers", "2", "--hidden-size", "64", "--num-attention-heads", "4", "--max-position-embeddings", "128"]
MEGATRON += ["--micro-batch-size", "1", "--seq-length", "128"]
SECONDS = 2.0
Run = Callable[..., "subprocess.CompletedProcess[bytes]"]


def run(*arguments: str, text: bytes = b"", **options: object) -> subprocess.CompletedProcess[bytes]:
    """The program's answer, checked for what no answer may be."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    environment = {**os.environ, **options.pop("environment", {})}  # type: ignore[dict-item]
    done: subprocess.CompletedProcess[bytes] = subprocess.run(
        [PROGRAM, *arguments],
        input=text,
        capture_output=True,
        timeout=60,
        env=environment,
        **options,  # type: ignore[call-overload]
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    told = [word[:80] for word in arguments[:8]], done.stderr[-500:]
    assert done.returncode in (0, 1, 2), (done.returncode, *told)
    assert b"Traceback" not in done.stderr and b"defect" not in done.stderr, told
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < SECONDS, told
    return done


NUMBERS = ["9223372036854775807", "-9223372036854775808", "9223372036854775808", "18446744073709551616", "2147483648", "0", "-1"]
NUMBERS += ["1e308", "-1e308", "1e309", "5e-324", "nan", ".nan", "inf", "-.inf", "0x7fffffffffffffff", "9" * 400, "1e" + "9" * 90]
NUMBERS += ["16EiB", "999999999TiB", "1_0", "\u0661\u0662", "1e18k", "-0", "8.5", ""]


def settings(file: str) -> list[str]:
    """Keys of everything that stands in the job."""
    out, path = [], [""]
    for line in run("read", file).stdout.decode().splitlines():
        bare = line.split("#")[0].rstrip()
        if ":" not in bare:
            continue
        depth = (len(bare) - len(bare.lstrip())) // 2
        path[depth:] = [bare.strip().split(":")[0]]
        if not bare.endswith(":"):
            out.append(".".join(path))
    return out


@pytest.mark.parametrize("number", NUMBERS, ids=lambda number: number[:20] or "nothing")
def test_numbers(number: str) -> None:
    keys = settings(NATIVE)
    assert len(keys) > 100
    for at in range(0, len(keys), 8):
        run("estimate", NATIVE, *[f"{key}={number}" for key in keys[at : at + 8]])
    for key in ("actor.mb_spec.max_tokens_per_mb", "gconfig.max_new_tokens", "cluster.n_nodes", "sglang.mem_fraction_static"):
        run("estimate", AREAL, f"{key}={number}")
    options: list[tuple[str, list[str]]] = [
        ("--keep", ["search", NATIVE]),
        ("--gpus", ["search", "--model", "qwen2.5-0.5b"]),
        ("--threads", ["search", "--model", "qwen2.5-0.5b", "--gpus", "1"]),
        ("--top", ["snapshot", "/dev/null"]),
        ("--diff", ["advise", NATIVE]),
        ("--requests", SERVE),
        ("--prompt", SERVE),
        ("--samples", SERVE),
    ]
    for option, command in options:
        run(command[0], option, number, *command[1:])
    for size in ("tokens", "hidden", "width"):
        run("op", "swiglu", *[f"{name}={number if name == size else 64}" for name in ("tokens", "hidden", "width")])
    for flag in ("--max-model-len", "--gpu-memory-utilization", "--tensor-parallel-size", "--max-num-seqs", "--block-size"):
        run(*SERVE, flag, number)


MEGATRON_SIZES = [
    "hidden-size",
    "ffn-hidden-size",
    "num-attention-heads",
    "num-layers",
    "kv-channels",
    "num-experts",
    "seq-length",
]
MEGATRON_SIZES += ["tensor-model-parallel-size", "pipeline-model-parallel-size", "context-parallel-size", "micro-batch-size"]
MEGATRON_SIZES += ["vocab-size", "padded-vocab-size", "global-batch-size", "moe-router-topk", "rotary-percent", "q-lora-rank"]
MEGATRON_SIZES += ["make-vocab-size-divisible-by", "decoder-first-pipeline-num-layers", "moe-layer-freq", "recompute-num-layers"]


@pytest.mark.parametrize("flag", MEGATRON_SIZES)
def test_numbers_of_megatron(flag: str) -> None:
    for number in NUMBERS:
        run(*MEGATRON, f"--{flag}", number)


def test_degrees_of_megatron_together() -> None:
    """Their product passed 2^64: a division by zero."""
    degrees = ["--tensor-model-parallel-size", "2147483648", "--pipeline-model-parallel-size", "2147483648"]
    assert run(*MEGATRON, *degrees, "--context-parallel-size", "4").returncode == 2
    assert run(*MEGATRON, "--num-experts", "4", "--moe-layer-freq", "[]*999999999").returncode == 2


MANY = 1_000_000
STRUCTURES = {
    "lists": b"[" * MANY,
    "maps": b"{a: " * MANY,
    "dashes": b"- " * MANY,
    "keys": b"? " * MANY,
    "colons": b"a: b: " * 100_000,
    "aliases": b"a: &a x\nb:\n" + b" - *a\n" * MANY,
    "anchors": b"a:\n" + b"".join(b" - &a%d x\n" % i for i in range(200_000)),
    "bomb": b"a0: &a0 [x,x,x,x]\n"
    + b"".join(b"a%d: &a%d [%s]\n" % (i, i, b",".join([b"*a%d" % (i - 1)] * 9)) for i in range(1, 30)),
    "merges": b"a0: &a0 {x0: 1}\n"
    + b"".join(b"a%d: &a%d {<<: [*a%d,*a%d], x%d: 1}\n" % (i, i, i - 1, i - 1, i) for i in range(1, 60)),
    "indents": b"".join(b" " * i + b"a:\n" for i in range(2500)),
    "documents": b"---\n" * MANY,
    "comments": b"#\n" * 3 * MANY,
    "a_long_key": b"a" * 7 * MANY + b": 1",
    "a_long_text": b'a: "' + b"\\n" * 3 * MANY + b'"',
    "interpolations": b'a: "' + b"${" * MANY + b'"',
    "marks": b"\xef\xbb\xbf" * MANY,
    "zeros": b"\0" * 5 * MANY,
    "a_hundred_megabytes": b"# " + b"x" * 100 * MANY,
    "json": b'{"segments": ' + b"[" * MANY,
    "numbers_in_json": b'{"segments": [' + b"1," * 3 * MANY + b"1]}",
    "pickled_lists": b"\x80\x02" + b"]" * 3 * MANY + b".",
    "pickled_marks": b"\x80\x02" + b"(" * 3 * MANY + b"t" * 3 * MANY + b".",
}
BEGINNINGS = {
    "nothing": b"",
    "native": b"oomplan: 1\nmodel: qwen-7b\ngpus: 8 x H100-80GB\n",
    "areal": b"experiment_name: a\nactor:\n  backend: fsdp:d4\n  path: Qwen/Qwen2.5-7B\n",
}


@pytest.mark.parametrize("name", STRUCTURES)
def test_structures(name: str, tmp_path: Path) -> None:
    text = STRUCTURES[name]
    for beginning in BEGINNINGS.values():
        assert run("estimate", "-", text=beginning + text).returncode == 2
        assert run("read", "--facts", "-", text=beginning + text).returncode == 2
    (tmp_path / "config.json").write_bytes(text)
    (tmp_path / "gpus.json").write_bytes(text)
    assert run("model", str(tmp_path / "config.json")).returncode == 2
    assert run("snapshot", str(tmp_path / "config.json")).returncode == 2
    assert run("gpus", "--models", str(tmp_path)).returncode == 2
    run(*SERVE, "--config", str(tmp_path / "config.json"))


DEEP = [["a." * 50_000 + "=1"], ["." * 100_000 + "=1"], ["+" * 100_000], ["a=" + "[" * 60_000], ["a=" + "{a:" * 30_000]]
DEEP += [
    ["a=" + "${" * 30_000],
    ["a=" + "x," * 50_000],
    ["a=" + "(" * 50_000],
    ["a=" + "\\" * 100_000],
    ["x" + "[0]" * 30_000 + "=1"],
]
DEEP += [["actor.layout=" + "d1t" * 30_000], ["gpus=" + "9" * 100_000 + " x H100"], ["actor.layout=" + "(" * 30_000]]
WIDE = [["actor.recompute=full"] * 50_000, [f"actor.x{i}=1" for i in range(1999)], [f"x{i}=1" for i in range(50_000)]]


@pytest.mark.parametrize("number", range(len(DEEP + WIDE)))
def test_overrides(number: int) -> None:
    for file in (NATIVE, AREAL):
        for command in ("estimate", "advise", "read"):
            assert run(command, file, *(DEEP + WIDE)[number]).returncode == 2


def test_a_hundred_thousand_overrides() -> None:
    assert run("estimate", NATIVE, *["a=1"] * 100_000).returncode == 2
    assert run("search", AREAL, *["a=1"] * 100_000).returncode == 2


WORDS = [[f"--x{i}" for i in range(950)], ["--max-model-len", "1"] * 25_000, ["-" * 100_000], ["--" + "a" * 100_000]]
WORDS += [
    ["--hf-overrides", "[" * 100_000],
    ["--hf-overrides", '{"a":' * 20_000],
    ["--compilation-config." + "a." * 50_000 + "=1"],
]


@pytest.mark.parametrize("number", range(len(WORDS)))
def test_words(number: int) -> None:
    words = WORDS[number]
    run(*SERVE, *words)
    run(*MEGATRON, *words)
    for command in (["estimate"], ["op", "swiglu"], []):
        assert run(*command, *words).returncode == 2
    assert run("search", NATIVE, "--fix", ",".join(words)[:100_000]).returncode == 2
    assert run("search", NATIVE, "--allow", ",".join(words)[:100_000]).returncode == 2
    assert run("estimate", AREAL, "--config-root", ",".join(words)[:100_000]).returncode == 2


@pytest.fixture
def strange(tmp_path: Path) -> list[str]:
    """Paths of what is no file."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    (tmp_path / "empty").touch()
    inside = [str(tmp_path / name) for name in ("pipe", "folder", "circle", "empty", "missing", "x" * 300, "empty/below")]
    return [
        *inside,
        "/dev/zero",
        "/dev/null",
        "/dev/full",
        "/dev/random",
        "/proc/self/mem",
        "/proc/kmsg",
        "/" * 5000,
        "a\nb",
        "-",
    ]


COMMANDS = [
    ["estimate", "%"],
    ["read", "--facts", "%"],
    ["search", "%"],
    ["advise", "%"],
    ["snapshot", "%"],
    ["explain", NATIVE, "--recorded", "%"],
    ["model", "%"],
    ["estimate", NATIVE, "--models", "%"],
    ["estimate", NATIVE, "model=%"],
    ["explain", NATIVE, "--quick", "--save-snapshot", "%"],
    ["estimate", AREAL, "--config-root", "%"],
    ["estimate", AREAL, "actor.path=%"],
    ["serve", "--", "vllm", "serve", "%"],
    [*SERVE, "--config", "%"],
    [*SERVE, "--speculative-config", '{"method": "eagle3", "model": "%", "num_speculative_tokens": 3}'],
    ["estimate", "--model", "%", *MEGATRON[1:]],
    ["facts", "%"],
    ["op", "%"],
    ["help", "%"],
    ["%"],
]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_what_is_no_file(command: list[str], strange: list[str], tmp_path: Path) -> None:
    for path in strange:
        run(*[word.replace("%", path) for word in command], cwd=tmp_path)


def test_a_pipe_is_waited_for_while_someone_writes(tmp_path: Path) -> None:
    """`oomplan estimate <(make-job)`: the writer may come late, and take its time."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    text = Path(NATIVE).read_bytes()

    def write() -> None:
        with pipe.open("wb", buffering=0) as file:
            for part in (text[:100], text[100:]):
                threading.Event().wait(0.4)
                file.write(part)

    writer = threading.Thread(target=write)
    writer.start()
    assert run("read", str(pipe)).returncode == 0
    writer.join()
    shell = subprocess.run(["bash", "-c", f"'{PROGRAM}' read <(sleep 1.5; cat '{NATIVE}')"], capture_output=True)
    assert shell.returncode == 0, shell.stderr
    assert subprocess.run(["bash", "-c", f"'{PROGRAM}' read <(true)"], capture_output=True).returncode == 2


VARIABLES = {
    "NO_COLOR": "\udcff",
    "TERM": "x" * 100_000,
    "LC_ALL": "\udcff" * 10,
    "LANG": "A" * 100_000,
    "COLUMNS": "9" * 40,
    "HOME": "/dev/null",
    "HF_HOME": "/dev/zero",
    "HF_HUB_CACHE": "/proc/self/mem",
    "TMPDIR": "",
}


@pytest.mark.parametrize("name", VARIABLES)
def test_variables(name: str) -> None:
    for command in (["estimate", NATIVE], ["model", "nobody/nothing"], ["gpus"], ["search", NATIVE, "--keep", "1"]):
        run(*command, environment={name: VARIABLES[name]})


@pytest.mark.parametrize("command", [["estimate", NATIVE], ["explain", NATIVE, "--json"], ["facts"], ["estimate", "no-such"], []])
def test_streams_that_are_closed_or_full(command: list[str]) -> None:
    """The reader has gone, the disk is full, nobody ever opened it: no signal, no defect."""
    for streams in (">&-", "2>&-", ">&- 2>&- <&-", ">/dev/full", "2>/dev/full", ">/dev/full 2>/dev/full"):
        words = " ".join(f"'{word}'" for word in [PROGRAM, *command])
        done = subprocess.run(["sh", "-c", f"{words} {streams}"], capture_output=True, timeout=60)
        assert done.returncode in (0, 1, 2), (streams, done.returncode, done.stderr)
    gone = subprocess.run(["sh", "-c", f"{words} 2>&1 | true"], capture_output=True, timeout=60)
    assert gone.returncode == 0 and not gone.stderr


def test_where_nothing_can_be_written(tmp_path: Path) -> None:
    (tmp_path / "held").write_text("x")
    for path in ("/proc/new", "/dev/full", "/dev/null", str(tmp_path / "held" / "below"), str(tmp_path / "no" / "such"), ""):
        done = run("explain", NATIVE, "--save-snapshot", path)
        assert done.returncode == 2 or path == ""
    assert (tmp_path / "held").read_text() == "x"
