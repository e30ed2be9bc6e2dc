"""Executed steps of Megatron-core as command lines of pretrain_gpt.py, read as a user's are.

Every field of a row is taken (fields.py) and becomes flags. What no flag says is a setting behind the command. A field that this
file does not know and that is called as an argument of Megatron is that argument, with its flag from the table of flags; the
command's reader says what is not supported.
"""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

from corpus import ROOT, CannotExpress, Case, Row, not_yet
from fields import Fields

PHASES = ("forward", "backward", "optimizer")

# Fields that bear no memory, and why.
PASSED_OVER = {
    "id": "name",
    "measured_row": "link",
    "peaks_by_phase": "figures",
}

# Of a router whose coefficient no row states: any above 0 has the same tensors.
COEFFICIENT = 0.001
IMPLEMENTATIONS = {"te": "transformer_engine", "local": "local"}
ATTENTIONS = {name: name for name in ("fused", "flash", "unfused")}
GRADIENTS = {None: "fp32", "fp32": "fp32", "bf16": "bf16"}
FORMATS = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16", "uint8": "fp8"}
POSITIONS = {None: "rope", "rope": "rope", "learned_absolute": "learned_absolute", "none": "none"}
NORMS = {None: "RMSNorm", "RMSNorm": "RMSNorm", "LayerNorm": "LayerNorm"}
ENTROPIES = {None: None, "te": "te", "native": "native"}
EXCHANGES = {None: "p2p", "p2p": "p2p", "a2a": "a2a", "all_gather": "all_gather", "allgather": "all_gather"}
BALANCES: dict[str | None, str] = {None: "aux_loss"} | {
    name: name for name in ("aux_loss", "seq_aux_loss", "global_aux_loss", "sinkhorn", "none")
}
RELEASES = {None: None, "2.11": "2.11", "2.9": "2.9"}


@cache
def arguments() -> dict[str, Row]:
    """Megatron's arguments by name."""
    table = json.loads((ROOT / "models" / "frameworks" / "megatron_flags.json").read_text(encoding="utf-8"))
    return {row["dest"]: row for row in table["flags"]}


