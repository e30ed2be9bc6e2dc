"""Write transformers.json, the arguments that TRL's and Transformers' scripts take, release by release.

    python models/frameworks/transformers_schema.py TRL WHEELS models/frameworks/transformers.json

TRL is a git checkout (or bare repository) of huggingface/trl with its tags, WHEELS a folder with wheels of transformers (pip download --no-deps).
The dataclasses are read with `ast` and never run. Facts only: names, types, defaults, choices (of an enum the values of its members).

A release is one of TRL beside the newest of Transformers of its time. What a class or field is like holds from the release `since` until the
release `until`, the newest where `until` is missing.
"""

from __future__ import annotations

import argparse
import ast
import json
import zipfile
from pathlib import Path
from typing import Any

from areal_schema import compact, ranges
from areal_sources import Checkout, Module, NotConstant, Reader, enum_members, is_enum, parse

# TRL, and the newest Transformers on the day of its tag among those that were read.
PAIRS = {
    "0.12.2": "4.46.3",
    "0.15.2": "4.49.0",
    "0.17.0": "4.51.3",
    "0.19.1": "4.53.3",
    "0.21.0": "4.55.4",
    "0.24.0": "4.57.1",
    "0.26.2": "4.57.1",
    "0.28.0": "5.0.0",
    "0.29.1": "5.0.0",
    "1.0.0": "5.5.0",
    "1.2.0": "5.5.0",
    "1.3.0": "5.5.0",
    "1.4.0": "5.8.0",
    "1.5.1": "5.8.0",
    "1.6.0": "5.12.0",
    "1.9.0": "5.12.0",
    "1.9.0+": "5.24.0",
}
CONFIGS = ("sft", "dpo", "kto", "grpo", "reward", "rloo")
# Paths below trl/trainer and trl/scripts; releases lack some of them.
FILES = [f"trl/trainer/{name}_config.py" for name in ("base", "model", *CONFIGS)] + [
    "trl/scripts/utils.py",
    *(f"trl/scripts/{name}.py" for name in CONFIGS),
    "trl/trainer/utils.py",
]
ROOTS = {
    "TrainingArguments",
    "SFTConfig",
    "DPOConfig",
    "KTOConfig",
    "GRPOConfig",
    "RewardConfig",
    "RLOOConfig",
    "ModelConfig",
    "ScriptArguments",
    "DatasetMixtureConfig",
    "GRPOScriptArguments",
    "RLOOScriptArguments",
}
# huggingface/transformers, examples/pytorch/language-modeling/run_clm.py, v4.57.1: ModelArguments and DataTrainingArguments.
RUN_CLM = {
    "model_name_or_path": ("str?", None),
    "model_type": ("str?", None),
    "config_overrides": ("str?", None),
    "config_name": ("str?", None),
    "tokenizer_name": ("str?", None),
    "cache_dir": ("str?", None),
    "use_fast_tokenizer": ("bool", True),
    "model_revision": ("str", "main"),
    "token": ("str?", None),
    "trust_remote_code": ("bool", False),
    "torch_dtype": ("str?", None),
    "dtype": ("str?", None),
    "low_cpu_mem_usage": ("bool", False),
    "dataset_name": ("str?", None),
    "dataset_config_name": ("str?", None),
    "train_file": ("str?", None),
    "validation_file": ("str?", None),
    "max_train_samples": ("int?", None),
    "max_eval_samples": ("int?", None),
    "streaming": ("bool", False),
    "block_size": ("int?", None),
    "overwrite_cache": ("bool", False),
    "validation_split_percentage": ("int?", 5),
    "preprocessing_num_workers": ("int?", None),
    "keep_linebreaks": ("bool", True),
}


class Wheel(Checkout):
    """The files of one wheel."""

    def __init__(self, path: Path):
        super().__init__(path, "")
        self.archive = zipfile.ZipFile(path)
        self.names = set(self.archive.namelist())

    def module(self, path: str) -> Module | None:
        if path not in self.modules:
            self.modules[path] = parse(path, self.archive.read(path).decode()) if path in self.names else None
        return self.modules[path]


