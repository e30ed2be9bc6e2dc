"""Reports on verl and AReaL in the words of these frameworks: a command, a file."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from corpus import CannotExpress, Row
from incident_words import EARLY, FLAG_WORDS, Choice, Settings, card, gpus_of, model_config, needed, newest, release

# Days of the tags in volcengine/verl; from 0.7.1 on the first of the month that its packages are of, or the day that is known.
VERL_RELEASES = (
    ("2025-04-03", "0.3.0"), ("2025-06-06", "0.4.0"), ("2025-06-26", "0.4.1"), ("2025-07-23", "0.5.0"), ("2025-10-15", "0.6.0"),
    ("2025-11-14", "0.6.1"), ("2026-01-05", "0.7.0"), ("2026-03-01", "0.7.1"), ("2026-06-01", "0.8.0"), ("2026-08-14", "0.9.0"),
)  # fmt: skip
AREAL_RELEASES = ("0.5.3", "1.0.4", "2.0.0")

ARR = "actor_rollout_ref"
MICRO_BATCH = ("micro_batch", "micro_batch_size", "ppo_micro_batch_size_per_gpu", "micro_batch_per_gpu", "micro_train_batch")
BUDGET = ("ppo_max_token_len_per_gpu", "max_token_len_per_gpu", "max_token_len", "max_tokens_per_gpu")
PROMPT = ("max_prompt", "max_prompt_length", "prompt", "prompt_length")
RESPONSE = ("max_response", "max_response_length", "max_response_len", "response", "response_length")

# Words of reports that are one key, whatever trains.
VERL_KEYS: dict[str, tuple[str, ...]] = {
    "data.train_batch_size": ("train_batch_size", "train_batch", "global_batch"),
    f"{ARR}.actor.ppo_mini_batch_size": ("ppo_mini_batch_size", "mini_batch", "mini_batch_size"),
    f"{ARR}.actor.entropy_coeff": ("entropy_coeff",),
    f"{ARR}.actor.use_kl_loss": ("use_kl_loss",),
    f"{ARR}.actor.entropy_from_logits_with_chunking": (
        "entropy_from_logits_with_chunking",
        "entropy_chunking",
        "chunked_entropy",
    ),
    f"{ARR}.actor.entropy_checkpointing": ("entropy_checkpointing",),
    f"{ARR}.model.use_remove_padding": ("use_remove_padding", "remove_padding"),
    f"{ARR}.model.lora_rank": ("lora_rank",),
    f"{ARR}.model.use_fused_kernels": ("use_fused_kernels", "fused_kernels", "fused_loss"),
    f"{ARR}.model.use_liger": ("use_liger",),
    f"{ARR}.model.enable_activation_offload": ("enable_activation_offload", "activation_offload"),
    f"{ARR}.rollout.n": ("n", "rollout_n", "group_size", "n_samples"),
    f"{ARR}.rollout.gpu_memory_utilization": ("gpu_memory_utilization", "mem_fraction_static", "mem_fraction"),
    f"{ARR}.rollout.tensor_model_parallel_size": ("rollout_tp", "inference_tp", "infer_tp", "gen_tp", "vllm_tp", "sglang_tp"),
    f"{ARR}.rollout.enforce_eager": ("enforce_eager",),
    f"{ARR}.rollout.free_cache_engine": ("free_cache_engine",),
    f"{ARR}.rollout.max_num_seqs": ("max_num_seqs",),
    f"{ARR}.rollout.max_num_batched_tokens": ("max_num_batched_tokens",),
    f"{ARR}.rollout.max_model_len": ("max_model_len",),
    f"{ARR}.rollout.layered_summon": ("layered_summon",),
    f"{ARR}.rollout.load_format": ("load_format",),
    f"{ARR}.rollout.multi_stage_wake_up": ("multi_stage_wake_up",),
    f"{ARR}.rollout.update_weights_bucket_megabytes": ("update_weights_bucket_megabytes",),
}
OF_FSDP: dict[str, tuple[str, ...]] = {
    f"{ARR}.actor.fsdp_config.param_offload": ("param_offload",),
    f"{ARR}.actor.fsdp_config.optimizer_offload": ("optimizer_offload",),
    f"{ARR}.actor.fsdp_config.offload_policy": ("offload_policy",),
    f"{ARR}.actor.fsdp_config.fsdp_size": ("fsdp_size",),
    f"{ARR}.actor.fsdp_config.reshard_after_forward": ("reshard_after_forward",),
    f"{ARR}.actor.fsdp_config.model_dtype": ("model_dtype",),
    f"{ARR}.actor.ulysses_sequence_parallel_size": ("ulysses", "ulysses_sp", "sp", "sp_size", "ulysses_sequence_parallel_size"),
    f"{ARR}.model.enable_gradient_checkpointing": ("gradient_checkpointing", "enable_gradient_checkpointing", "recompute"),
}
OF_MEGATRON: dict[str, tuple[str, ...]] = {
    f"{ARR}.actor.megatron.tensor_model_parallel_size": ("tp", "train_tp"),
    f"{ARR}.actor.megatron.pipeline_model_parallel_size": ("pp", "train_pp"),
    f"{ARR}.actor.megatron.context_parallel_size": ("cp",),
    f"{ARR}.actor.megatron.expert_model_parallel_size": ("ep",),
    f"{ARR}.actor.megatron.expert_tensor_parallel_size": ("etp",),
    f"{ARR}.actor.megatron.sequence_parallel": ("sp", "sequence_parallel"),
    f"{ARR}.actor.megatron.param_offload": ("param_offload",),
    f"{ARR}.actor.megatron.optimizer_offload": ("optimizer_offload",),
    f"{ARR}.actor.megatron.use_distributed_optimizer": ("distributed_optimizer", "use_distributed_optimizer"),
}
ESTIMATORS = {
    "ppo": "gae", "gae": "gae", "grpo": "grpo", "dapo": "grpo", "rloo": "rloo", "remax": "remax", "reinforce++": "reinforce_plus_plus",
    "reinforce_plus_plus": "reinforce_plus_plus",
}  # fmt: skip


def text_of(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def take_keys(given: Settings, table: dict[str, tuple[str, ...]]) -> list[str]:
    out = []
    for key, names in table.items():
        if (value := given.take(*names)) is None:
            continue
        if key.endswith("enable_gradient_checkpointing"):
            value = FLAG_WORDS.get(str(value).lower(), value)
        if not isinstance(value, (bool, int, float)) and not re.fullmatch(r"[\w.:+-]+", str(value)):
            raise CannotExpress(f"the setting {names[0]} is not understood")
        out.append(f"{key}={text_of(value)}")
    return out


def machines(given: Settings, gpus: int, most: int = 8) -> tuple[int, int]:
    """Nodes, and GPUs of each. Up to eight GPUs are one machine unless the report says otherwise, more are machines of eight."""
    nodes = given.count("nodes", "nnodes", "n_nodes")
    if nodes is None:
        if gpus > most and gpus % most:
            raise CannotExpress("the number of machines is not stated")
        nodes = max(1, gpus // most)
    if gpus % nodes:
        raise CannotExpress("the number of machines does not divide the GPUs")
    return nodes, gpus // nodes


def host_memory(given: Settings) -> Row:
    """RAM of one machine."""
    stated = given.take("host_ram_gb", "host_memory_gb", "host_ram")
    if stated is None:
        return {}
    if isinstance(stated, bool) or not isinstance(stated, (int, float)):
        raise CannotExpress("the setting host_ram_gb is not one number")
    return {"host": f"{round(stated * 10**9)}B"}


def no_images(config: Row) -> None:
    if any(isinstance(config.get(key), dict) for key in ("vision_config", "audio_config")):
        raise CannotExpress("the images of a batch are not stated")


def is_verl(row: Row) -> bool:
    return bool(re.match(r"verl( \+ .*)?$", str(row.get("framework") or ""), re.IGNORECASE))


def is_areal(row: Row) -> bool:
    return bool(re.match(r"areal( \+ .*)?$", str(row.get("framework") or ""), re.IGNORECASE))


def is_slime(row: Row) -> bool:
    return bool(re.match(r"slime( \+ .*)?$", str(row.get("framework") or ""), re.IGNORECASE))


def slime_ask(row: Row, corpus: Path, choice: Choice) -> Row:
    """Reports under slime are of samples that are longer than any flag says. Two say how long: tests/data/slime_incidents.jsonl."""
    gpus_of(row)
    model_config(row, corpus)
    card(row, choice)
    raise CannotExpress("how long the longest sample is, which no flag of slime bounds, is not stated")


def engine_words(row: Row, given: Settings) -> str:
    """The server that a report names beside the framework: in its own field, in the framework's or in that of the version."""
    words = [given.word("rollout"), str(row.get("framework")), str(row.get("version") or "")]
    for text in words:
        found = re.search(r"vllm|sglang", str(text or ""), re.IGNORECASE)
        if found:
            return found.group(0).lower()
    return ""


