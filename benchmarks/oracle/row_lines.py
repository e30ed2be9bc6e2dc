"""Rows of an execution as the tests read them: a line of JSON each, the configs (`fields`) that they name among them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def write_rows(output: Path, lines: list[dict[str, Any]]) -> None:
    with output.open("w", encoding="utf-8") as file:
        for line in lines:
            file.write(json.dumps(line, separators=(",", ":")) + "\n")
    configs = sum("fields" in line for line in lines)
    print(f"{len(lines) - configs} rows, {configs} configs: {output}")
