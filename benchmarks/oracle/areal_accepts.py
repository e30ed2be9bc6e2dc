"""Does AReaL itself accept files that `oomplan search --launch` writes?

    python benchmarks/oracle/areal_accepts.py CHECKOUT --program build/oomplan [--release 2.0.0]

For ten models on 8 to 64 GPUs, and for every algorithm on 16, the three best rows are written to files. AReaL's own reader of the checkout
(parse_cli_args, to_structured_cfg and OmegaConf.to_object with the algorithm's class) must take each of them, and oomplan's estimate of the
file must have the verdict and the probability of the row. Needs omegaconf, hydra-core, pyyaml, uvloop and colorlog; what else AReaL imports is
replaced by mocks, as reading a configuration calls none of it.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import subprocess
import sys
import tempfile
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

MODELS = [
    "qwen2.5-7b",
    "Qwen/Qwen3-8B",
    "Qwen/Qwen2.5-1.5B-Instruct",
    "Qwen/Qwen3-0.6B",
    "meta-llama/Llama-3.1-8B-Instruct",
    "Qwen/Qwen3-14B",
    "Qwen/Qwen2.5-32B-Instruct",
    "mistralai/Mistral-7B-Instruct-v0.3",
    "Qwen/Qwen3-1.7B",
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-7B",
]
CLASSES = {"grpo": "GRPOConfig", "ppo": "PPOConfig", "dapo": "GRPOConfig", "sft": "SFTConfig", "dpo": "DPOConfig"}
REAL = {
    "areal",
    "omegaconf",
    "hydra",
    "yaml",
    "uvloop",
    "colorlog",
    "antlr4",
    "packaging",
    "importlib_resources",
    "attr",
    "attrs",
    "pydevd",
}


class Mocks:
    """Modules that are not installed, and that reading a configuration does not call."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        top = name.split(".")[0]
        if top in REAL or top in sys.stdlib_module_names or top.startswith("_"):
            return None
        return ModuleSpec(name, self, is_package=True)  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> Any:
        module = MagicMock(name=spec.name)
        module.__path__, module.__spec__, module.__name__ = [], spec, spec.name
        return module

    def exec_module(self, module: object) -> None:
        pass


def reader_of(checkout: Path) -> Any:
    sys.path.insert(0, str(checkout))
    sys.meta_path.insert(0, Mocks())  # type: ignore[arg-type]
    version = importlib.metadata.version
    installed = ("omegaconf", "hydra-core", "packaging")
    importlib.metadata.version = lambda name: version(name) if name in installed else "99.0"  # type: ignore[assignment]
    from areal.api import cli_args  # type: ignore[import-not-found]

    return cli_args


def jobs() -> list[tuple[str, list[str]]]:
    out = []
    for model in MODELS:
        for gpus in (8, 16, 32, 64):
            for algorithm in CLASSES if gpus == 16 else ["grpo"]:
                more = ["--reference", "--lora", "16"] if gpus == 32 else []
                out.append(
                    (algorithm, ["search", "--model", model, "--gpus", str(gpus), "--algorithm", algorithm, "--keep", "3", *more])
                )
    return out


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--program", default="build/oomplan")
    parser.add_argument("--release", default="2.0.0")
    options = parser.parse_args()
    program = str(Path(options.program).resolve())
    said = ["--framework-version", options.release]

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([program, *arguments], capture_output=True, text=True, check=False)

    cli_args = reader_of(options.checkout.resolve())
    accepted = wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "job.yaml"
        for algorithm, arguments in jobs():
            found = json.loads(run(*arguments, *said, "--json").stdout)
            for number, row in enumerate(found["best"], 1):
                path.write_text(run(*arguments, *said, "--launch", str(number)).stdout)
                configuration, _ = cli_args.parse_cli_args(["--config", str(path)])
                kind = getattr(cli_args, CLASSES[algorithm])
                cli_args.OmegaConf.to_object(cli_args.to_structured_cfg(configuration, kind))
                accepted += 1
                again = json.loads(run("estimate", str(path), *said, "--gpu", "H100-80GB", "--json").stdout)
                if any(again[key] != row["estimate"][key] for key in ("verdict", "fit_probability", "fits")):
                    wrong += 1
                    print(f"{arguments} row {number}: {again['verdict']}; the row: {row['estimate']['verdict']}")
    print(f"AReaL accepts {accepted} files; {wrong} of them are estimated otherwise than their row")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
