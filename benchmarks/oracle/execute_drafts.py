"""Makes tests/data/executed_drafts.jsonl: what vLLM's own classes allocate on one rank with an EAGLE or EAGLE-3 head beside the model,
and how the head's layers join the cache.

    LD_LIBRARY_PATH=STUBS python benchmarks/oracle/execute_drafts.py [--output FILE]

Needs vLLM as execute_servers.py does. Which tables are shared is decided by vLLM's own proposer; the checkpoint of a head is taken to
have no embedding (draft_cases.py).
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from draft_cases import cases
from execute_servers import BUDGET
from server_cases import ROOT
from vllm_code import VERSION, execute

CLASSES = {
    "llama": {"architectures": ["LlamaForCausalLM"]},
    "qwen3": {"architectures": ["Qwen3ForCausalLM"]},
    "gpt_oss": {"architectures": ["GptOssForCausalLM"], "hidden_act": "silu"},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=ROOT / "tests/data/executed_drafts.jsonl")
    asked = parser.parse_args()
    keys = ("model", "tensor", "pipeline", "stage", "draft")
    with asked.output.open("w") as out:
        for case in cases(CLASSES, [1, 2, 4]):
            try:
                row = execute(case, BUDGET)
            except Exception as error:  # the engine's own refusals are of many types
                print(f"{case['id']}: {type(error).__name__}: {str(error)[:300]}", file=sys.stderr)
                continue
            known = {k: case[k] for k in keys if k in case}
            out.write(json.dumps({"id": case["id"], "engine": "vllm", "version": VERSION, **known, **row}) + "\n")


if __name__ == "__main__":
    main()
