"""Writes models/frameworks/slime.json: the flags that slime adds to Megatron's and SGLang's, in every release, from a git checkout.

    python models/frameworks/slime_schema.py /path/to/slime.git > models/frameworks/slime.json

slime's own functions add their arguments to a parser here; what they import is a stand-in. A flag that stays what it is stands once,
with the releases it holds for. Flags of Megatron whose default slime changes are among them.
"""

from __future__ import annotations

import argparse
import importlib.abc
import importlib.machinery
import json
import subprocess
import sys
import types
from typing import Any
from unittest.mock import MagicMock

# release, commit; the last is the development version after 0.3.1
RELEASES = [
    ("0.1.0", "v0.1.0"),
    ("0.2.0", "v0.2.0"),
    ("0.2.1", "v0.2.1"),
    ("0.2.2", "v0.2.2"),
    ("0.2.3", "v0.2.3"),
    ("0.2.4", "v0.2.4"),
    ("0.3.0", "v0.3.0"),
    ("0.3.1", "v0.3.1"),
    ("0.4.0", "624b824a898ab0ec1fcb4d373004c7f3852bf515"),
]
ARGUMENTS = "slime.utils.arguments"
SERVERS = "slime.backends.sglang_utils.arguments"
STAND_INS = {"slime", "sglang", "sglang_router", "transformers", "omegaconf", "yaml", "torch", "ray", "megatron"}
KINDS = {"_StoreTrueAction": "on", "_StoreFalseAction": "off", "BooleanOptionalAction": "toggle"}
TYPES = {"int": "int", "float": "float", "loads": "json", "bool": "truth"}

# _pre_parse_mode: read before the others, by a parser of its own
EARLY: dict[str, dict[str, Any]] = {
    "--train-backend": {"choices": ["megatron"], "default": "megatron"},
    "--debug-rollout-only": {"action": "store_true"},
    "--debug-train-only": {"action": "store_true"},
    "--load-debug-rollout-data": {},
}


class StandIns(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name.split(".")[0] in STAND_INS:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: Any) -> Any:
        module = MagicMock(name=spec.name)
        module.__path__ = []
        module.__spec__ = spec
        module.__name__ = spec.name
        return module

    def exec_module(self, module: Any) -> None:
        pass


def git_text(checkout: str, commit: str, module: str) -> str:
    path = module.replace(".", "/") + ".py"
    done = subprocess.run(["git", "--git-dir", checkout, "show", f"{commit}:{path}"], capture_output=True, text=True, check=True)
    return done.stdout


def module_of(checkout: str, commit: str, name: str) -> types.ModuleType:
    module = types.ModuleType(name)
    sys.modules[name] = module
    exec(compile(git_text(checkout, commit, name), name, "exec"), module.__dict__)
    return module


def row_of(action: Any) -> dict[str, Any]:
    kind = KINDS.get(type(action).__name__) or TYPES.get(getattr(action.type, "__name__", ""), "text")
    row: dict[str, Any] = {"flags": action.option_strings, "dest": action.dest, "type": kind}
    if action.nargs is not None and kind not in ("on", "off", "toggle"):
        row["nargs"] = action.nargs
    if action.choices is not None:
        row["choices"] = [str(choice) for choice in action.choices]
    if action.default is not None:
        row["default"] = action.default
    return row


def flags_of(checkout: str, commit: str) -> list[dict[str, Any]]:
    for name in [name for name in sys.modules if name.split(".")[0] in STAND_INS]:
        del sys.modules[name]
    servers = module_of(checkout, commit, SERVERS)
    arguments = module_of(checkout, commit, ARGUMENTS)
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, conflict_handler="resolve")
    arguments.get_slime_extra_args_provider()(parser)
    servers.add_sglang_arguments(parser)
    text = git_text(checkout, commit, ARGUMENTS)
    for early, settings in EARLY.items():
        if early not in parser._option_string_actions and f'"{early}"' in text:
            parser.add_argument(early, **settings)
    return [row_of(action) for action in parser._actions]


def main() -> None:
    checkout = sys.argv[1]
    sys.meta_path.insert(0, StandIns())
    known: dict[str, list[list[Any]]] = {}
    for number, (_release, commit) in enumerate(RELEASES):
        for row in flags_of(checkout, commit):
            rows = known.setdefault(row["dest"], [])
            if rows and rows[-1][1] == number - 1 and rows[-1][2] == row:
                rows[-1][1] = number
            else:
                rows.append([number, number, row])
    names = [release for release, _commit in RELEASES]
    source = "THUDM/slime, " + ", ".join(f"{release}: {commit}" for release, commit in RELEASES)
    lines = [
        json.dumps({"first": names[first], "last": names[last], **row}, ensure_ascii=False)
        for rows in known.values()
        for first, last, row in rows
    ]
    body = ",\n  ".join(lines)
    print(
        f'{{"source": {json.dumps(source)},\n "releases": {json.dumps(names)}, "usual": "{names[-2]}",\n "flags": [\n  {body}\n]}}'
    )


if __name__ == "__main__":
    main()
