"""How well a framework's own configuration files are understood, fact by fact.

python benchmarks/accuracy/config_cases.py --cases FILE... --checkout REPOSITORY [--program OOMPLAN] [--set NAME=VALUE] [--differences]

Where there is no repository, a folder stands in for it that has a folder of files for each commit.

A case names a file of the framework's repository at a commit and what it means: {"roles": {"actor": {"layout": {"dp": {"v": 4,
...}}}}}. The files are read from a checkout (git archive of the commit), never kept. A case that the framework itself rejects
counts as met when oomplan refuses the file, too.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

PARTS = ("cluster", "job", "roles", "weight_update")
DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}


def leaves(node: Any, path: str = "") -> Iterator[tuple[str, Any, str]]:
    """Facts below a node: dotted key, value, origin."""
    if isinstance(node, dict) and "v" in node and "o" in node:
        yield path, node["v"], node["o"]
    elif isinstance(node, dict):
        for key, value in node.items():
            yield from leaves(value, f"{path}.{key}" if path else key)


def normalised(value: Any) -> Any:
    if isinstance(value, str):
        return DTYPES.get(value, value)
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def same(told: Any, expected: Any) -> bool:
    """Folders of a user's machine are compared by their last part."""
    if isinstance(told, str) and isinstance(expected, str) and "/" in (told[:1], expected[:1]):
        return told.rstrip("/").split("/")[-1] == expected.rstrip("/").split("/")[-1]
    return bool(normalised(told) == normalised(expected))


# the name of what came behind a framework's last release
DEVELOPMENT = {"areal": "2.0.0+", "slime": "0.4.0", "oumi": "0.8+"}


def versions(case: dict[str, Any]) -> str:
    if case["version"].startswith("main"):  # no releases: the newest state that has all of the flags
        return ""
    return DEVELOPMENT[case["framework"]] if case["version"].startswith("after") else case["version"].split()[0]


class Checkouts:
    """Work trees of commits, each once."""

    def __init__(self, repository: Path, folder: Path) -> None:
        self.repository, self.folder = repository, folder

    def at(self, commit: str) -> Path:
        if (self.repository / commit).is_dir():
            return self.repository / commit
        tree = self.folder / commit
        if not tree.exists():
            tree.mkdir()
            archive = subprocess.run(["git", "-C", str(self.repository), "archive", commit], check=True, capture_output=True)
            with tarfile.open(fileobj=BytesIO(archive.stdout)) as tar:
                tar.extractall(tree, filter="data")
        return tree


def read_facts(program: str, tree: Path, case: dict[str, Any], variables: list[str]) -> tuple[dict[str, Any], str]:
    """Facts, or why there are none."""
    path = case.get("job_file") or case["path"].split("#")[0]  # a launcher's job starts the file, and says the GPUs
    arguments = [str(word) for word in ((case.get("launch") or {}).get("needs") or {}).get("args", [])]
    command = [program, "read", path, *arguments, "--facts"]
    if version := versions(case):
        command += ["--framework-version", version]
    for variable in variables:
        command += ["--set", variable]
    done = subprocess.run(command, cwd=tree, capture_output=True, text=True, check=False)
    return (json.loads(done.stdout), "") if done.returncode == 0 else ({}, done.stderr.strip())


def compare(case: dict[str, Any], told: dict[str, Any]) -> tuple[int, list[str]]:
    """Facts asked, and those that differ."""
    have = {key: value for part in PARTS for key, value, _ in leaves(told.get(part, {}), part)}
    asked, wrong = 0, []
    for part in PARTS:
        for key, value, origin in leaves(case.get(part, {}), part):
            if origin in ("unknown", "comment"):
                continue
            asked += 1
            if key not in have:
                wrong.append(f"{key}: {value!r} expected, nothing told")
            elif not same(have[key], value):
                wrong.append(f"{key}: {value!r} expected, {have[key]!r} told")
    for role in case.get("absent_roles") or {}:
        asked += 1
        if role not in (told.get("absent_roles") or {}):
            wrong.append(f"absent_roles.{role}: not told")
    return asked, wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--cases", nargs="+", type=Path, required=True)
    parser.add_argument(
        "--checkout", type=Path, required=True, help="git repository of the framework, or a folder of a folder per commit"
    )
    parser.add_argument("--framework", default="areal")
    parser.add_argument("--program", default="oomplan")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a variable of every script")
    parser.add_argument("--differences", action="store_true", help="list every fact that differs")
    args = parser.parse_args()
    cases = [json.loads(line) for file in args.cases for line in file.read_text().splitlines() if line]
    asked = equal = rejected = refused = 0
    with tempfile.TemporaryDirectory() as folder:
        checkouts = Checkouts(args.checkout, Path(folder))
        for case in (c for c in cases if c["framework"] == args.framework):
            told, failure = read_facts(args.program, checkouts.at(case["commit"]), case, args.set)
            if case["rejected_by_framework"]:
                rejected += 1
                refusals = told.get("refusals", [failure] if failure else [])
                refused += bool(refusals)
                print(f"{case['id']}: rejected, {refusals[0] if refusals else 'NOT REFUSED'}")
                continue
            facts, wrong = compare(case, told)
            asked += facts
            equal += facts - len(wrong)
            print(f"{case['id']}: {facts - len(wrong)} of {facts}{'  ' + failure if failure else ''}")
            for line in wrong if args.differences else []:
                print(f"    {line}")
    print(f"{equal} of {asked} facts ({100 * equal / max(1, asked):.2f} %); {refused} of {rejected} rejected files refused")


if __name__ == "__main__":
    main()
