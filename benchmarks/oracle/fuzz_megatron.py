"""Random combinations of Megatron's model arguments, executed by Megatron-core and answered by oomplan.

    PYTHONPATH=...:build/python python benchmarks/oracle/fuzz_megatron.py TRANSFORMER_ENGINE [--draws N] [--seed S]
        [--output tests/data/executed_megatron_model.jsonl] [--changed '{"moe_shared_expert_gate": true}']

Needs torch, megatron-core 0.16.1, the Python of Transformer Engine 2.17.1 (an unpacked wheel), and oomplan's module; no GPU. A draw is a
command line of pretrain_gpt.py. Executed is one rank without a pipeline (megatron_te.py), from arguments made a TransformerConfig as
core_transformer_config_from_args does, or with --stages a stage under Megatron's own schedule (megatron_stage.py); a second micro-batch counts, so that what stays is there. The same command goes through
oomplan.read_megatron. Compared are parameters, what stays, and the highest levels of forward and backward above that.

A line of the output: the words of the command, ranks, parameters, and the three figures. Refusals of either side are told.
"""

from __future__ import annotations

import argparse
import collections
import gc
import json
import random
import resource
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

import megatron_stage
import megatron_te
import torch
import torch.distributed as dist
from execute import ROOT, Row
from execute_megatron_local import Resized
from row_lines import write_rows
from torch.testing._internal.distributed.fake_pg import FakeStore

FLAGS = {row["dest"]: row for row in json.loads((ROOT / "models/frameworks/megatron_flags.json").read_text())["flags"]}
MOST_MEMORY = 12 * 2**30  # of this process: tensors are real
LONGEST = 40  # seconds that a draw may take
BYTES_OF_PARAMETER = 2 + 4 + 4 + 8  # bf16, fp32 gradient, master and two states
BASE: Row = {
    "num_layers": 2,
    "hidden_size": 256,
    "num_attention_heads": 4,
    "seq_length": 512,
    "micro_batch_size": 2,
    "global_batch_size": 8,
    "max_position_embeddings": 1024,
    "bf16": True,
    "tensor_model_parallel_size": 1,
    "padded_vocab_size": 2048,
    "position_embedding_type": "rope",
}


KEEPS_OUTPUTS = "keeps_outputs"  # no flag: deallocate_pipeline_outputs is off, as other launchers have it


def words_of(a: Row) -> list[str]:
    out: list[str] = []
    for name, value in a.items():
        if name == KEEPS_OUTPUTS:
            continue
        row = FLAGS[name]
        if row["type"] in ("on", "off", "toggle"):
            if value != (row["type"] == "off") or row["type"] == "toggle":
                out.append(row["flags"][0] if row["type"] != "toggle" or value else row["flags"][1])
            continue
        out.append(row["flags"][0])
        out += [str(v) for v in value] if isinstance(value, list) and row.get("nargs") else [str(value).replace(" ", "")]
    return out


def value_of(word: str) -> Any:
    for kind in (int, float):
        try:
            return kind(word)
        except ValueError:
            continue
    return word


def arguments_of(words: list[str]) -> Row:
    """What words_of has made words of."""
    by_flag = {flag: row for row in FLAGS.values() for flag in row["flags"]}
    out: Row = {}
    for word in words:
        if word.startswith("--"):
            row = by_flag[word]
            switch = row["type"] in ("on", "off", "toggle")
            out[row["dest"]] = row["type"] != "off" and word == row["flags"][0] if switch else []
        else:
            value = value_of(word)
            out[row["dest"]] = [*out[row["dest"]], value] if row.get("nargs") else value
    return out


