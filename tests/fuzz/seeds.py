"""Where the fuzzer begins: texts of each door, from tests/cases, tests/data and examples, and its dictionary."""

from __future__ import annotations

import json
import pickle
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
SECTION = re.compile(r"^--- (command|file|example|folder|exit|stderr|stdout)\b(.*)\n", re.MULTILINE)
LONGEST = 64 * 1024
Seed = tuple[str, bytes]  # door, text


def joined(*parts: str) -> bytes:
    return "\n%%\n".join(part.rstrip("\n") for part in parts).encode() + b"\n"


def of_command(command: list[str], files: dict[str, str]) -> Iterator[Seed]:
    """A command line of the program and the files beside it."""
    if "--" in command:
        words = command[command.index("--") + 1 :]
        door = "serve" if command[0] == "serve" else "megatron"
        yield door, (shlex.join(words) + "\n").encode()
        return
    named = [word for word in command[1:] if word in files]
    if not named:
        return
    text = files[named[0]]
    overrides = [word for word in command[command.index(named[0]) + 1 :] if "=" in word and not word.startswith("--")]
    others = [body for name, body in files.items() if name != named[0]]
    native = re.search(r"^oomplan:", text, re.MULTILINE)
    yield ("job" if native else "framework"), joined(text, "\n".join(overrides), *others[:1])


def cases() -> Iterator[Seed]:
    for path in sorted((ROOT / "tests" / "cases").glob("*.case")):
        text = path.read_text()
        marks = list(SECTION.finditer(text))
        ends = [mark.start() for mark in marks[1:]] + [len(text)]
        files, command = {}, []
        for mark, end in zip(marks, ends):
            words, body = mark[2].split(), text[mark.end() : end]
            if mark[1] == "file" and "repeated" not in words:
                files[words[0]] = body
            elif mark[1] == "example":
                files[Path(words[0]).name] = (ROOT / "examples" / words[0]).read_text()
            elif mark[1] == "command":
                command = shlex.split(body)
        if command:
            yield from of_command(command, files)


def examples() -> Iterator[Seed]:
    for path in sorted((ROOT / "examples").rglob("*.yaml")):
        text = path.read_text()
        if path.parent.name == "examples":
            yield "answers", f"{path.name}\n".encode()
            yield "job", joined(text, "gpus=16 x H200-141GB")
        else:
            yield "framework", joined(text, "version=1.0.4\nactor.mb_spec.max_tokens_per_mb=8192")
            yield "framework", joined("defaults: [beside, _self_]\n" + text, "+a.b=1\n~actor.optimizer", text)


def compositions() -> Iterator[Seed]:
    for line in (ROOT / "tests" / "data" / "compose_cases.jsonl").read_text().splitlines():
        row = json.loads(line)
        if row["kind"] == "override":
            yield "compose", joined("a: 1\nb: {c: x}", row["text"])
        elif row["kind"] == "compose":
            others = [text for name, text in row["files"].items() if name != "main.yaml"]
            yield "compose", joined(row["files"].get("main.yaml", ""), "\n".join(row["overrides"]), *others[:1])


def models() -> Iterator[Seed]:
    seen = set()
    for line in (ROOT / "tests" / "data" / "configs.jsonl").read_text().splitlines():
        config = json.loads(line)["config"]
        if config.get("model_type") not in seen:
            seen.add(config.get("model_type"))
            yield "config", json.dumps(config, indent=1).encode()


def commands() -> Iterator[Seed]:
    for line in (ROOT / "tests" / "data" / "serve_commands.jsonl").read_text().splitlines():
        yield "serve", (json.loads(line)["command"] + "\n").encode()
    for line in (ROOT / "tests" / "data" / "megatron_refused.jsonl").read_text().splitlines():
        row = json.loads(line)
        words = ["torchrun", "--nproc-per-node", str(row["world"]), "pretrain_gpt.py", *row["words"]]
        yield "megatron", joined(shlex.join(words), "gpus=8 x H100-80GB")


def scripts() -> Iterator[Seed]:
    launch = 'python3 train.py --config job.yaml a.b=$1\nvllm serve "$MODEL" --tensor-parallel-size ${TP:-2}\n'
    job = (ROOT / "examples" / "areal" / "grpo_7b.yaml").read_text()
    for line in (ROOT / "tests" / "data" / "bash_scripts.jsonl").read_text().splitlines():
        yield "script", joined(json.loads(line)["text"] + launch, "8\ntwo words", job)
    yield "script", joined("source other.sh\n" + launch, "8", "MODEL=Qwen/Qwen3-0.6B\nexport TP=1")


