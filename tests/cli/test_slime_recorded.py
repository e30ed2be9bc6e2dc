"""What slime's own trainer allocated while it started, in two recorded runs (tests/data/snapshots), against the answer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from test_slime import changed, run

SNAPSHOTS = Path(__file__).resolve().parents[1] / "data" / "snapshots"
FREES = (1, 2, 3)
QWEN25_7B = [
    ("--num-layers 36", "--num-layers 28"),
    ("--hidden-size 2560", "--hidden-size 3584"),
    ("--ffn-hidden-size 9728", "--ffn-hidden-size 18944"),
    ("--num-attention-heads 32", "--num-attention-heads 28"),
    ("--num-query-groups 8", "--num-query-groups 4"),
    ("--qk-layernorm", "--add-qkv-bias --untie-embeddings-and-output-weights"),
    ("--vocab-size 151936", "--vocab-size 152064"),
    ("Qwen/Qwen3-4B\n", "Qwen/Qwen2.5-7B\n"),
    ("--tensor-model-parallel-size 2", "--tensor-model-parallel-size 4"),
]


class Record:
    """A recorded run: numbers in groups of seven bits, the lowest first (tests/unit/program_recorded.hpp)."""

    def __init__(self, path: Path) -> None:
        self.data, self.at = path.read_bytes(), 8

    def number(self) -> int:
        value = shift = 0
        while True:
            byte = self.data[self.at]
            self.at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    def skip_text(self) -> None:
        length = self.number()
        self.at += length

    def live_at_the_end(self) -> list[int]:
        """Bytes of every allocation that was not given back, the largest first."""
        for _ in range(3):
            self.skip_text()
        addresses = self.number()
        for _ in range(9):
            self.number()
        assert self.number() == 0, "the record begins with the process"
        live: dict[int, int] = {}
        made = 0
        for _ in range(self.number()):
            kind, elsewhere = divmod(self.number(), 2)
            if elsewhere:
                self.number(), self.number()
            if kind in FREES:
                live.pop(made - self.number(), None)
            elif kind != 4:
                size = self.number()
                if kind != 5 and addresses:
                    self.number()
                if kind == 0:
                    live[made] = size
                    made += 1
        return sorted(live.values(), reverse=True)


@pytest.mark.truth
@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("slime_qwen3_4b_megatron_tp2_dp2_init_rank1", []),
        ("slime_qwen25_7b_megatron_tp4_dp1_init_rank3", QWEN25_7B),
    ],
)
def test_parameters_gradients_and_states_are_those_of_a_run(name: str, changes: list[tuple[str, str]], tmp_path: Path) -> None:
    """Both flat buffers to the byte; masters and states of Adam are many tensors, beside a few small ones of other things."""
    live = Record(SNAPSHOTS / f"{name}.bin").live_at_the_end()
    done = run("estimate", "--json", changed(tmp_path, *changes), "--set", "NUM_GPUS=4")
    assert done.returncode in (0, 1), done.stderr
    phases = {phase["phase"]: phase["by_category_bytes"] for phase in json.loads(done.stdout)["gpus"][0]["phases"]}
    assert live[0] == phases["actor.load"]["gradients"]
    assert live[1] == phases["actor.load"]["weights"]
    assert 0 <= sum(live[2:]) - phases["actor.optimizer"]["optimizer"] < 1 << 20
