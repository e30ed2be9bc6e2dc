"""Makes tests/data/executed_servers.jsonl: what vLLM's own model classes allocate on one rank, and how it cuts its cache.

    LD_LIBRARY_PATH=STUBS python benchmarks/oracle/execute_servers.py CONFIGS [--only TEXT] [--tensor 1,2,4,8] [--output FILE]

Needs vLLM (0.19.1 made the rows, with transformers 5.5.4, and 0.24.0 those of tests/data/executed_servers_0_24.jsonl) and no GPU: vllm_code.py says what stands in for one. Models are the
built-in ones of which CONFIGS has config.json (server_cases.py). A model that this release refuses is left out and named. Bytes are
those of parameters, buffers and other tensors of the model behind process_weights_after_loading, without scalars and without the
128 MiB that an MLA module allocates when it is imported.
"""

from __future__ import annotations

from meta_rank import GIB
from server_cases import asked_for, cases, write
from vllm_code import VERSION, execute

BUDGET = 60 * GIB
TABLES = "cos/sin tables: the built-in sizes leave out the positions"
GROUPS = "groups of 128 do not divide the columns of an expert on a rank"
FREQUENCIES = "a table of the tower's frequencies, 6 MB"
STAGES = ((2, 0), (2, 1), (3, 1))
SIZES = ("bigcode/starcoder2-3b", "zai-org/GLM-4-9B-0414", "zai-org/GLM-4.7-Flash")
# what is not met, docs/findings.md
OPEN = {
    **{f"HuggingFaceTB/SmolLM3-3B tp={t}": "a class of transformers: it has no table of cosines and sines" for t in (1, 2, 4)},
    "HuggingFaceTB/SmolLM3-3B tp=8": "a class of transformers: keys and values are cut, not replicated",
    "bigcode/starcoder2-3b tp=4": TABLES,
    "bigcode/starcoder2-3b tp=8": TABLES,
    **{f"{model} tp=2 pp={p} stage={i}": TABLES for model in SIZES for p, i in STAGES},
    **{f"mistralai/Mistral-Small-3.2-24B-Instruct-2506 tp=2 pp={p} stage={i}": FREQUENCIES for p, i in STAGES},
    "Qwen/Qwen3-30B-A3B int4 tp=4": GROUPS,
    "Qwen/Qwen3-30B-A3B int4 tp=8": GROUPS,
    "Qwen/Qwen3-30B-A3B fp8 in blocks tp=2": "a router that the configuration does not except is quantised",
}
OPEN_24 = {
    "bigcode/starcoder2-3b tp=4": TABLES,
    **{f"{model} tp=2 pp={p} stage={i}": TABLES for model in SIZES for p, i in STAGES},
    **{f"zai-org/GLM-4-9B-0414 tp={t}": TABLES for t in (1, 2, 4)},
    **{f"zai-org/GLM-4.7-Flash tp={t}": TABLES for t in (2, 4)},
    "XiaomiMiMo/MiMo-V2-Flash tp=4": "94 MiB of 143 GiB, not explained",
}
# served by classes of transformers, whose modules on the meta device are counted twice here
TWICE_24 = ("rednote-hilab/dots.llm1.inst", "HuggingFaceTB/SmolLM3-3B")


def main() -> None:
    asked = asked_for(__doc__ or "", "executed_servers.jsonl")
    degrees = [int(t) for t in asked.tensor.split(",")]
    head = {"engine": "vllm", "version": VERSION}
    late = VERSION.startswith("0.24")
    wanted = [case for case in cases(asked.configs, asked.only, degrees) if not (late and case["model"] in TWICE_24)]
    write(asked, wanted, head, lambda case: execute(case, BUDGET), OPEN_24 if late else OPEN)


if __name__ == "__main__":
    main()
