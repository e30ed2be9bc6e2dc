"""Does Hydra accept what oomplan accepts? Every command of verl's own launch scripts, composed by both.

    python benchmarks/oracle/verl_scripts.py /path/to/verl 0.7.0 [--program build/oomplan]

The tree is a checkout of that release (0.10.0: the development version). Needs hydra-core. Commands with parts that only the machine knows
are left out. Prints where the two disagree; ends with 1 where they do.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir

ROOT = Path(__file__).resolve().parents[2]
DATA = json.loads((ROOT / "models" / "frameworks" / "verl.json").read_text())
TRAINERS = re.compile(r"(verl|recipe)\..*(main_ppo|sft_trainer|main_dapo|fully_async_main|generation_server)")
FLAG = re.compile(r"--config-(name|path)(?:=(.*))?$")


def entry(module: str, release: str) -> dict[str, Any]:
    number = DATA["releases"].index
    rows = DATA["entry_points"].get(module, [])
    return next((row for row in rows if number(row["first"]) <= number(release) <= number(row["last"])), {})


def as_packages(tree: Path, folder: Path) -> None:
    """Makes pkg://verl... found: a folder of verl's configurations alone, as importing verl takes torch and ray."""
    for found in (tree / "verl").rglob("*.yaml"):
        link = folder / found.relative_to(tree)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(found)
    sys.path.insert(0, str(folder))


def refusal_of_hydra(tree: Path, module: str, words: list[str], release: str) -> str | None:
    """Why Hydra refuses; "" it does not; None: it cannot be asked."""
    row, overrides = dict(entry(module, release)), []
    waiting = iter(words)
    for word in waiting:
        if flag := FLAG.match(word):
            row[{"name": "config", "path": "folder"}[flag[1]]] = flag[2] if flag[2] is not None else next(waiting, "")
            if flag[1] == "path" and not row["folder"].startswith("/"):
                row["folder"] = str(Path(module.replace(".", "/")).parent / row["folder"])
        elif word.startswith("-"):
            return None
        else:
            overrides.append(word)
    if "config" not in row:
        return None
    try:
        with initialize_config_dir(str((tree / row["folder"]).resolve()), version_base=None):
            compose(row["config"].removesuffix(".yaml"), overrides)
    except Exception as error:
        return str(error).split("\n")[0] or "refused"
    return ""


def refusal_of_oomplan(program: str, module: str, words: list[str], release: str) -> str:
    command = [program, "read", "--facts", "--framework-version", release, "--", "python3", "-m", module, *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        return done.stderr.split("\n")[0]
    # behind the composition
    ours = (
        "not supported yet",
        "verl itself",
        "refused behind verl",
        "vLLM itself",
        "a model's hub id or folder",
        "true or false",
    )
    return next((text for text in json.loads(done.stdout)["refusals"] if not any(word in text for word in ours)), "")


def jobs_of(program: str, script: Path) -> list[tuple[str, list[str]]]:
    done = subprocess.run([program, "read", "--commands", "--json", str(script)], capture_output=True, text=True, check=False)
    out: list[tuple[str, list[str]]] = []
    for command in json.loads(done.stdout)["commands"] if done.returncode == 0 else []:
        words = command["words"]
        if not all(isinstance(word, str) for word in words):
            continue
        for number, (word, module) in enumerate(zip(words, words[1:])):
            if word == "-m" and TRAINERS.match(module):
                out.append((module, words[number + 2 :]))
                break
    return out


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("tree", type=Path)
    parser.add_argument("release")
    parser.add_argument("--program", default=str(ROOT / "build" / "oomplan"))
    args = parser.parse_args()
    program, tree = str(Path(args.program).resolve()), args.tree.resolve()
    os.chdir(tree)
    packages = tempfile.TemporaryDirectory()
    as_packages(tree, Path(packages.name))
    same = different = 0
    for script in sorted(tree.rglob("*.sh")):
        for module, words in jobs_of(program, script.relative_to(tree)):
            theirs = refusal_of_hydra(tree, module, words, args.release)
            if theirs is None:
                continue
            ours = refusal_of_oomplan(program, module, words, args.release)
            same += bool(theirs) == bool(ours)
            if bool(theirs) != bool(ours):
                different += 1
                print(f"{script.relative_to(tree)}: Hydra: {theirs or 'accepts'}; oomplan: {ours or 'accepts'}")
    print(f"{same} commands judged alike, {different} not")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
