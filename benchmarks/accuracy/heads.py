"""The table of loss heads in docs/training.md: what each reaches above parameters and states, in multiples of T*V bytes.

    python benchmarks/accuracy/heads.py

A model so narrow that nothing but the logits counts: 65536 tokens, a vocabulary of 100000, two hidden units.
"""

from __future__ import annotations

import json

TOKENS, VOCAB = 65536, 100000
CONFIG = {
    "model_type": "llama",
    "num_hidden_layers": 1,
    "hidden_size": 2,
    "intermediate_size": 2,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "vocab_size": VOCAB,
    "max_position_embeddings": TOKENS,
    "tie_word_embeddings": False,
}
HEADS = {
    "hf_loss": "transformers' cross-entropy on fp32 logits",
    "logprob_fp32": "logits.float(), log_softmax, gather",
    "logprob_bf16": "log_softmax and gather in 16 bits",
    "logprob_lse": "gather minus logsumexp in fp32",
    "logprob_rows": "log_softmax of one row after another",
    "logprob_chunked": "1024 rows at a time in fp32",
    "logprob_entropy_fp32": "with the entropy's gradient, fp32",
    "logprob_entropy_nograd": "with the entropy as a metric",
    "logprob_temperature": "temperature out of place, then fp32",
    "verl_flash_ce": "verl: flash-attn's cross-entropy",
    "verl_entropy_compiled": "verl: with compiled entropy",
    "verl_entropy_eager": "verl: with eager entropy",
    "verl_entropy_checkpoint": "verl: eager entropy under a checkpoint",
    "verl_entropy_chunked": "verl: entropy of 2048 rows at a time",
    "verl_entropy_chunked_checkpoint": "verl: entropy of 2048 rows at a time, under a checkpoint",
    "verl_flash_ce_div_in_place": "verl up to 0.8: temperature in place",
    "verl_entropy_eager_div_in_place": "verl up to 0.8: with eager entropy",
    "verl_fp32_flash_ce": "verl, fp32 logits",
    "verl_fp32_entropy_eager": "verl, fp32 logits, with eager entropy",
    "verl_rows": "verl without flash-attn: log_softmax row by row",
    "areal_compiled": "AReaL: compiled, 1024 rows at a time",
    "areal_eager": "AReaL without torch.compile",
    "areal_clamped": "AReaL's recipe AEnt: a clamped entropy with a gradient",
    "cross_entropy": "F.cross_entropy on fp32 logits in the training loop",
    "cross_entropy_chunked": "the same, eight parts of every sequence one after another",
    "cross_entropy_compiled": "the same under torch.compile",
}


def case(head: str, keep: bool = False, forward_only: bool = False) -> str:
    trainer = {
        "engine": "single",
        "kernels": "hf_flash",
        "precision": {"storage": "bf16", "compute": "bf16", "reduce": "bf16"},
        "recompute": "none",
        "optimizer": "sgd",
        "head": head,
        "keep_outputs": keep,
        "kernel_internals": False,
        "sequences_per_micro_batch": 1,
        "sequence_tokens": TOKENS,
    }
    framework = "verl" if head.startswith("verl") else "areal" if head.startswith("areal") else "torch"
    return json.dumps({"framework": framework, "trainer": trainer, "apart": {"forward_only": forward_only}})


def main() -> None:
    from oomplan import _core

    def multiples(text: str) -> tuple[float, float]:
        figures = _core.training_figures(text, json.dumps(CONFIG))
        above = figures["parameters"] + figures["states"]
        return (figures["forward"] - above) / (TOKENS * VOCAB), (figures["backward"] - above) / (TOKENS * VOCAB)

    print("| head | what it is | forward | backward | forward only |")
    print("|---|---|---|---|---|")
    for head, what in HEADS.items():
        for keep in (False, True) if head == "hf_loss" else (False,):
            forward, backward = multiples(case(head, keep))
            alone, _ = multiples(case(head, keep, forward_only=True))
            print(f"| {head}{', outputs kept' if keep else ''} | {what} | {forward:.1f} | {backward:.1f} | {alone:.1f} |")


if __name__ == "__main__":
    main()