def draw(rng: random.Random, staged: bool = False) -> Row:
    """Arguments as `dest` names them; what Megatron itself refuses is not drawn on purpose, but may come."""
    chance = lambda p: rng.random() < p  # noqa: E731
    tensor = rng.choice([1, 1, 2, 4])
    local = chance(0.25)
    experts = chance(0.45)
    latent = not local and chance(0.25)
    a: Row = {
        "num_layers": rng.choice([2, 3]),
        "hidden_size": rng.choice([256, 384]),
        "num_attention_heads": rng.choice([4, 8]),
        "seq_length": rng.choice([256, 512]),
        "micro_batch_size": rng.choice([1, 2]),
        "max_position_embeddings": 1024,
        "bf16": True,
        "tensor_model_parallel_size": tensor,
        "padded_vocab_size": rng.choice([1024, 2048]),
    }
    a["global_batch_size"] = 4 * a["micro_batch_size"]
    if tensor > 1 and (experts or chance(0.5)):
        a["sequence_parallel"] = True
    if chance(0.5):
        a["ffn_hidden_size"] = rng.choice([512, 640, 1024])
    if local:
        a["transformer_impl"] = "local"
    if chance(0.5) and not local:  # PyTorch's norm is another one on a GPU
        a["normalization"] = "RMSNorm"
    if chance(0.2):
        a["layernorm_zero_centered_gamma"] = True
    activation = rng.choice(["gelu", "gelu", "swiglu", "swiglu", "squared_relu", "quick_geglu"])
    if activation != "gelu":
        a[activation] = True
    if chance(0.5):
        a["add_bias_linear"] = False
    elif activation in ("squared_relu", "quick_geglu"):
        a["bias_gelu_fusion"] = False
    if chance(0.3):
        a["bias_swiglu_fusion" if activation == "swiglu" else "bias_gelu_fusion"] = False
    if chance(0.3):
        a["bias_dropout_fusion"] = False
    if chance(0.2):
        a["add_qkv_bias"] = True
    if chance(0.5):
        a["attention_dropout"] = a["hidden_dropout"] = 0.0
    position = rng.choice(["rope", "rope", "learned_absolute", "none"])
    a["position_embedding_type"] = "rope" if latent else position
    if position == "rope" and chance(0.5) and not latent:
        a["rotary_percent"] = rng.choice([0.25, 0.5])
    if latent or chance(0.3):
        a["apply_rope_fusion"] = False
        if not latent and position == "rope" and chance(0.05):
            a["rotary_interleaved"] = True
    if chance(0.5):
        a["untie_embeddings_and_output_weights"] = True
    if chance(0.9 if latent else 0.3):
        a["qk_layernorm"] = True
    if chance(0.4):
        a["gradient_accumulation_fusion"] = False
    if latent:
        a |= {"multi_latent_attention": True, "kv_lora_rank": 96, "qk_head_dim": 32, "qk_pos_emb_head_dim": 16, "v_head_dim": 32}
        a["rope_type"] = "rope"
        if chance(0.6):
            a["q_lora_rank"] = 128
    elif chance(0.5):
        a |= {"group_query_attention": True, "num_query_groups": rng.choice([g for g in (1, 2, 4) if g >= tensor])}
        if chance(0.3):
            a["kv_channels"] = 48
    if staged:
        draw_stages(a, rng)
    if experts:
        draw_experts(a, rng)
        if a.get("add_bias_linear", True) and chance(0.9):
            allow_biases(a)
    if staged:
        a["global_batch_size"] *= replicas_of(a)
    if chance(0.25):
        layers = rng.choice([1, 2]) if staged else 1
        a |= {
            "recompute_granularity": "full",
            "recompute_method": rng.choice(["uniform", "block"]),
            "recompute_num_layers": layers,
        }
    elif chance(0.3):
        modules = ["core_attn", "layernorm", "mlp"]
        if experts:
            modules += (
                ["moe"]
                + (["moe_act"] if a.get("moe_grouped_gemm") else [])
                + (["shared_experts"] if "moe_shared_expert_intermediate_size" in a else [])
            )
        if latent:
            modules.append("mla_up_proj")
        a |= {"recompute_granularity": "selective", "recompute_modules": [rng.choice(modules)]}
    return a


