"""Servers that refused to start and printed figures: what they printed, and what oomplan says.

    python benchmarks/accuracy/refusals.py [--corpus oom_incidents.jsonl] [--markdown OUT]

Rows are those of tests/data/server_refusals.jsonl, and with --corpus every incident of vLLM or SGLang that is a refusal to start.
A printed input (3.18 GiB) stands for all values that print so: a figure is reproduced when what these give meets what was printed.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from corpus import GIB, ROOT, Row, rows_of
from incidents import printed_cases

OWN = ROOT / "tests" / "data" / "server_refusals.jsonl"
HALF = 0.005 * GIB  # of the last digit that vLLM prints

# Words of a message that a server prints when it does not start, and what its figures would need that an incident leaves out.
REFUSALS = (
    ("KV cache is needed", "the model, its layout and the memory that is left"),
    ("that can be stored in KV cache", "the card, the release and the whole command"),
    ("on startup is less than desired", "the memory of the card and the share"),
    ("No available memory for the cache blocks", "the figures: the message has none"),
    ("increase --mem-fraction-static", "the figures: the message has none"),
    ("no GPU memory for the KV cache", "the weights of the model, whose cache is not described"),
    ("warming up sampler", "the figures: the message has none"),
    ("Capture cuda graph failed", "what the graphs' kernels take"),
)


@dataclass
class Line:
    """A row of the table: one printed figure."""

    source: str
    what: str
    printed: str
    ours: str
    verdict: str


def figures(job: Row, config: str = "") -> Row:
    import oomplan

    return dict(oomplan._core.serving_figures(json.dumps(job), config))


def job_of(row: Row, pool: int) -> Row:
    layout = f"t{row['tensor']}" + (f"p{row['pipeline']}" if row["pipeline"] > 1 else "")
    server = {"engine": row["engine"], "layout": layout, "max_model_len": row["max_model_len"], "kv_cache_memory": f"{pool}B"}
    apart = {key: row[key] for key in ("weights", "kv") if row[key] != "bf16"}
    return {"gpus": f"{row['tensor'] * row['pipeline']} x H100-80GB", "model": row["model"], "server": server, "apart": apart}


def around(printed: str) -> tuple[int, int]:
    value = float(printed) * GIB
    return round(value - HALF), round(value + HALF)


def gib(value: float) -> str:
    return f"{value / GIB:.2f}"


def span(low: str, high: str) -> str:
    return low if low == high else f"{low} to {high}"


def judged(source: str, what: str, printed: str, low: float, high: float, least: float, most: float) -> Line:
    """`low`, `high`: what the printed inputs give; `least`, `most`: all that prints as `printed`."""
    tokens = "." not in printed
    text = span(f"{low:,.0f}", f"{high:,.0f}") if tokens else span(gib(low), gib(high))
    reached = low <= most and least <= high
    return Line(source, what, f"{int(printed):,}" if tokens else printed, text, "reproduced" if reached else "**differs**")


def own_lines(row: Row) -> Iterator[Line]:
    source = str(row["source"])
    if row["kind"] == "free":
        least, most = around(row["total_gib"])
        name = "Qwen/Qwen3-0.6B"  # any: the share of a card does not depend on the model
        server = {"engine": row["engine"], "max_model_len": 1024, "gpu_memory_utilization": row["fraction"]}
        got = [
            figures({"gpus": "1 x H100-80GB", "model": name, "server": server, "apart": {"total_bytes": total}})["requested"]
            for total in (least, most)
        ]
        yield judged(source, "share asked for, GiB", row["requested_gib"], *got, *around(row["requested_gib"]))
        return
    low, high = (figures(job_of(row, pool)) for pool in around(row["pool_gib"]))
    if row["kind"] == "tokens":
        tokens = str(row["tokens"])
        yield judged(source, "tokens of the cache", tokens, low["kv_tokens"], high["kv_tokens"], row["tokens"], row["tokens"])
        return
    needed = low["request_bytes"]
    yield judged(source, "one request needs, GiB", row["needed_gib"], needed, needed, *around(row["needed_gib"]))
    if row["longest"] is not None:
        longest = row["longest"]
        yield judged(source, "longest request, tokens", str(longest), low["longest"], high["longest"], longest, longest)


def refusal_of(row: Row) -> str:
    """What would have to be known of an incident; "" when it is no refusal of a server."""
    message = str(row.get("raw_message") or "")
    if not re.search("vllm|sglang", str(row.get("framework")), re.IGNORECASE):
        return ""
    return next((needs for words, needs in REFUSALS if words in message), "")


def why_not(row: Row) -> str:
    """Why nothing can be computed for an incident that is a refusal."""
    version = re.search(r"\d+\.\d+", str(row.get("version") or ""))
    if version and str(row.get("framework")).startswith("vLLM"):
        major, minor = (int(part) for part in version.group(0).split("."))
        if (major, minor) < (0, 5):
            return f"vLLM {row['version']} is older than all that were read"
    missing = [
        name for name, key in (("the release", "version"), ("the model", "model"), ("the card", "gpu")) if not row.get(key)
    ]
    if missing:
        return "not stated: " + ", ".join(missing)
    return "would need " + refusal_of(row)


def incident_lines(row: Row, corpus: Path) -> Iterator[Line]:
    if not refusal_of(row):
        return
    source = str(row.get("source") or row["id"])
    cases = printed_cases(row, corpus)
    shown = False
    for case in cases:
        if case.why_not:
            continue
        shown = True
        ours = figures(case.job, case.config)[case.figure]
        tokens = case.figure == "longest"
        slack = max(HALF, 0) * (2 if case.metric == "requested" else 1)
        if tokens:
            pool = row["numbers_bytes"]["kv_available"]
            slack = case.measured * HALF / pool
        close = abs(ours - case.measured) <= slack
        text = (lambda value: f"{value:,}") if tokens else gib
        yield Line(source, case.metric, text(case.measured), text(ours), "reproduced" if close else "**differs**")
    if not shown:
        message = " ".join(str(row.get("raw_message")).split())
        printed = re.search(r"KV cache \((\d+)\)", message)
        yield Line(source, "refusal", printed.group(1) if printed else "no figure", "", why_not(row))


def table(lines: list[Line]) -> str:
    out = ["| source | figure | printed | ours | |", "|---|---|---|---|---|"]
    out += [f"| {one.source} | {one.what} | {one.printed} | {one.ours} | {one.verdict} |" for one in lines]
    return "\n".join(out) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--corpus", type=Path)
    parser.add_argument("--markdown", type=Path)
    chosen = parser.parse_args()
    lines = [line for row in rows_of(OWN) for line in own_lines(row)]
    text = "# Refusals\n\nWritten by `benchmarks/accuracy/refusals.py --markdown`.\n\n"
    text += (
        "Servers that did not start, and what they printed. A printed input (3.18 GiB) stands for every value that prints so;\n"
    )
    text += (
        "a figure is reproduced when what these values give meets what was printed. `tests/unit/inference_refusals.cpp` judges "
    )
    text += "the same.\n\n" + table(lines)
    if chosen.corpus:
        more = [line for row in rows_of(chosen.corpus) for line in incident_lines(row, chosen.corpus)]
        text += "\n## Incidents that users reported\n\n" + table(more)
        lines += more
    if chosen.markdown:
        chosen.markdown.write_text(text, encoding="utf-8")
    else:
        print(text)
    wrong: list[Any] = [line for line in lines if "differs" in line.verdict]
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
