"""Rows of a list of models (index.jsonl beside config files): parameter counts."""

from __future__ import annotations

import json
from pathlib import Path

from corpus import CannotExpress, Case, Row, config_in, find_config


def model_cases(row: Row, corpus: Path) -> list[Case]:
    """Judged by the published totals of the language model, or by the first official total of everything."""
    computed, officials = row.get("computed") or {}, row.get("official_totals") or []
    figure, measured = "language", computed.get("main")
    if not isinstance(measured, int):
        official = next((o["value"] for o in officials if isinstance(o, dict) and isinstance(o.get("value"), int)), None)
        figure, measured = ("all", official) if official else ("language", 0)  # 0: nobody says; the count is still given
    why_not, config = "", ""
    try:
        path = corpus.parent / str(row.get("file"))
        beside = path if path.is_file() else corpus.parent / "model_configs" / str(row.get("file"))
        found = config_in(beside) if beside.is_file() else find_config(row.get("id"), corpus)
        config = json.dumps(found)
    except (CannotExpress, ValueError) as reason:
        why_not = str(reason) if isinstance(reason, CannotExpress) else "the model's config.json is no JSON"
    return [Case(str(row["id"]), "parameters", measured, "parameters", {"model": str(row["id"])}, config, figure, why_not)]