def verl_release(row: Row) -> str:
    said = str(row.get("version") or "")
    stated = "" if re.match(r"(vllm|sglang|20\d\d)", said, re.IGNORECASE) else release(said)
    found = stated or newest(VERL_RELEASES, said if said.startswith("20") else row.get("date"))
    if not found:
        raise CannotExpress("the release is not stated")
    return found


def verl_ask(row: Row, corpus: Path, choice: Choice) -> Row:
    given, early = Settings(row.get("config")), row.get("phase") in EARLY
    config = model_config(row, corpus)
    if not early:
        no_images(config)
    version = verl_release(row)
    gpu = card(row, choice)
    nodes, each = machines(given, gpus_of(row))
    trainer = given.word("trainer", "strategy", "backend") or "fsdp"
    if trainer not in ("fsdp", "fsdp1", "fsdp2", "megatron"):
        raise CannotExpress(f"the trainer {trainer} is not mapped")
    words = ["python3", "-m", "verl.trainer.main_ppo"]
    if trainer == "megatron":
        words.append("--config-name=ppo_megatron_trainer.yaml")
    else:
        words.append(f"{ARR}.actor.strategy={'fsdp2' if trainer == 'fsdp2' else 'fsdp'}")
    words += [f"trainer.nnodes={nodes}", f"trainer.n_gpus_per_node={each}", f"{ARR}.model.path={{model}}"]
    algorithm = given.word("algorithm", "adv_estimator") or choice.of("the algorithm", ["grpo", "ppo"])
    if algorithm not in ESTIMATORS:
        raise CannotExpress(f"the algorithm {algorithm} is not mapped")
    words.append(f"algorithm.adv_estimator={ESTIMATORS[algorithm]}")
    server = engine_words(row, given)
    minor = tuple(int(part) for part in version.split("."))[:2]
    if not server:
        server = "vllm" if minor <= (0, 5) else choice.of("the server", ["vllm", "sglang"])
    words.append(f"{ARR}.rollout.name={server}")
    words += batches(given, row, early, ESTIMATORS[algorithm] == "gae")
    if trainer == "megatron":
        words += take_keys(given, OF_MEGATRON)
        if given.flag("recompute", "gradient_checkpointing"):
            recompute = f"{ARR}.actor.megatron.override_transformer_config.recompute_"
            words += [f"+{recompute}{key}" for key in ("granularity=full", "method=uniform", "num_layers=1")]
    else:
        words += take_keys(given, OF_FSDP)
        if tensor := given.count("tp"):
            words.append(f"{ARR}.rollout.tensor_model_parallel_size={tensor}")
    given.take("grad_offload")  # read by nothing
    words += take_keys(given, VERL_KEYS)
    words += [f"{key}={text_of(given.take(key))}" for key in list(given.left) if re.match(r"\+?\w+\.[\w.]+$", key)]
    host = host_memory(given)
    given.done()
    return {"command": words, "version": version, "gpu": gpu, "config": json.dumps(config), **host}


