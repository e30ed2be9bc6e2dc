"""Is models/frameworks/verl.json what verl's own files say? Hydra composes both, for every release and entry point.

    python benchmarks/oracle/verl_configs.py /path/to/verl.git

Needs hydra-core and omegaconf. Prints the compositions that differ; ends with 1 where one does.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

ROOT = Path(__file__).resolve().parents[2]
DATA = json.loads((ROOT / "models" / "frameworks" / "verl.json").read_text())
COMMITS = dict(part.strip().split(": ") for part in DATA["source"].split(", ", 1)[1].split(", "))


def of_release(rows: list[dict[str, Any]], release: str) -> dict[str, Any] | None:
    number = DATA["releases"].index
    return next((row for row in rows if number(row["first"]) <= number(release) <= number(row["last"])), None)


def from_data(folder: Path, release: str) -> None:
    for path, rows in DATA["files"].items():
        if row := of_release(rows, release):
            file = folder / path
            file.parent.mkdir(parents=True, exist_ok=True)
            head = f"# @package {row['package']}\n" if "package" in row else ""
            file.write_text(head + json.dumps(row["content"]))


def from_checkout(folder: Path, checkout: str, commit: str) -> None:
    archive = subprocess.run(["git", "--git-dir", checkout, "archive", commit], check=True, capture_output=True).stdout
    subprocess.run(["tar", "-x", "-C", str(folder)], input=archive, check=True)


def composed(folder: Path, where: str, config: str, overrides: list[str]) -> Any:
    """What Hydra makes of it, or why it makes nothing."""
    try:
        with initialize_config_dir(str(folder / where), version_base=None):
            return OmegaConf.to_container(compose(config, overrides), resolve=False)
    except Exception as error:  # the same refusal on both sides is equal, too
        return str(error).replace(str(folder), "")[:300]


def main() -> int:
    compared = different = 0
    for release in DATA["releases"]:
        with tempfile.TemporaryDirectory() as ours, tempfile.TemporaryDirectory() as theirs:
            from_data(Path(ours), release)
            from_checkout(Path(theirs), sys.argv[1], COMMITS[release])
            for module, rows in DATA["entry_points"].items():
                row = of_release(rows, release)
                if row is None:
                    continue
                for overrides in ([], ["model_engine=megatron"], ["trainer.nnodes=2", "+trainer.extra=1"]):
                    pair = [composed(Path(top), row["folder"], row["config"], overrides) for top in (ours, theirs)]
                    compared += 1
                    if pair[0] != pair[1]:
                        different += 1
                        print(release, module, overrides, "differ")
    print(f"{compared} compositions, {different} differ")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
