"""Write areal.json, the configuration schema of every AReaL release, from a git checkout of areal-project/AReaL.

    python models/frameworks/areal_schema.py CHECKOUT models/frameworks/areal.json

The sources are read with `ast` and never run: the dataclasses of areal/api/cli_args.py (with areal/experimental where it adds
some; of realhf for 0.2.0 and 0.3.0) and those of the configurations that examples and recipes have of their own. Facts only: names, types, defaults, choices. What a
class or field is like holds from the release `since` until the release `until`, the newest where `until` is missing.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any

from areal_sources import Checkout, Reader, enum_members, is_enum

# Release: what git calls it. The last is the development after 2.0.0.
NAMES = [
    "0.2.0",
    "0.3.0",
    "0.3.0-lite",
    "0.3.0-lite.post1",
    "0.3.0-lite.post2",
    "0.3.1",
    "0.3.2",
    "0.3.3",
    "0.3.4",
    "0.3.4.post1",
    "0.4.0",
    "0.4.1",
    "0.5.0",
    "0.5.1",
    "0.5.2",
    "0.5.3",
    "1.0.0.rc1",
    "1.0.0",
    "1.0.0.post1",
    "1.0.1",
    "1.0.2",
    "1.0.3",
    "1.0.4",
    "2.0.0",
]
RELEASES = {**{name: f"v{name}" for name in NAMES}, "2.0.0+": "cbff54d64"}
LITE = ["areal/api/cli_args.py", "areal/experimental/api/cli_args.py"]
REALHF = [
    "realhf/api/cli_args.py",
    "realhf/experiments/common/common.py",
    "realhf/experiments/common/sft_exp.py",
    "realhf/experiments/common/ppo_math_exp.py",
    "realhf/experiments/async_exp/async_rl_exp.py",
    "realhf/experiments/async_exp/async_ppo_math_exp.py",
]
OF_REALHF = ("0.2.0", "0.3.0")
REALHF_ROOTS = ("realhf:SFTConfig", "realhf:PPOMATHConfig", "realhf:AsyncPPOMATHConfig")
ROOT = "BaseExperimentConfig"

# What became of a key: (class, field, last release that means it, what means it now). A key that is still read over afterwards
# is `kept`; the writer checks that every other one ends there.
RENAMES = [
    ("ModelTrainEvalConfig", "sglang", "0.3.0", "sglang"),
    ("ModelTrainEvalConfig", "vllm", "0.3.0", "vllm"),
    ("PPOMATHExperimentOptions", "actor_train", "0.3.0", "actor.mb_spec"),
    ("PPOMATHExperimentOptions", "ref_inf", "0.3.0", "ref.mb_spec"),
    ("PPOMATHExperimentOptions", "dataset", "0.3.0", "train_dataset"),
    ("PPOMATHExperimentOptions", "ppo", "0.3.0", "actor, and gconfig for ppo.gen"),
    ("PromptOnlyDatasetConfig", "train_bs_n_seqs", "0.3.0", "train_dataset.batch_size"),
    ("AsyncRLOptions", "max_head_offpolicyness", "0.3.0", "rollout.max_head_offpolicyness"),
    ("AsyncRLOptions", "max_concurrent_rollouts", "0.3.0", "rollout.max_concurrent_rollouts"),
    ("BaseExperimentConfig", "n_nodes", "0.3.0", "cluster.n_nodes"),
    ("BaseExperimentConfig", "n_gpus_per_node", "0.3.0", "cluster.n_gpus_per_node"),
    ("MicroBatchSpec", "max_tokens_per_gpu", "0.3.1", "max_tokens_per_mb"),
    ("FSDPEngineConfig", "ulysses_sp_size", "0.3.2", "the letter c of allocation_mode"),
    ("PPOActorConfig", "group_adv_norm", "0.3.2", "adv_norm"),
    ("PPOActorConfig", "group_reward_norm", "0.3.3", "reward_norm"),
    ("BaseExperimentConfig", "weight_update_mode", "0.3.4.post1", "actor.weight_update_mode"),
    ("BaseExperimentConfig", "launcher", "0.5.1", "scheduling_spec of the engines"),
    ("SFTConfig", "model", "0.5.1", "actor"),
    ("RWConfig", "model", "0.5.1", "actor"),
    ("PPOActorConfig", "group_size", "0.5.1", "gconfig.n_samples"),
    ("vLLMConfig", "enable_prefix_caching", "0.5.1", "no_enable_prefix_caching"),
    ("vLLMConfig", "enable_chunked_prefill", "0.5.1", "no_enable_chunked_prefill"),
    ("PPOActorConfig", "behav_imp_weight_cap", "1.0.0", "behave_imp_weight_cap"),
    ("OptimizerConfig", "offload", "1.0.1", "nothing: no release read it"),
    ("BaseExperimentConfig", "allocation_mode", "1.0.2", "backend of each engine"),
    ("PPOActorConfig", "behave_imp_weight_cap", "1.0.3", "rejection_sampling.upper"),
    ("PPOActorConfig", "behave_imp_weight_mode", "1.0.3", "rejection_sampling.action"),
    ("InferenceEngineConfig", "openai", "1.0.3", "agent"),
]


def used(reader: Reader, start: set[str]) -> set[str]:
    """The classes that `start` names: bases, types of fields, classes of defaults."""
    done: set[str] = set()
    left = sorted(start)
    while left:
        name = left.pop()
        if name in done:
            continue
        done.add(name)
        if is_enum(reader.classes[name][1]):
            continue
        words = json.dumps(reader.fields(name)) + json.dumps(reader.bases(name))
        left += [other for other in list(reader.classes) if f'"{other}"' in words or re.search(rf"\b{re.escape(other)}\b", words)]
    return done


def read_release(root: Path, release: str) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    """Classes {name: {bases, values or fields}} and entry scripts {path: class}."""
    checkout = Checkout(root, RELEASES[release])
    reader = Reader(checkout)
    for path in REALHF if release in OF_REALHF else LITE:
        module = checkout.module(path)
        if module:
            reader.add(module)
    kept = used(reader, {name for name in reader.classes if ROOT in {name} | reader.ancestors(name)})
    if release not in OF_REALHF:  # 0.3.0-lite to 0.5.1 ship realhf's trainer beside their own
        for path in REALHF:
            module = checkout.module(path)
            if module:
                reader.add(module, prefix="realhf:")
        kept |= used(reader, {name for name in reader.classes if name in REALHF_ROOTS})
    scripts: dict[str, str] = {}
    for path in [] if release in OF_REALHF else checkout.examples():
        module = checkout.module(path)
        if module:
            reader.add(module, prefix=f"{path}:")
    for path in [] if release in OF_REALHF else checkout.examples():
        module = checkout.module(path)
        for entry in module.entries if module else []:
            name = reader.class_name(module, entry) if module else None
            if name:
                scripts[path] = name
    kept |= used(reader, set(scripts.values()))
    return {name: describe(reader, name) for name in kept}, scripts


def describe(reader: Reader, name: str) -> dict[str, Any]:
    module, node = reader.classes[name]
    if is_enum(node):
        return {"bases": [], "values": [reader.value(value, module) for _, value in enum_members(node)], "fields": {}}
    return {"bases": reader.bases(name), "fields": reader.fields(name)}


def ranges(rows: list[tuple[str, Any]]) -> list[dict[str, Any]]:
    """(release, row or None) of every release, in order, as rows that hold for a range of releases."""
    out: list[dict[str, Any]] = []
    before = None
    for release, row in rows:
        if row is not None and row == before:
            out[-1]["until"] = release
        elif row is not None:
            out.append({"since": release, "until": release, **row})
        before = row
    newest = rows[-1][0]
    for one in out:
        if one["until"] == newest:
            del one["until"]
    return out


def schema(root: Path) -> dict[str, Any]:
    read = {release: read_release(root, release) for release in RELEASES}
    releases = list(RELEASES)
    names = {name: None for release in releases for name in sorted(read[release][0])}
    classes: dict[str, Any] = {}
    for name in sorted(names):
        there = [(release, read[release][0].get(name)) for release in releases]
        heads = [(release, {k: v for k, v in row.items() if k != "fields"} if row else None) for release, row in there]
        keys = {key: None for _, row in there if row for key in row["fields"]}
        found = {key: ranges([(release, row["fields"].get(key) if row else None) for release, row in there]) for key in keys}
        classes[name] = {"is": ranges(heads), "fields": found}
    paths = sorted({path for release in releases for path in read[release][1]})
    scripts = {
        path: ranges([(r, {"class": read[r][1][path]} if path in read[r][1] else None) for r in releases]) for path in paths
    }
    return {
        "framework": "areal",
        "source": "areal-project/AReaL, dataclasses of areal/api/cli_args.py (0.2.0, 0.3.0: realhf), examples and recipes; 2.0.0+ is cbff54d64",
        "releases": releases,
        "scripts": scripts,
        "renames": renames(classes, releases),
        "classes": classes,
    }


def renames(classes: dict[str, Any], releases: list[str]) -> list[dict[str, Any]]:
    out = []
    for owner, key, last, now in RENAMES:
        end = classes[owner]["fields"][key][-1].get("until", releases[-1])
        kept = end != last and releases.index(end) > releases.index(last)
        assert kept or end == last, f"{owner}.{key} ends with {end}, not {last}"
        out.append({"class": owner, "field": key, "until": last, "now": now, **({"kept": True} if kept else {})})
    return out


def compact(value: dict[str, Any]) -> str:
    """JSON with one line for each field, script and rename."""
    lines = ["{"]
    for key in ("framework", "source", "releases"):
        lines.append(f" {json.dumps(key)}: {json.dumps(value[key])},")
    lines.append(' "scripts": {')
    lines.append(",\n".join(f"  {json.dumps(k)}: {json.dumps(v)}" for k, v in value["scripts"].items()) + "},")
    lines.append(' "renames": [')
    lines.append(",\n".join(f"  {json.dumps(one)}" for one in value["renames"]) + "],")
    lines.append(' "classes": {')
    blocks = []
    for name, one in value["classes"].items():
        rows = ",\n".join(f"    {json.dumps(k)}: {json.dumps(v)}" for k, v in one["fields"].items())
        blocks.append(f'  {json.dumps(name)}: {{"is": {json.dumps(one["is"])}, "fields": {{\n{rows}}}}}')
    lines.append(",\n".join(blocks) + "}}")
    return "\n".join(lines) + "\n"


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("checkout", type=Path, help="a git checkout (or bare repository) of areal-project/AReaL with its tags")
    options.add_argument("output", type=Path)
    given = options.parse_args()
    text = compact(schema(given.checkout))
    json.loads(text)
    given.output.write_text(text)


if __name__ == "__main__":
    main()