def batches(given: Settings, row: Row, early: bool, critic: bool) -> list[str]:
    """Lengths and micro-batches. Before the first batch none of them matters, and verl's own lengths are left."""
    words = []
    prompt, response = given.count(*PROMPT), given.count(*RESPONSE)
    if not early:
        prompt, response = needed(prompt, "the longest prompt"), needed(response, "the longest response")
    if prompt is not None:
        words.append(f"data.max_prompt_length={prompt}")
    if response is not None:
        words.append(f"data.max_response_length={response}")
    micro, budget = given.count(*MICRO_BATCH), given.count(*BUDGET)
    dynamic = given.flag("use_dynamic_bsz", "dynamic_batch")
    scored = given.count("log_prob_micro_batch", "log_prob_micro_batch_size_per_gpu", "micro_rollout_batch")
    scored_budget = given.count("log_prob_max_token_len_per_gpu", "log_prob_max_token_len")
    if early and micro is None and budget is None:
        micro = 1
    if budget is None and dynamic:
        budget = 16384  # ppo_max_token_len_per_gpu of every release
    if budget is not None:
        words += [f"{ARR}.actor.use_dynamic_bsz=True", f"{ARR}.actor.ppo_max_token_len_per_gpu={budget}"]
        words += [f"{ARR}.{role}.log_prob_use_dynamic_bsz=True" for role in ("rollout", "ref")]
        for role in ("rollout", "ref"):
            words.append(f"{ARR}.{role}.log_prob_max_token_len_per_gpu={scored_budget or budget}")
        return [*words, "critic.use_dynamic_bsz=True", "critic.model.path={model}"] if critic else words
    micro = needed(micro, "the micro-batch")
    if scored is None and row.get("phase") == "log-probs":
        raise CannotExpress("the micro-batch of the log-probs is not stated")
    words.append(f"{ARR}.actor.ppo_micro_batch_size_per_gpu={micro}")
    words += [f"{ARR}.{role}.log_prob_micro_batch_size_per_gpu={scored or micro}" for role in ("rollout", "ref")]
    return [*words, f"critic.ppo_micro_batch_size_per_gpu={micro}", "critic.model.path={model}"] if critic else words