def draw_stages(a: Row, rng: random.Random) -> None:
    """A pipeline; the batch of a step says how many micro-batches there are."""
    stages, virtual = rng.choice([2, 2, 4]), rng.choice([1, 1, 2])
    a["pipeline_model_parallel_size"] = stages
    a["num_layers"] = stages * virtual * rng.choice([1, 2])
    micro_batches = stages * rng.choice([1, 2]) if virtual > 1 else rng.choice([1, 1, 2, 3, 2 * stages])
    if virtual > 1:
        a["num_virtual_stages_per_pipeline_rank"] = virtual
    a["global_batch_size"] = micro_batches * a["micro_batch_size"]
    if a["tensor_model_parallel_size"] > 1:
        a["sequence_parallel"] = True


def draw_experts(a: Row, rng: random.Random) -> None:
    chance = lambda p: rng.random() < p  # noqa: E731
    a |= {"num_experts": 8, "moe_router_topk": rng.choice([2, 4]), "moe_token_dispatcher_type": "alltoall"}
    a["moe_ffn_hidden_size"] = rng.choice([128, 192])
    a["expert_model_parallel_size"] = rng.choice([1, 2])
    if chance(0.5) and a["tensor_model_parallel_size"] > 1:
        a["expert_tensor_parallel_size"] = 1
    if chance(0.6) and a.get("transformer_impl") != "local":
        a["moe_grouped_gemm"] = True
    if chance(0.3) and "pipeline_model_parallel_size" not in a:
        a["moe_layer_freq"] = rng.choice(["2", f"([0]+[1]*{a['num_layers'] - 1})"])
    if chance(0.4):
        a["moe_shared_expert_intermediate_size"] = 256
        if chance(0.3):
            a["moe_shared_expert_gate"] = True
    if chance(0.3):
        a["moe_router_dtype"] = "fp32"
    if chance(0.3):
        a["moe_router_score_function"] = "sigmoid"
        if chance(0.5):
            a["moe_router_enable_expert_bias"] = True
    elif chance(0.3):
        a["moe_router_pre_softmax"] = True
    if chance(0.05):
        a["moe_latent_size"] = 128
    if chance(0.4):
        a |= {"moe_aux_loss_coeff": 0.01, "moe_router_load_balancing_type": "aux_loss"}
    if chance(0.2) and a.get("squared_relu"):
        a["use_fused_weighted_squared_relu"] = True
    if chance(0.05):
        a["moe_z_loss_coeff"] = 0.001


def allow_biases(a: Row) -> None:
    """What Megatron asks for beside biases of experts."""
    a.pop("moe_shared_expert_intermediate_size", None)
    a.pop("moe_shared_expert_gate", None)
    if a["tensor_model_parallel_size"] > 1:
        a["expert_tensor_parallel_size"] = 1
    if a.get("transformer_impl") == "local":
        a["bias_swiglu_fusion" if a.get("swiglu") else "bias_gelu_fusion"] = False
        return
    a["moe_grouped_gemm"] = True
    a["bias_dropout_fusion"] = False
    if not a.get("swiglu"):
        a["bias_gelu_fusion"] = False


def stages_of(a: Row) -> int:
    return a.get("pipeline_model_parallel_size", 1)


def batches_of(a: Row) -> int:
    """Micro-batches of a step that is executed."""
    return a["global_batch_size"] // a["micro_batch_size"] // replicas_of(a) if stages_of(a) > 1 else 2


def replicas_of(a: Row) -> int:
    return ranks_of_stage(a) // a["tensor_model_parallel_size"]


def world_of(a: Row) -> int:
    return ranks_of_stage(a) * stages_of(a)


def ranks_of_stage(a: Row) -> int:
    etp = a.get("expert_tensor_parallel_size", a["tensor_model_parallel_size"]) if "num_experts" in a else 1
    return max(a["tensor_model_parallel_size"], etp * a.get("expert_model_parallel_size", 1))


