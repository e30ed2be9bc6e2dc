"""Write oumi.json, the configuration schema of every Oumi release, from a git checkout of oumi-ai/oumi.

    python models/frameworks/oumi_schema.py CHECKOUT models/frameworks/oumi.json

The dataclasses below src/oumi/core/configs are read with `ast` and never run. Facts only: names, types, defaults, choices (of an enum the names
of its members, as OmegaConf reads them). What a class or field is like holds from the release `since` until the release `until`, the newest
where `until` is missing.
"""

from __future__ import annotations

import argparse
import ast
import json
from pathlib import Path
from typing import Any

from areal_schema import compact, ranges, used
from areal_sources import Checkout, Module, Reader, enum_members, is_enum

NAMES = ["0.1.3", "0.1.9", "0.2.0", "0.2.1", "0.3.0", "0.4.0", "0.4.1", "0.4.2", "0.5.0", "0.6.0", "0.7", "0.8"]
# The last is the development after 0.8.
RELEASES = {**{name: f"v{name}" for name in NAMES}, "0.8+": "d8ed07778d7931565798ad45a859cafb54d4fc58"}
FOLDER = "src/oumi/core/configs"
ROOTS = (
    "TrainingConfig",
    "InferenceConfig",
    "EvaluationConfig",
    "AsyncEvaluationConfig",
    "JobConfig",
    "JudgeConfig",
    "SynthesisConfig",
)


class Source(Checkout):
    """The package lies below src/."""

    def named(self, dotted: str) -> Module | None:
        return super().named(f"src.{dotted}")


class Names(Reader):
    """Members of enums are their names."""

    def member(self, node: ast.Attribute, module: Module) -> Any:
        if isinstance(node.value, ast.Name):
            found = self.find(module, node.value.id)
            if found and isinstance(found[1], ast.ClassDef) and is_enum(found[1]):
                return node.attr
        return super().member(node, module)

    def fields(self, name: str) -> dict[str, dict[str, Any]]:
        out = super().fields(name)
        for row in out.values():
            plain = row["type"].removesuffix("?")
            if plain in self.classes and is_enum(self.classes[plain][1]):
                row["choices"] = [member for member, _ in enum_members(self.classes[plain][1])]
                row["type"] = "str" + ("?" if row["type"].endswith("?") else "")
        return out


def read_release(root: Path, release: str) -> dict[str, dict[str, Any]]:
    checkout = Source(root, RELEASES[release])
    reader = Names(checkout)
    listed = checkout.git("ls-tree", "-r", "--name-only", checkout.commit, f"{FOLDER}/") or ""
    for path in listed.splitlines():
        module = checkout.module(path) if path.endswith(".py") else None
        if module:
            reader.add(module)
    kept = used(reader, {name for name in reader.classes if name in ROOTS})
    return {
        name: {"bases": reader.bases(name), "fields": reader.fields(name)}
        for name in kept
        if not is_enum(reader.classes[name][1])
    }


def schema(root: Path) -> dict[str, Any]:
    read = {release: read_release(root, release) for release in RELEASES}
    classes: dict[str, Any] = {}
    for name in sorted({name for rows in read.values() for name in rows}):
        there = [(release, rows.get(name)) for release, rows in read.items()]
        heads = [(release, {"bases": row["bases"]} if row else None) for release, row in there]
        keys = {key: None for _, row in there if row for key in row["fields"]}
        found = {key: ranges([(release, row["fields"].get(key) if row else None) for release, row in there]) for key in keys}
        classes[name] = {"is": ranges(heads), "fields": found}
    return {
        "framework": "oumi",
        "source": f"oumi-ai/oumi, dataclasses of {FOLDER}; 0.8+ is d8ed0777",
        "releases": list(RELEASES),
        "scripts": {},
        "renames": [],
        "classes": classes,
    }


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("checkout", type=Path, help="a git checkout (or bare repository) of oumi-ai/oumi with its tags")
    options.add_argument("output", type=Path)
    given = options.parse_args()
    text = compact(schema(given.checkout))
    json.loads(text)
    given.output.write_text(text)


if __name__ == "__main__":
    main()
