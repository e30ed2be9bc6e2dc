"""Makes tests/data/compose_cases.jsonl: what Hydra and OmegaConf answer to small configurations.

    pip install hydra-core==1.3.2 omegaconf==2.3.0
    python benchmarks/oracle/compose_cases.py [--output tests/data/compose_cases.jsonl]

Every line is one question of compose_values.py or compose_trees.py with the answer that the real libraries gave when they were run:

    scalar    a YAML scalar as it stands behind "v: "        -> what OmegaConf's loader makes of it
    override  one argument as typed behind a launch command  -> type, key, package and value, or an error
    compose   files, a primary config, overrides, environment -> the composed tree, every interpolation resolved, or an error
    dotlist   one file and key=value arguments               -> the same for OmegaConf without Hydra

A value is written as its Python type and str(): "int 5", "float 1e-06", "str a", "bool True", "null", "missing"; a list as a JSON
list, a map as a JSON object (keys that are no text carry their type, "int 1"); a value that the library cannot resolve is
"error <exception>". A question may carry "ours" and "because": the answer that oomplan gives on purpose, and why.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import yaml
from compose_trees import COMPOSE, DOTLIST
from compose_values import OVERRIDES, SCALARS
from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Sweep
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf._utils import get_yaml_loader
from omegaconf.errors import InterpolationToMissingValueError, OmegaConfBaseException

ROOT = Path(__file__).resolve().parents[2]
OUTPUT = ROOT / "tests" / "data" / "compose_cases.jsonl"


def encoded(value: Any) -> Any:
    if isinstance(value, dict):
        return {k if isinstance(k, str) else f"{type(k).__name__} {k}": encoded(v) for k, v in value.items()}
    if isinstance(value, list):
        return [encoded(v) for v in value]
    if value is None:
        return "null"
    if value == "???":
        return "missing"
    return f"{type(value).__name__} {value}"


def resolved(config: Any, levels: int = 0) -> Any:
    """Like OmegaConf.to_container(resolve=True), but one value that fails does not take the others with it."""
    if levels > 20:
        raise RecursionError("the tree has no end")
    if not isinstance(config, (DictConfig, ListConfig)):
        return encoded(config)
    if config._is_none():
        return "null"
    keys = list(config.keys()) if isinstance(config, DictConfig) else range(len(config))
    out: dict[Any, Any] = {}
    for key in keys:
        try:
            node = config._get_node(key)
            node = node._dereference_node()
            if node._is_missing():
                out[key] = "missing"
            else:
                out[key] = resolved(node if isinstance(node, (DictConfig, ListConfig)) else node._value(), levels + 1)
        except InterpolationToMissingValueError:
            out[key] = "missing"
        except OmegaConfBaseException as e:
            out[key] = f"error {type(e).__name__}"
    if isinstance(config, ListConfig):
        return list(out.values())
    return {k if isinstance(k, str) else f"{type(k).__name__} {k}": v for k, v in out.items()}


def error(e: BaseException) -> dict[str, str]:
    return {"error": type(e).__name__, "says": str(e).strip().split("\n")[0].split(tempfile.gettempdir())[0]}


def ask_scalar(text: str) -> dict[str, Any]:
    try:
        return {"answer": encoded(yaml.load(f"v: {text}\n", Loader=get_yaml_loader())["v"])}
    except (yaml.YAMLError, ValueError) as e:
        return {"error": type(e).__name__}


def ask_override(text: str) -> dict[str, Any]:
    try:
        parsed = OverridesParser.create().parse_overrides([text])[0]
    except Exception as e:  # the parser raises its own and Python's
        return {"error": type(e).__name__}
    out: dict[str, Any] = {"type": parsed.type.name, "key": parsed.key_or_group, "package": parsed.package}
    value = parsed.value()
    out["answer"] = "sweep" if isinstance(value, Sweep) or parsed.is_sweep_override() else encoded(value)
    return out


def with_environment(given: dict[str, str], act: Any) -> dict[str, Any]:
    before = dict(os.environ)
    os.environ.update(given)
    try:
        return {"answer": act()}
    except (Exception, RecursionError) as e:
        return error(e)
    finally:
        os.environ.clear()
        os.environ.update(before)


def ask_compose(files: dict[str, str], config: str, overrides: list[str], env: dict[str, str]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        for name, text in files.items():
            path = Path(folder) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        before = os.getcwd()
        os.chdir(folder)
        try:

            def act() -> Any:
                where = (Path(folder) / config).parent
                with initialize_config_dir(config_dir=str(where), job_name="app", version_base=None):
                    return resolved(compose(config_name=Path(config).name.split(".yaml")[0], overrides=overrides))

            return with_environment(env, act)
        finally:
            os.chdir(before)


def ask_dotlist(text: str, arguments: list[str], env: dict[str, str]) -> dict[str, Any]:
    def act() -> Any:
        config = OmegaConf.create(yaml.load(text, Loader=get_yaml_loader()))
        return resolved(OmegaConf.merge(config, OmegaConf.from_dotlist(arguments)))

    return with_environment(env, act)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--output", type=Path, default=OUTPUT)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    sys.setrecursionlimit(400)
    rows: list[dict[str, Any]] = []

    def add(kind: str, question: dict[str, Any], answer: dict[str, Any], extra: dict[str, Any]) -> None:
        rows.append({"kind": kind, **question, **answer, **extra})

    for text, extra in SCALARS:
        add("scalar", {"text": text}, ask_scalar(text), extra)
    for text, extra in OVERRIDES:
        add("override", {"text": text}, ask_override(text), extra)
    for case in COMPOSE:
        question = {
            "name": case["name"],
            "files": case["files"],
            "config": case.get("config", "main.yaml"),
            "overrides": case.get("overrides", []),
            "env": case.get("env", {}),
        }
        answer = ask_compose(question["files"], question["config"], question["overrides"], question["env"])
        add("compose", question, answer, {k: case[k] for k in ("ours", "because") if k in case})
    for case in DOTLIST:
        question = {k: case[k] for k in ("name", "text", "arguments")} | {"env": case.get("env", {})}
        add("dotlist", question, ask_dotlist(case["text"], case["arguments"], question["env"]), {})
    with arguments.output.open("w") as out:
        for row in rows:
            out.write(json.dumps(row) + "\n")
    print(f"{len(rows)} cases in {arguments.output}")


if __name__ == "__main__":
    main()