def config_of(a: Row) -> Any:
    """core_transformer_config_from_args (megatron/training/arguments.py, 0.16.1), of the arguments that are drawn."""
    import dataclasses

    from megatron.core.activations import squared_relu
    from megatron.core.fusions.fused_bias_geglu import quick_gelu
    from megatron.core.transformer.transformer_config import MLATransformerConfig, TransformerConfig

    value = lambda name: a.get(name, FLAGS[name].get("default"))  # noqa: E731
    kind = MLATransformerConfig if a.get("multi_latent_attention") else TransformerConfig
    fields = {f.name for f in dataclasses.fields(kind)}
    kw: Row = {name: v for name, v in a.items() if name in fields}
    biases = value("add_bias_linear")
    kw |= {
        "normalization": value("normalization"),  # of latent attention the class has another default than the flag
        "params_dtype": torch.bfloat16,
        "bf16": True,
        "use_cpu_initialization": True,
        "perform_initialization": False,
        "layernorm_zero_centered_gamma": bool(a.get("layernorm_zero_centered_gamma")),
        "persist_layer_norm": not a.get("no_persist_layer_norm"),
        "add_bias_linear": biases,
        "add_qkv_bias": biases or bool(a.get("add_qkv_bias")),
        "bias_activation_fusion": value("bias_swiglu_fusion") if a.get("swiglu") else biases and value("bias_gelu_fusion"),
        "num_query_groups": a["num_query_groups"] if a.get("group_query_attention") else None,
        "num_moe_experts": a.get("num_experts"),
        "rotary_percent": value("rotary_percent"),
        "hidden_dropout": value("hidden_dropout"),
        "attention_dropout": value("attention_dropout"),
        "masked_softmax_fusion": True,
        "attention_softmax_in_fp32": False,
        "bias_dropout_fusion": value("bias_dropout_fusion"),
        "gradient_accumulation_fusion": value("gradient_accumulation_fusion"),
        "apply_rope_fusion": value("apply_rope_fusion") and a["position_embedding_type"] == "rope",
        "expert_tensor_parallel_size": a.get("expert_tensor_parallel_size"),
    }
    if stages_of(a) > 1:
        virtual = a.get("num_virtual_stages_per_pipeline_rank")
        kw |= {"pipeline_dtype": torch.bfloat16, "virtual_pipeline_model_parallel_size": virtual}
        kw |= {
            "deallocate_pipeline_outputs": KEEPS_OUTPUTS not in a,
            "overlap_p2p_comm": virtual is not None,
            "batch_p2p_comm": virtual is None,
        }
    kw = {name: v for name, v in kw.items() if name in fields}
    if a.get("multi_latent_attention"):
        kw.setdefault("q_lora_rank", None)  # the class has another default than the flag
    if a.get("num_experts"):
        if "moe_layer_freq" in a:
            kw["moe_layer_freq"] = eval(a["moe_layer_freq"])
        kw["moe_router_load_balancing_type"] = value("moe_router_load_balancing_type")
        if isinstance(kw["moe_router_load_balancing_type"], list):
            kw["moe_router_load_balancing_type"] = kw["moe_router_load_balancing_type"][0]
        coefficient = a.get("moe_aux_loss_coeff", 0.0)
        kw["moe_aux_loss_coeff"] = coefficient[0] if isinstance(coefficient, list) else coefficient
    if a.get("swiglu"):
        kw |= {"activation_func": torch.nn.functional.silu, "gated_linear_unit": True}
    if a.get("squared_relu"):
        kw["activation_func"] = squared_relu
    elif a.get("quick_geglu"):
        kw |= {"activation_func": quick_gelu, "gated_linear_unit": True}
    ffn = 4 * a["hidden_size"]
    kw.setdefault("ffn_hidden_size", ffn * 2 // 3 // 64 * 64 if a.get("swiglu") else ffn)
    return kind(**kw)


def chunks_of(a: Row, stage: int) -> list[Any]:
    virtual = a.get("num_virtual_stages_per_pipeline_rank", 1)
    last = stage == stages_of(a) - 1
    return [model_of(a, c if virtual > 1 else None, stage == 0 and c == 0, last and c == virtual - 1) for c in range(virtual)]


def model_of(a: Row, virtual: int | None, first: bool, last: bool) -> Any:
    from megatron.core.models.gpt import gpt_layer_specs as specs
    from megatron.core.models.gpt.gpt_model import GPTModel

    config, local = config_of(a), a.get("transformer_impl") == "local"
    if a.get("num_experts"):
        spec = specs.get_gpt_decoder_block_spec(
            config, use_transformer_engine=not local, normalization=a.get("normalization"), vp_stage=virtual
        )
    elif local:
        spec = specs.get_gpt_layer_local_spec(qk_layernorm=config.qk_layernorm, normalization=a.get("normalization"))
    else:
        spec = specs.get_gpt_layer_with_transformer_engine_spec(
            qk_layernorm=config.qk_layernorm, multi_latent_attention=config.multi_latent_attention
        )
    model = GPTModel(
        config,
        spec,
        vocab_size=a["padded_vocab_size"],
        max_sequence_length=a["max_position_embeddings"],
        position_embedding_type=a["position_embedding_type"],
        rotary_percent=a.get("rotary_percent", 1.0),
        share_embeddings_and_output_weights=not a.get("untie_embeddings_and_output_weights"),
        pre_process=first,
        post_process=last,
        vp_stage=virtual,
    )
    for parameter in model.parameters():
        parameter.data = parameter.data.to(torch.bfloat16)
        parameter.main_grad = torch.empty(parameter.shape, dtype=torch.float32)
        parameter.grad_added_to_main_grad = False
        parameter.register_post_accumulate_grad_hook(lambda p: setattr(p, "grad", None))
    return model.train()


def execute(a: Row, stage: int) -> Row:
    from megatron.core import parallel_state
    from megatron.core.transformer.moe import moe_utils

    world = world_of(a)
    megatron_te.Router.top = a.get("moe_router_topk", 1)
    dist.init_process_group("fake", store=FakeStore(), rank=stage * ranks_of_stage(a), world_size=world)
    try:
        parallel_state.initialize_model_parallel(
            tensor_model_parallel_size=a["tensor_model_parallel_size"],
            pipeline_model_parallel_size=stages_of(a),
            virtual_pipeline_model_parallel_size=a.get("num_virtual_stages_per_pipeline_rank"),
            expert_model_parallel_size=a.get("expert_model_parallel_size", 1),
            expert_tensor_parallel_size=a.get("expert_tensor_parallel_size"),
            create_gloo_process_groups=False,
        )
        parallel_state.get_global_memory_buffer().buffer.clear()
        moe_utils.get_moe_layer_wise_logging_tracker().clear()
        moe_utils.MoEAuxLossAutoScaler.main_loss_backward_scale = None
        chunks = chunks_of(a, stage)
        storages = Resized()
        for chunk in chunks:
            for tensor in [*chunk.parameters(), *chunk.buffers()]:
                storages.own(tensor)
        gc.collect()
        megatron_te.Clock.now = storages
        with storages:
            step = (
                megatron_stage.StageStep(a, chunks, storages, batches_of(a))
                if stages_of(a) > 1
                else megatron_te.Step(a, chunks[0], storages)
            )
            empty = storages.live
            step()
            stays = storages.live - empty
            figures = step()
        parameters = sum(p.numel() for chunk in chunks for p in chunk.parameters())
        return {"parameters": parameters, "stays": stays, **figures}
    finally:
        megatron_te.Clock.now = None
        parallel_state.destroy_model_parallel()
        dist.destroy_process_group()
        for module in ("transformer_engine.pytorch.module.base",):
            sys.modules[module]._dummy_wgrads.clear()
        gc.collect()


def answered(words: list[str], world: int, stage: int, stages: int, keeps_outputs: bool = False) -> Row:
    import oomplan

    command = f"torchrun --nproc-per-node {world} pretrain_gpt.py {' '.join(words)}"
    settings = ["trainer.kernel_internals=false", *(["trainer.deallocate_outputs=false"] if keeps_outputs else [])]
    job = oomplan.read_megatron(command, *settings, gpu="h100")

    def phases_of(answer: Any) -> Row:
        first = stage * world // stages  # tensor-parallel ranks are neighbours, stages are not
        gpus = next(g for g in json.loads(answer.to_json())["gpus"] if first in g["gpus"])
        return {p["phase"].split(".")[-1]: p for p in gpus["phases"]}

    phases = phases_of(oomplan.estimate(job, quick=True))  # sums: what blocks are handed out whole is the allocator's affair
    weights = phases_of(oomplan.estimate(job))["load"]["by_category_bytes"]["weights"]
    return {
        "parameters": weights // 2,
        "rest": phases["optimizer"]["allocated_bytes"],
        "forward": phases["forward"]["allocated_bytes"] - phases["optimizer"]["allocated_bytes"],
        "backward": phases["backward"]["allocated_bytes"] - phases["optimizer"]["allocated_bytes"],
    }


def too_long(*_: Any) -> None:
    raise TimeoutError


def percent(got: float, want: float, of: float) -> float:
    return 100 * (got - want) / of


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sources", type=Path)
    parser.add_argument("--draws", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int)
    parser.add_argument(
        "--changed", type=json.loads, action="append", help="arguments of a run on top of BASE, in place of draws"
    )
    parser.add_argument("--output", type=Path)
    parser.add_argument("--again", type=Path, help="a file of executed rows: their command lines, in place of draws")
    parser.add_argument("--above", type=float, default=0.1, help="tell rows that are so many percent off")
    parser.add_argument("--stages", action="store_true", help="draw pipelines, and one stage of each")
    given = parser.parse_args()
    megatron_te.stand_in(given.sources)
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
    signal.signal(signal.SIGALRM, too_long)
    rows, errors, refused, broken = [], [], collections.Counter(), collections.Counter()
    again = [json.loads(line) for line in given.again.read_text().splitlines()] if given.again else []
    numbers = [given.only] if given.only is not None else range(len(given.changed or again) or given.draws)
    for number in numbers:
        rng = random.Random(given.seed * 100003 + number)
        a = BASE | given.changed[number] if given.changed else draw(rng, given.stages)
        if again:
            a = arguments_of(again[number]["words"].split())
            a |= {KEEPS_OUTPUTS: True} if again[number].get(KEEPS_OUTPUTS) else {}
        words, stage = words_of(a), again[number].get("stage", 0) if again else rng.randrange(stages_of(a))
        try:
            signal.alarm(LONGEST)
            want = execute(a, stage)
            signal.alarm(0)
        except Exception as error:
            signal.alarm(0)
            where = traceback.extract_tb(error.__traceback__)[-1]
            broken[f"{type(error).__name__} {Path(where.filename).name}:{where.lineno} {str(error)[:160]}"] += 1
            if given.only is not None:
                raise
            continue
        row = {"words": " ".join(words), "world": world_of(a), **want}
        if stages_of(a) > 1:
            row |= {"stage": stage, "micro_batches": batches_of(a)}
        if KEEPS_OUTPUTS in a:
            row[KEEPS_OUTPUTS] = True
        try:
            got = answered(words, world_of(a), stage, stages_of(a), KEEPS_OUTPUTS in a)
        except Exception as error:
            refused[str(error)[:400]] += 1
            continue
        rows.append(row)
        if given.output:
            write_rows(given.output, rows)
        rest = BYTES_OF_PARAMETER * want["parameters"] + want["stays"]
        off = {p: percent(got[p], want[p], rest + want[p]) for p in ("forward", "backward")}
        off["parameters"] = percent(got["parameters"], want["parameters"], want["parameters"])
        errors += [abs(off["forward"]), abs(off["backward"]), abs(off["parameters"])]
        if max(abs(v) for v in off.values()) > given.above or want["left"] != 0 or given.only is not None:
            told = {p: f"{v:+.3f} % ({got[p] - want[p]:+d} of {want[p]})" for p, v in off.items()}
            print(
                number, told, "stage", stage, "left", want["left"], "rest", got["rest"] - rest, "\n   ", row["words"], flush=True
            )
    errors.sort()
    for what, counter in (("Megatron", broken), ("oomplan", refused)):
        for text, count in counter.most_common():
            print(f"{what} refuses {count}: {text}")
    if errors:
        print(
            f"{len(rows)} rows, {len(errors)} figures, p50 {errors[len(errors) // 2]:.4f} p95 {errors[int(0.95 * len(errors))]:.4f} worst {errors[-1]:.4f} %"
        )


if __name__ == "__main__":
    main()