def snapshot() -> dict[str, Any]:
    mib, base = 1 << 20, 139_777_059_848_192
    frames = [{"filename": "/home/me/model.py", "name": "forward", "line": 12}]
    segment = {"device": 0, "address": base, "total_size": 20 * mib, "stream": 0, "segment_type": "large"}
    block = {"address": base, "size": 20 * mib, "requested_size": 20 * mib - 8, "state": "active_allocated", "frames": frames}
    event = {"addr": base, "size": 20 * mib, "stream": 0, "time_us": 1, "frames": frames}
    return {
        "segments": [{**segment, "segment_pool_id": (0, 0), "is_expandable": False, "blocks": [block]}],
        "device_traces": [[{**event, "action": action} for action in ("segment_alloc", "alloc", "free_requested")]],
        "allocator_settings": {"expandable_segments": False, "max_split_size": -1},
    }


def snapshots() -> Iterator[Seed]:
    made = snapshot()
    for protocol in range(2, 6):
        yield "snapshot", pickle.dumps(made, protocol)
    yield "snapshot", json.dumps(made).encode()


def verl() -> Iterator[Seed]:
    """Commands behind a script, and files, of the releases at both ends and on both engines."""
    script = (ROOT / "examples" / "verl" / "grpo_8b.sh").read_text()
    for more in (
        "",
        "model_engine=megatron",
        "--config-name=ppo_megatron_trainer",
        "critic.enable=True\n+algorithm.x=1\n~trainer.nnodes",
    ):
        yield "script", joined(script, more, "")
    yield (
        "script",
        joined(
            "torchrun --nnodes=2 --nproc_per_node 4 -m verl.trainer.sft_trainer model.path=Qwen/Qwen3-8B $@",
            "engine=megatron",
            "",
        ),
    )
    file = "actor_rollout_ref:\n  model: {path: Qwen/Qwen3-8B}\n  rollout: {name: vllm}\n  actor: {use_dynamic_bsz: true}\n"
    for release in ("0.3.0", "0.6.1", "0.8.0", "0.10.0"):
        yield "framework", joined(file, f"version={release}\nactor_rollout_ref.rollout.n=8", "")
        yield (
            "framework",
            joined(
                "defaults: [ppo_trainer, _self_]\nhydra: {searchpath: ['file://verl/trainer/config']}\n" + file,
                f"version={release}",
                "",
            ),
        )


def requests() -> Iterator[Seed]:
    job = "oomplan: 1\nmodel: qwen2.5-0.5b\ngpus: 1 x H100-80GB\nframework: torch\n"
    job += "trainer: {engine: single, layout: d1, tokens_per_micro_batch: 2k, sequence_tokens: 1k}\n"
    full = {"gpus": 1, "allow": "numerics", "maximise": "tokens", "fixed": ["trainer.layout"], "keep": 2, "threads": 1}
    full["min_probability"] = 0.5
    for request in ({}, full, {"fixed": ["layuot"]}, {"keep": 1e30}, {"allow": None}):
        yield "c", joined(json.dumps(request), "trainer.recompute=full", job)


def words(seeds: list[Seed]) -> str:
    """Keys, flags and values that several seeds have."""
    counts: dict[str, int] = {}
    for _, text in seeds:
        for word in set(re.findall(r"--?[A-Za-z][\w-]*|[A-Za-z_][\w.]*|\d[\w.]*", text.decode("utf-8", "ignore"))):
            counts[word] = counts.get(word, 0) + 1
    often = sorted(counts, key=lambda word: (-counts[word], word))[:1500]
    edges = [
        "9223372036854775807",
        "-9223372036854775808",
        "18446744073709551616",
        "1e308",
        "1e999",
        ".nan",
        ".inf",
        "-0",
        "0x7f",
    ]
    edges += ["&a ", "*a", "<<: *a", "${", "}", "???", "!!int ", "\\u202e", "\u202e", "%%", "? ", "- ", "|-", "'", '"', "\\"]
    return "".join(f'"{escaped(word)}"\n' for word in [*edges, *often] if len(word) < 60)


def escaped(word: str) -> str:
    """As libFuzzer's dictionaries have it: \\xAB for every byte that is no plain character."""
    plain = [chr(byte) if 32 <= byte < 127 and chr(byte) not in '"\\' else f"\\x{byte:02X}" for byte in word.encode()]
    return "".join(plain)


def found() -> Iterator[Seed]:
    for path in sorted((ROOT / "tests" / "fuzz" / "found").glob("*/*")):
        yield path.parent.name, path.read_bytes()


def write(folder: Path) -> None:
    """FOLDER/texts/DOOR/..., beside what earlier runs left there, and FOLDER/words."""
    seeds = [
        *cases(),
        *examples(),
        *compositions(),
        *models(),
        *commands(),
        *snapshots(),
        *scripts(),
        *verl(),
        *requests(),
        *found(),
    ]
    seeds = [seed for seed in seeds if len(seed[1]) <= LONGEST]
    for number, (door, text) in enumerate(seeds):
        (folder / "texts" / door).mkdir(parents=True, exist_ok=True)
        (folder / "texts" / door / f"{number:04}").write_bytes(text)
    (folder / "words").write_text(words(seeds), encoding="utf-8")
