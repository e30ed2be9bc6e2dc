"""Makes tests/data/executed_sglang.jsonl: what SGLang's own model classes allocate on one rank, and how it cuts its pools.

    LD_LIBRARY_PATH=STUBS python benchmarks/oracle/execute_sglang.py CONFIGS [--only TEXT] [--tensor 1,2,4,8] [--output FILE]

Needs SGLang (0.5.10.post1 made the rows, with transformers 5.3.0 and torch 2.10) and no GPU: sglang_code.py says what stands in for
one. Models are the built-in ones of which CONFIGS has config.json (server_cases.py). A model that this release refuses is left out
and named. Bytes of weights are those of parameters, buffers and other tensors of the model behind process_weights_after_loading and
post_load_weights; those of pools are the pools' tensors, without tables of addresses.
"""

from __future__ import annotations

from meta_rank import GIB
from server_cases import Row, asked_for, cases, text_of, write
from sglang_code import VERSION, execute

BUDGET = 60 * GIB
# what is not met, docs/findings.md
NO_POSITIONS = "cos/sin table: the built-in sizes leave out the positions"
FREQUENCIES = "two tables of the tower's frequencies, 6 MB"
BEYOND = "of layers with windows and without, the first of the next stage is counted too"
STAGES = ((2, 0), (2, 1), (3, 1))
LONG = "cos/sin table: a second one of short contexts (longrope)"
SHARED = "this release makes an indexer in every layer, and a cache for it"
OPEN: dict[str, str] = {
    "Qwen/Qwen2-57B-A14B tp=4": NO_POSITIONS,
    "MiniMaxAI/MiniMax-M2 tp=8": NO_POSITIONS,
    "ibm-granite/granite-3.3-8b-instruct tp=8": NO_POSITIONS,
    "MiniMaxAI/MiniMax-M2 tp=2 pp=3 stage=1": NO_POSITIONS,
    **{f"mistralai/Mistral-Small-3.2-24B-Instruct-2506 tp=2 pp={p} stage=1": FREQUENCIES for p in (2, 3)},
    **{f"openai/gpt-oss-20b tp=2 pp={p} stage={i}": BEYOND for p, i in ((2, 0), (3, 1))},
    **{f"zai-org/{m} tp=2 pp={p} stage={i}": NO_POSITIONS for m in ("GLM-4-9B-0414", "GLM-4.7-Flash") for p, i in STAGES},
    **{f"mistralai/Mistral-Small-3.2-24B-Instruct-2506 tp={t}": FREQUENCIES for t in (4, 8)},
    **{f"microsoft/{m}-mini-instruct tp={t}": LONG for m in ("Phi-3.5", "Phi-4") for t in (4, 8)},
    **{f"internlm/internlm2_5-7b-chat tp={t}": "cos/sin table: doubled by dynamic scaling" for t in (1, 2, 4, 8)},
    **{f"zai-org/GLM-5.2 tp={t}": SHARED for t in (1, 2, 4, 8)},
    **{f"zai-org/GLM-4-9B-0414 tp={t}": NO_POSITIONS for t in (1, 2, 4, 8)},
    **{f"zai-org/GLM-4.7-Flash tp={t}": NO_POSITIONS for t in (1, 2, 4)},
    **{f"bigcode/starcoder2-3b tp={t}": NO_POSITIONS for t in (2, 4, 8)},
}
# whose configurations in SGLang take rope_scaling as rope_parameters, where the base has to stand as well
SCALED = ("deepseek_v32", "kimi_k2", "qwen2_5_vl")


def readable(config: Row) -> Row:
    """With the keys that SGLang's classes read and transformers' configurations of the release lack."""
    out: Row = dict(config)
    out.setdefault("architectures", ["LlamaForCausalLM"] if out["model_type"] == "llama" else None)
    for part in (out, text_of(out)):
        if "rope_theta" not in part and "rope_parameters" not in part:
            part["rope_theta"] = 10000.0
        if out["model_type"] in SCALED and "rope_scaling" in part:
            part["rope_scaling"] = {"rope_theta": part["rope_theta"], **part["rope_scaling"]}
    if out["model_type"].startswith("gemma3"):
        text_of(out)["rope_theta"] = 1000000.0  # another one than that of windows, so that there are two tables
    if "gemma3n" in out["model_type"]:
        text_of(out).setdefault("rope_local_base_freq", 10000.0)
    return out


def main() -> None:
    asked = asked_for(__doc__ or "", "executed_sglang.jsonl")
    degrees = [int(t) for t in asked.tensor.split(",")]
    head = {"engine": "sglang", "version": VERSION}
    todo = [{**case, "config": readable(case["config"])} for case in cases(asked.configs, asked.only, degrees)]
    write(asked, todo, head, lambda case: execute(case, BUDGET), OPEN)


if __name__ == "__main__":
    main()
