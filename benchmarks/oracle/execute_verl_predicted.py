"""Makes tests/data/executed_verl_predicted.jsonl: training steps of verl's actors with multi-token prediction under Megatron, executed.

    python benchmarks/oracle/execute_verl_predicted.py --core MEGATRON_CORE --te TRANSFORMER_ENGINE --mbridge MBRIDGE --verl VERL
        [--output tests/data/executed_verl_predicted.jsonl] [--only N...]

Needs torch, transformers, einops, safetensors, megatron-core 0.18.0, the Python of Transformer Engine 2.17.1, mbridge 10cb17f and verl
0.10 (their sources are enough); no GPU. Whole steps run on the CPU as one rank of PyTorch's fake process group: mbridge's MiMo makes
the model, verl/models/mcore/mtp_patch.py patches it as patch_engine_mtp does, gptmodel_forward_model_engine
(verl/models/mcore/model_forward.py) packs the sequences, rolls labels and masks and runs it, and log-probs come from
vocab_parallel_log_probs_from_logits behind the division by the temperature (_lm_head_logits_processor). `native`: the blocks' loss and
weights' gradients are fused, as Megatron-Bridge's GPTModelProvider has them. `runs` is model.mtp.enable_train: without it the block is
there and nothing calls it. `packed` is use_remove_padding. The policy's loss is one number a token.

Megatron-core 0.18.0 itself fails where a block is checkpointed: its forward hands over a padding_mask that its checkpoint does not
take. It is dropped here, where it is None; main takes it.

Stood in for is what megatron_te.py says, and attention as in execute_megatron_vision.py. Every gradient goes as soon as it has been
added up. A line: the settings, parameters of the rank, and `peaks` of forward and backward above what lives when a step is over; of the
last stage of two (`first` false) parameters alone, and of a pass
without gradients (`gradients` false) the highest level of that.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import types
import warnings
from pathlib import Path
from typing import Any

import execute_megatron_linear as linear
import execute_megatron_vision as vision
import torch
from execute import ROOT, Row
from verl_megatron_step import Config, execute

BASE: Row = {
    "layers": 4,
    "hidden": 256,
    "heads": 8,
    "groups": 4,
    "ffn": 512,
    "vocab": 512,
    "sequences": 2,
    "tokens": 128,
    "tensor": 1,
    "recompute": "none",
    "recompute_method": None,
    "recompute_layers": None,
    "native": False,
    "entropy": False,
    "first": True,
    "last": True,
    "gradients": True,
    "packed": True,
    "runs": True,
}
SPLIT: Row = {"tensor": 2}
UNIFORM: Row = {"recompute": "full", "recompute_method": "uniform", "recompute_layers": 1}
LARGE: Row = {"vocab": 8192}  # the heads have the highest levels
NATIVE: Row = {"native": True}
ENTROPY: Row = {"entropy": True}
ALONE: Row = {"gradients": False, "entropy": True}  # the pass of the old log-probs
LAST: Row = {"first": False}  # the last stage of two: parameters alone
IDLE: Row = {"runs": False}  # model.mtp.enable without enable_train
PADDED: Row = {"packed": False}
RUNS: list[Row] = [
    {},
    SPLIT,
    UNIFORM,
    SPLIT | UNIFORM,
    LARGE,
    SPLIT | LARGE,
    LARGE | UNIFORM,
    SPLIT | LARGE | UNIFORM,
    NATIVE,
    SPLIT | NATIVE,
    NATIVE | UNIFORM,
    NATIVE | LARGE,
    SPLIT | NATIVE | LARGE | UNIFORM,
    ENTROPY,
    LARGE | ENTROPY,
    SPLIT | LARGE | ENTROPY | UNIFORM,
    LAST,
    SPLIT | LAST,
    ALONE,
    SPLIT | ALONE,
    LARGE | ALONE,
    SPLIT | LARGE | ALONE,
    NATIVE | ALONE,
    NATIVE | LARGE | ALONE,
    {"layers": 2, "hidden": 512, "ffn": 1536},
    SPLIT | UNIFORM | {"layers": 2, "hidden": 512, "ffn": 1536},
    IDLE,
    SPLIT | UNIFORM | IDLE,
    SPLIT | NATIVE | IDLE,
    SPLIT | LARGE | ENTROPY | IDLE,
    SPLIT | IDLE | LAST,
    ALONE | IDLE,
    PADDED,
    SPLIT | PADDED,
    SPLIT | UNIFORM | PADDED,
    PADDED | LARGE,
    SPLIT | PADDED | LARGE | ENTROPY,
    NATIVE | PADDED | LARGE | UNIFORM,
    PADDED | ALONE,
    PADDED | IDLE,
]


def prepare(given: argparse.Namespace) -> None:
    vision.DotProductAttention = linear.Attention  # of padded sequences, too
    vision.prepare(given.core, given.te, given.mbridge, given.core)
    prepare_verl(given.verl)


def prepare_verl(verl: Path) -> None:
    for name in ("verl", "verl.utils", "verl.utils.megatron", "verl.models", "verl.models.mcore"):
        vision.without_init(name, verl)
    for name, holds in (
        ("verl.utils.device", {"is_npu_available": False}),
        ("verl.utils.model", {"CausalLMOutputForPPO": object}),
        ("verl.utils.megatron_utils", {"unwrap_model": lambda model: getattr(model, "module", model)}),
        ("verl.workers", {}),
        ("verl.workers.config", {"MtpConfig": object}),
    ):
        module = types.ModuleType(name)
        module.__dict__.update(holds)
        sys.modules[name] = module
    from megatron.core.transformer import multi_token_prediction as predicted

    predicted.MTPLossLoggingHelper.save_loss_to_tracker = lambda *_, **__: None  # one number a block
    checkpointed = predicted.MultiTokenPredictionLayer._checkpointed_forward

    def with_padding_mask(self: Any, *args: Any, padding_mask: Any = None, **named: Any) -> Any:
        assert padding_mask is None
        return checkpointed(self, *args, **named)

    predicted.MultiTokenPredictionLayer._checkpointed_forward = with_padding_mask


def model_of(run: Row) -> Any:
    from mbridge.models.mimo import MimoBridge
    from megatron.core.transformer.enums import AttnBackend

    fields = {
        "num_hidden_layers": run["layers"],
        "hidden_size": run["hidden"],
        "num_attention_heads": run["heads"],
        "num_key_value_heads": run["groups"],
        "head_dim": run["hidden"] // run["heads"],
        "intermediate_size": run["ffn"],
        "vocab_size": run["vocab"],
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1e6,
        "rope_scaling": None,
        "attention_dropout": 0.0,
        "num_nextn_predict_layers": 1,
        "tie_word_embeddings": False,
    }
    config = Config()
    for name, value in fields.items():
        setattr(config, name, value)
    bridge = MimoBridge(config, dtype=torch.bfloat16)
    more: Row = {"perform_initialization": False, "attention_backend": AttnBackend.flash, "mtp_loss_scaling_factor": 0.1}
    more |= {"cross_entropy_loss_fusion": run["native"], "gradient_accumulation_fusion": run["native"]}
    if run["recompute"] == "full":
        more |= {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
    bridge.set_extra_args(**more)
    return patched(run, bridge._model_provider([])(run["first"], True))


def patched(run: Row, model: Any) -> Any:
    """As patch_engine_mtp leaves it, with gradients that go as soon as they have been added up."""
    from megatron.core.transformer.module import Float16Module

    whole = Float16Module(model.config, model)
    for parameter in whole.parameters():
        parameter.main_grad = torch.empty(parameter.shape, dtype=torch.float32)
        parameter.grad_added_to_main_grad = False
        parameter.register_post_accumulate_grad_hook(lambda p: setattr(p, "grad", None))
    patch = importlib.import_module("verl.models.mcore.mtp_patch")
    patch.unwrap_model = lambda given: getattr(given, "module", given)
    patch.patch_postprocess(whole)
    patch.patch_mtp_layer_checkpointed_forward(whole)
    patch.patch_mtp_layer_get_embeddings(whole)
    whole.pre_process = whole.post_process = True
    return whole.train(run["gradients"])


def loss_of(run: Row, model: Any) -> torch.Tensor:
    """forward_step and postprocess_micro_batch_func."""
    from verl.models.mcore.model_forward import gptmodel_forward_model_engine
    from verl.utils.megatron.tensor_parallel import vocab_parallel_entropy, vocab_parallel_log_probs_from_logits

    def nested(dtype: torch.dtype) -> torch.Tensor:
        each = [torch.zeros(run["tokens"], dtype=dtype) for _ in range(run["sequences"])]
        return torch.nested.nested_tensor(each, layout=torch.jagged)

    def logits_processor(logits: torch.Tensor, label: torch.Tensor, temperature: torch.Tensor) -> Row:
        out = {}
        logits.div_(temperature.clamp(min=1e-8).unsqueeze(dim=-1).to(logits.dtype))
        if run["entropy"]:
            bak = logits.clone()
            out["entropy"] = vocab_parallel_entropy(logits)
            logits = bak
        out["log_probs"] = vocab_parallel_log_probs_from_logits(logits, label)
        return out

    ids, images = nested(torch.int64), {}
    if run.get("images"):
        given = vision.Inputs(run)
        ids, images = torch.nested.nested_tensor(list(given.ids), layout=torch.jagged), given.vision
        del given
    output = gptmodel_forward_model_engine(
        model,
        ids,
        images,
        logits_processor=logits_processor,
        logits_processor_args={
            "label": ids.clone(),
            "temperature": nested(torch.float32),
            "loss_mask": nested(torch.int64),
            "response_attention_mask": None,
        },
        vision_model="kind" in run,
        pad_token_id=0,
        data_format="thd" if run["packed"] else "bshd",
        mtp_enable_train=run["runs"],
    )
    return sum(each.values().mean() for each in output.values())  # type: ignore[return-value]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("core", "te", "mbridge", "verl"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--output", type=Path, default=ROOT / "tests/data/executed_verl_predicted.jsonl")
    parser.add_argument("--only", type=int, nargs="+", help="numbers of runs, told and not written")
    given = parser.parse_args()
    warnings.filterwarnings("ignore")
    prepare(given)
    if given.only:
        for number in given.only:
            print(json.dumps(execute({**BASE, **RUNS[number]}, model_of, loss_of)))
        return
    lines = [json.dumps(execute({**BASE, **changes}, model_of, loss_of), separators=(",", ":")) for changes in RUNS]
    given.output.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