class Arguments(Reader):
    """What HfArgumentParser makes of a field: an enum is one of its values."""

    def class_name(self, module: Module, name: str) -> str | None:
        known = super().class_name(module, name)
        found = self.find(module, name)
        return known or (node.name if found and is_choice(node := found[1]) else None)

    def fields(self, name: str) -> dict[str, dict[str, Any]]:
        out = super().fields(name)
        module, node = self.classes[name]
        lines = {line.target.id: line for line in node.body if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name)}
        for key, row in out.items():
            words = words_of(lines[key].annotation)
            values = [value for one in words for value in self.values_of(module, one)]
            if key == "fsdp" or (values and words & {"list", "List"}):  # fsdp: a text of several words, a list, or a truth value
                row["type"] = "any"
            elif values:
                row["choices"] = values
                row["type"] = "str" + ("?" if row["type"].endswith("?") else "")
                if isinstance(row.get("computed"), str):
                    row.pop("computed")
                    row["default"] = self.enum_default(module, lines[key].value)
            if row.get("computed") == "default_optim":
                row.pop("computed")
                row["default"] = max(texts_assigned(node, "default_optim"), key=len)
        return out

    def values_of(self, module: Module, name: str) -> list[Any]:
        found = self.find(module, name)
        if not found or not is_choice(found[1]):
            return []
        assert isinstance(found[1], ast.ClassDef)
        return [self.value(value, found[0]) for _, value in enum_members(found[1])]

    def enum_default(self, module: Module, node: ast.expr | None) -> Any:
        assert isinstance(node, ast.Call)
        for one in node.keywords:
            if one.arg == "default":
                if isinstance(one.value, ast.Name) and one.value.id == "default_optim":
                    return max(texts_assigned(module.classes["TrainingArguments"], "default_optim"), key=len)
                return self.member_of(module, one.value)
        raise NotConstant(ast.unparse(node))

    def member_of(self, module: Module, node: ast.expr) -> Any:
        assert isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
        found = self.find(module, node.value.id)
        assert found and isinstance(found[1], ast.ClassDef)
        return dict((name, self.value(value, found[0])) for name, value in enum_members(found[1]))[node.attr]


def is_choice(node: ast.AST) -> bool:
    """`class OptimizerNames(ExplicitEnum)`."""
    return isinstance(node, ast.ClassDef) and (
        is_enum(node) or any(ast.unparse(base).split(".")[-1] == "ExplicitEnum" for base in node.bases)
    )


def words_of(annotation: ast.expr) -> set[str]:
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        return words_of(ast.parse(annotation.value, mode="eval").body)
    names = {node.id for node in ast.walk(annotation) if isinstance(node, ast.Name)}
    texts = [node.value for node in ast.walk(annotation) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    return names | {word for text in texts for word in words_of(ast.parse(text, mode="eval").body)}


def texts_assigned(node: ast.ClassDef, name: str) -> list[str]:
    return [
        line.value.value
        for line in ast.walk(node)
        if isinstance(line, ast.Assign)
        and isinstance(line.targets[0], ast.Name)
        and line.targets[0].id == name
        and isinstance(line.value, ast.Constant)
    ]


def read_release(trl: Path, wheels: Path, release: str) -> dict[str, dict[str, Any]]:
    wheel = Wheel(wheels / f"transformers-{PAIRS[release]}-py3-none-any.whl")
    reader = Arguments(wheel)
    module = wheel.module("transformers/training_args.py")
    assert module
    reader.add(module)
    out = {"TrainingArguments": {"bases": [], "fields": reader.fields("TrainingArguments")}}
    checkout = Checkout(trl, f"v{release.removesuffix('+')}")
    own = Arguments(checkout)
    for path in FILES:
        if found := checkout.module(path):
            own.add(found)
    if found := checkout.module("trl/experimental/kto/kto_config.py"):
        own.add(found, "_")  # from trl.experimental.kto import KTOConfig as _KTOConfig
    for name in [name for name in own.classes if name in ROOTS or name in ("_BaseConfig", "BaseConfig", "_KTOConfig")]:
        bases = [ast.unparse(base).split(".")[-1] for base in own.classes[name][1].bases]
        out.setdefault(name, {"bases": bases, "fields": own.fields(name)})
    rows = {key: {"type": kind, "default": value} for key, (kind, value) in RUN_CLM.items()}
    out["RunClmArguments"] = {"bases": [], "fields": rows}
    return out


def schema(trl: Path, wheels: Path) -> dict[str, Any]:
    read = {release: read_release(trl, wheels, release) for release in PAIRS}
    classes: dict[str, Any] = {}
    for name in sorted({name for rows in read.values() for name in rows}):
        there = [(release, rows.get(name)) for release, rows in read.items()]
        heads = [(release, {"bases": row["bases"]} if row else None) for release, row in there]
        keys = {key: None for _, row in there if row for key in row["fields"]}
        found = {key: ranges([(release, row["fields"].get(key) if row else None) for release, row in there]) for key in keys}
        classes[name] = {"is": ranges(heads), "fields": found}
    return {
        "framework": "transformers",
        "source": "huggingface/trl, trl/trainer and trl/scripts; huggingface/transformers, src/transformers/training_args.py",
        "releases": list(PAIRS),
        "transformers": list(PAIRS.values()),
        "scripts": {},
        "renames": [],
        "classes": classes,
    }


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("trl", type=Path)
    options.add_argument("wheels", type=Path)
    options.add_argument("output", type=Path)
    given = options.parse_args()
    made = schema(given.trl, given.wheels)
    pairs = f' "transformers": {json.dumps(made["transformers"])},\n "scripts"'
    text = compact(made).replace(' "scripts"', pairs, 1)
    json.loads(text)
    given.output.write_text(text)


if __name__ == "__main__":
    main()