# ---- AReaL

AREAL_KEYS: dict[str, tuple[str, ...]] = {
    "allocation_mode": ("allocation_mode",),
    "gconfig.n_samples": ("n_samples", "group_size"),
    "actor.mb_spec.max_tokens_per_mb": ("max_tokens_per_mb",),
    "actor.gradient_checkpointing": ("gradient_checkpointing",),
    "actor.dtype": ("dtype",),
    "sglang.mem_fraction_static": ("mem_fraction_static",),
    "vllm.gpu_memory_utilization": ("gpu_memory_utilization",),
    "actor.weight_chunked_mem_mb": ("weight_chunked_mem_mb",),
    "train_dataset.batch_size": ("batch_size", "train_batch_size"),
    "rollout.max_concurrent_rollouts": ("max_concurrent_rollouts",),
    "actor.fsdp.offload_params": ("offload_params",),
}


def areal_ask(row: Row, corpus: Path, choice: Choice) -> Row:
    """A file of its keys, and those of the report over it."""
    given = Settings(row.get("config"))
    config = model_config(row, corpus)
    no_images(config)
    gpu = card(row, choice)
    nodes, each = machines(given, gpus_of(row))
    prompt = needed(given.count(*PROMPT), "the longest prompt")
    response = needed(given.count("max_new_tokens", *RESPONSE), "the longest response")
    said = str(row.get("version") or "")
    version = ("" if re.match("vllm|sglang", said, re.IGNORECASE) else release(said)) or choice.of("the release", AREAL_RELEASES)
    server = engine_words(row, given) or "sglang"
    stated = {key: value for key, names in AREAL_KEYS.items() if (value := given.take(*names)) is not None}
    stated |= {key: given.take(key) for key in list(given.left) if re.match(r"\w+\.[\w.]+$", key)}
    host = host_memory(given)
    given.done()
    if "actor.mb_spec.max_tokens_per_mb" not in stated:
        raise CannotExpress("the micro-batch is not stated")
    if not {"allocation_mode", "actor.backend"} & set(stated):
        raise CannotExpress("how the GPUs are shared out is not stated")
    names = {"experiment_name": "report", "trial_name": "report"}
    tree: Row = {
        **names,
        "tokenizer_path": "{model}",
        "cluster": {"n_nodes": nodes, "n_gpus_per_node": each, "fileroot": "files"},
        "gconfig": {"max_new_tokens": response},
        "rollout": {**names},
        "actor": {**names, "path": "{model}", "optimizer": {"type": "adam"}},
        server: {"model_path": "{model}"} if server == "sglang" else {"model": "{model}"},
        "train_dataset": {"path": "data", "type": "rl", "max_length": prompt, "batch_size": 8},
    }
    for key, value in stated.items():
        put(tree, key, value)
    return {"file": tree, "version": version, "gpu": gpu, "config": json.dumps(config), **host}


def put(tree: Row, key: str, value: Any) -> None:
    *folders, last = key.split(".")
    for folder in folders:
        tree = tree.setdefault(folder, {})
    tree[last] = value