def text_of(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


class Command:
    """Words behind `pretrain_gpt.py`, and settings behind the command."""

    def __init__(self) -> None:
        self.words: list[str] = []
        self.settings: list[str] = []

    def put(self, name: str, value: Any) -> None:
        """An argument by its name. A flag that is on already, or off, is not written."""
        row = arguments().get(name)
        if row is None:
            raise CannotExpress(f"Megatron has no argument {name}")
        flag, kind = row["flags"][0], row["type"]
        if kind in ("on", "off"):
            if not isinstance(value, bool):
                raise CannotExpress(f"{json.dumps(value)[:40]} of Megatron's {flag} is not mapped")
            if value == (kind == "on"):
                self.words.append(flag)
            return
        if isinstance(value, (dict, bool)):
            raise CannotExpress(f"{json.dumps(value)[:40]} of Megatron's {flag} is not mapped")
        self.words += [flag, *map(text_of, value if isinstance(value, list) else [value])]

    def set(self, knob: str, value: Any) -> None:
        text = json.dumps(value) if isinstance(value, bool) else text_of(value)
        self.settings.append(f"trainer.{knob}={text}")


# Arguments that are called by a word of theirs.
SHORT = {"score": "moe_router_score_function", "expert_bias": "moe_router_enable_expert_bias"}


def take_rest(given: Fields, command: Command, *prefixes: str) -> None:
    """Fields that are called as arguments of Megatron."""
    for name, value in list(given.values.items()):
        if value is None:
            continue
        argument = next((p + name for p in prefixes if p + name in arguments()), SHORT.get(name))
        if argument is not None:
            command.put(argument, given.take(name))


def put_degrees(row: Fields, command: Command, experts: bool) -> tuple[int, int]:
    """GPUs, and data-parallel ranks."""
    degrees = {name: row.count(name) for name in ("tp", "pp", "cp", "dp")}
    names = {"tp": "tensor_model_parallel_size", "pp": "pipeline_model_parallel_size", "cp": "context_parallel_size"}
    for short, name in names.items():
        command.put(name, degrees[short])
    world = degrees["tp"] * degrees["pp"] * degrees["cp"] * degrees["dp"]
    row.equal("world", world, "the degrees make")
    expert, split = row.count("ep", 1), row.count("etp", 0, least=0)
    if not experts and (expert > 1 or split > 1):
        raise CannotExpress("the experts that the field ep or etp splits are not stated")
    if experts:
        command.put("expert_model_parallel_size", expert)
    if experts and split:  # Megatron's default is that of everything else
        command.put("expert_tensor_parallel_size", split)
    chunks = row.count("vpp", 1)
    if chunks > 1:
        command.put("num_virtual_stages_per_pipeline_rank", chunks)
    command.put("sequence_parallel", row.flag("sp"))
    if degrees["cp"] > 1:
        command.put("cp_comm_type", row.word("cp_comm", EXCHANGES))
    else:
        row.word("cp_comm", EXCHANGES)  # nothing is exchanged
    return world, degrees["dp"]


def put_experts(arch: Fields, layers: int, command: Command) -> None:
    given = arch.group("moe")
    if given is None:
        return
    command.put("num_experts", given.count("experts"))
    command.put("moe_router_topk", given.count("topk"))
    command.put("moe_ffn_hidden_size", given.count("ffn"))
    if shared := given.count("shared", 0, least=0):
        command.put("moe_shared_expert_intermediate_size", shared)
    if dense := given.count("dense_layers", 0, least=0):
        command.put("moe_layer_freq", f"([0]*{dense}+[1]*{max(0, layers - dense)})")
    command.put("moe_router_pre_softmax", given.flag("pre_softmax"))
    if scaling := given.number("scaling"):
        command.put("moe_router_topk_scaling_factor", scaling)
    command.put("moe_router_load_balancing_type", given.word("balancing", BALANCES))
    command.put("moe_aux_loss_coeff", given.number("aux", COEFFICIENT))
    if (groups := given.count("groups", 1)) > 1:
        command.put("moe_router_num_groups", groups)
        command.put("moe_router_group_topk", given.count("group_topk"))
    else:
        given.count("group_topk", 1)
    take_rest(given, command, "moe_router_", "moe_", "")


def put_latents(arch: Fields, command: Command) -> bool:
    given = arch.group("mla")
    if given is None:
        return False
    command.put("multi_latent_attention", True)
    if ranks := given.count("q_lora", 0, least=0):
        command.put("q_lora_rank", ranks)
    names = {"kv_lora": "kv_lora_rank", "qk_head": "qk_head_dim", "rope_head": "qk_pos_emb_head_dim", "v_head": "v_head_dim"}
    for short, name in names.items():
        command.put(name, given.count(short))
    take_rest(given, command, "")
    return True


def put_model(row: Fields, command: Command, experts: bool) -> None:
    """A row's words are about what differs from Llama: RMSNorm, rotary positions, SwiGLU and no biases."""
    arch = row.group("arch")
    if arch is None:
        raise CannotExpress("the field arch is not stated")
    layers = arch.count("layers")
    command.put("num_layers", layers)
    for name, argument in (("hidden", "hidden_size"), ("heads", "num_attention_heads")):
        command.put(argument, arch.count(name))
    if "ffn" in arch.values or not experts:
        command.put("ffn_hidden_size", arch.count("ffn"))
    if groups := arch.count("groups", 0, least=0):
        command.put("group_query_attention", True)
        command.put("num_query_groups", groups)
    if width := arch.count("kv_channels", 0, least=0):
        command.put("kv_channels", width)
    command.put("vocab_size", arch.count("vocab"))
    command.put("untie_embeddings_and_output_weights", not arch.flag("tied"))
    latent = put_latents(arch, command)
    command.put("qk_layernorm", arch.flag("qk_norm", latent))
    put_activation(arch, command)
    norm = arch.word("norm", NORMS)
    command.put("normalization", norm)
    if norm == "RMSNorm" and row.values.get("impl") == "local":  # PyTorch's own, for which Megatron asks for it
        command.put("no_persist_layer_norm", True)
    command.put("add_bias_linear", arch.flag("bias"))
    command.put("position_embedding_type", arch.word("position", POSITIONS))
    put_experts(arch, layers, command)
    take_rest(arch, command, "", "add_")


def put_activation(arch: Fields, command: Command) -> None:
    """`gated` is left out where the block is SwiGLU; another activation with no word on gates is not guessed."""
    gated, activation = arch.take("gated"), arch.take("act")
    if gated is None and activation in (None, "silu", "swiglu"):
        gated = True
    known = {(True, None): "swiglu", (True, "silu"): "swiglu", (True, "swiglu"): "swiglu"} | {
        (False, None): "",
        (False, "gelu"): "",
        (False, "squared_relu"): "squared_relu",
    }
    if gated is None:
        raise CannotExpress("whether the feed-forward block has gates is not stated")
    if isinstance(gated, bool) and (activation is None or isinstance(activation, str)) and (gated, activation) in known:
        if known[gated, activation]:
            command.put(known[gated, activation], True)
        if known[gated, activation] == "squared_relu":  # Megatron asks for it
            command.put("bias_gelu_fusion", False)
        return
    if gated is True and activation in ("gelu", "quick_gelu"):
        raise not_yet("a gate of GELU")
    raise arch.refuse("act", activation)


def put_recompute(row: Fields, command: Command) -> None:
    given = row.group("recompute")
    if given is None:
        return
    granularity = given.word("granularity", {"selective": "selective", "full": "full"})
    command.put("recompute_granularity", granularity)
    if granularity == "selective":
        modules = given.take("modules")
        if not isinstance(modules, list) or not modules:
            raise given.refuse("modules", modules)
        command.put("recompute_modules", modules)
        return
    command.put("recompute_method", given.word("method", {"uniform": "uniform", "block": "block"}))
    command.put("recompute_num_layers", given.count("num_layers", least=0))


def put_optimizer(row: Fields, command: Command) -> None:
    command.put("use_distributed_optimizer", row.flag("distributed_optimizer"))
    command.put("gradient_accumulation_fusion", row.flag("gradient_accumulation_fusion"))
    command.put("grad_reduce_in_bf16", row.word("grads", GRADIENTS) == "bf16")
    given = row.group("precision_aware")
    if given is None:
        return
    command.put("use_precision_aware_optimizer", True)
    names = {"main_grads_dtype": "main_grads_dtype", "main_params_dtype": "main_params_dtype"}
    for name in (*names, "exp_avg_dtype", "exp_avg_sq_dtype"):
        command.put(name, given.word(name, FORMATS))


def put_kernels(row: Fields, command: Command, experts: bool) -> None:
    implementation = row.word("impl", IMPLEMENTATIONS)
    command.put("transformer_impl", implementation)
    local = implementation == "local"
    attention = row.word("attention", ATTENTIONS | ({None: "", "local": "", "eager": ""} if local else {}))
    if not local:  # Megatron's own modules have one attention
        command.put("attention_backend", attention)
    if fusion := row.word("cross_entropy", ENTROPIES):
        command.put("cross_entropy_loss_fusion", True)
        command.put("cross_entropy_fusion_impl", fusion)
        command.put("disable_jit_fuser", fusion == "native")  # fake tensors ran uncompiled
    command.put("apply_rope_fusion", row.flag("rope_fusion", True))
    command.put("create_attention_mask_in_dataloader", row.flag("attention_mask"))
    if layers := row.count("mtp", 0, least=0):
        command.put("mtp_num_layers", layers)
    if not row.flag("deallocate_outputs", True):
        command.set("deallocate_outputs", False)
    if release := engine_release(row):
        command.set("te_release", release)
    router, fused = row.word("router_dtype", {None: None, "fp32": "fp32", "fp64": "fp64"}), row.flag("permute_fusion")
    capacity, imbalance = row.number("moe_capacity"), row.number("imbalance")
    if not experts:
        return
    command.put("moe_token_dispatcher_type", "alltoall")
    command.put("moe_grouped_gemm", True)
    command.put("moe_permute_fusion", fused)
    if router:
        command.put("moe_router_dtype", router)
    if capacity:
        command.put("moe_expert_capacity_factor", capacity)
        command.put("moe_pad_expert_input_to_capacity", True)  # as all rows with a factor were executed
    if imbalance:
        command.set("expert_imbalance", imbalance)


def engine_release(row: Fields) -> str | None:
    """Of Transformer Engine, which two fields may say. The arguments are those of Megatron-core 0.16."""
    stated, given = row.word("te", RELEASES), row.group("versions")
    if given is None:
        return stated
    for name, form in (("torch", r"\d+(\.\d+)+([+a-z].*)?"), ("megatron-core", r"0\.16(\.\d+)*")):
        if name in given.values and not re.fullmatch(form, text := given.text(name)):
            raise given.refuse(name, text)
    found = [given.word(name, RELEASES) for name in list(given.values) if name.startswith("transformer-engine")]
    releases = {release for release in (stated, *found) if release}
    if len(releases) > 1:
        raise CannotExpress("the fields te and versions say two releases of Transformer Engine")
    return releases.pop() if releases else None


def put_overrides(row: Fields, dropout: float, command: Command) -> None:
    """Fields of Megatron's configuration. Without dropout the kernel of bias and dropout keeps the same tensors as its parts."""
    given = row.group("overrides")
    if given is None:
        return
    if "bias_dropout_fusion" in given.values and dropout == 0:
        given.flag("bias_dropout_fusion")
    take_rest(given, command, "", "moe_")


def command_of(row: Row) -> Row:
    """Words, settings and facts of a row. Raises CannotExpress."""
    fields = Fields(row)
    if "model" in fields.values:
        fields.text("model")  # a name: the arguments describe it
    arch = row.get("arch")
    experts = bool(isinstance(arch, dict) and arch.get("moe"))
    command = Command()
    world, data = put_degrees(fields, command, experts)
    sequences, tokens = fields.count("micro_batch"), fields.count("seq")
    command.put("micro_batch_size", sequences)
    command.put("global_batch_size", sequences * fields.count("micro_batches") * data)
    command.put("seq_length", tokens)
    command.put("max_position_embeddings", tokens)
    put_model(fields, command, experts)
    dropout = fields.number("dropout")
    command.put("attention_dropout", dropout)
    command.put("hidden_dropout", dropout)
    put_recompute(fields, command)
    put_kernels(fields, command, experts)
    put_optimizer(fields, command)
    put_overrides(fields, dropout, command)
    command.put("bf16", True)
    stage = fields.count("stage", 0, least=0)
    take_rest(fields, command, "", "moe_")
    fields.done(PASSED_OVER)
    command.set("kernel_internals", False)  # fake tensors have none
    words = ["torchrun", "--nproc-per-node", str(world), "pretrain_gpt.py", *command.words]
    return {"command": words, "settings": command.settings, "apart": {"stage": stage + 1}}


def megatron_cases(row: Row, _corpus: Path) -> list[Case]:
    measured = {
        name: figure if isinstance(figure, int) else figure.get("bytes")
        for name, figure in row["peaks_by_phase"].items()
        if name in PHASES
    }
    measured["peak"] = row.get("peak_bytes")
    job: Row = {}
    why = ""
    try:
        job = command_of(row)
    except CannotExpress as reason:
        why = str(reason)
    return [Case(row["id"], name, int(value), "megatron", job, "", name, why) for name, value in measured.items() if value]
