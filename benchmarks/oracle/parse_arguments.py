"""Parse command lines with the real parsers of TRL and Transformers.

    PYTHONPATH=TRL:TRANSFORMERS python benchmarks/oracle/parse_arguments.py LINES >> tests/data/parsed_arguments.jsonl

LINES is a text with a command line each, as its words behind `trl sft` or a script ("sft --per_device_train_batch_size 2"): the first word names
the classes. A row has the words, the versions, and either what argparse refused or every field whose value is not the default. Nothing is
trained, and a GPU is not asked for: `__post_init__` does not run.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.metadata
import io
import json
import shlex
import sys
from pathlib import Path
from typing import Any

import transformers
from transformers import HfArgumentParser, TrainingArguments

# What has another value than its default says, whatever is typed.
NOISE = ("include_num_input_tokens_seen", "debug")


def classes(name: str) -> tuple[type, ...]:
    if name == "hf":
        return (TrainingArguments,)
    from trl.scripts.utils import ScriptArguments
    from trl.trainer.model_config import ModelConfig
    from trl.trainer.sft_config import SFTConfig

    return (ScriptArguments, SFTConfig, ModelConfig)


def quiet(kind: type) -> type:
    """The same fields, without what a GPU is asked for."""
    return dataclasses.make_dataclass(
        kind.__name__,
        [],
        bases=(kind,),
        namespace={"__post_init__": lambda self: None, "__module__": kind.__module__, "__doc__": ""},
    )


def parsed(words: list[str]) -> dict[str, Any]:
    kinds = [quiet(kind) for kind in classes(words[0])]
    parser = HfArgumentParser(kinds)
    errors = io.StringIO()
    try:
        with contextlib.redirect_stderr(errors):
            *read, left = parser.parse_args_into_dataclasses(args=words[1:], return_remaining_strings=True)
    except SystemExit:
        return {"error": errors.getvalue().strip().splitlines()[-1].split("error: ")[-1]}
    except ValueError as error:
        return {"error": str(error)}
    out: dict[str, Any] = {}
    for one in read:
        for field in dataclasses.fields(one):
            value = getattr(one, field.name)
            default = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
            if value != default and field.name not in NOISE:
                out[field.name] = getattr(value, "value", value)
    return {"values": out, "left": left}


def version(package: str) -> str:
    """ "": it is not there, and only the lines of Trainer's own arguments are asked for."""
    try:
        return str(importlib.metadata.version(package))
    except importlib.metadata.PackageNotFoundError:
        return ""


def main() -> None:
    for line in Path(sys.argv[1]).read_text().splitlines():
        words = shlex.split(line, comments=True)
        if words:
            row = {"words": words, "trl": version("trl"), "transformers": transformers.__version__, **parsed(words)}
            print(json.dumps(row, default=str))


if __name__ == "__main__":
    main()
