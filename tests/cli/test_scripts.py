"""Scripts read without running them: the commands are those that bash starts, word by word.

Bash runs every script with an empty PATH, so that each program ends in command_not_found_handle, which writes its words down.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
from pathlib import Path

import pytest

PROGRAM = os.environ.get("OOMPLAN_PROGRAM", str(Path(__file__).resolve().parents[2] / "build" / "oomplan"))
BASH = shutil.which("bash")
pytestmark = pytest.mark.skipif(BASH is None, reason="no bash")

RECORDER = r"""
command_not_found_handle() { printf '%s\0' $# "$@" >> "$RECORD"; }
"""
ROWS = (Path(__file__).resolve().parents[1] / "data" / "bash_scripts.jsonl").read_text().splitlines()
SCRIPTS = {row["name"]: row["text"] for row in map(json.loads, ROWS)}


def of_bash(folder: Path, text: str, programs: str = "/nothing") -> list[list[str]]:
    (folder / "recorder").write_text(RECORDER)
    (folder / "run.sh").write_text(text)
    record = folder / "record"
    record.write_bytes(b"")
    given = {"PATH": programs, "BASH_ENV": str(folder / "recorder"), "RECORD": str(record), "HOME": "/root"}
    subprocess.run(
        [str(BASH), "run.sh"], cwd=folder, env=given, capture_output=True, stdin=subprocess.DEVNULL, timeout=20, check=False
    )
    words = record.read_bytes().decode().split("\0")[:-1]
    commands = []
    while words:
        count = int(words[0])
        commands.append(words[1 : count + 1])
        words = words[count + 1 :]
    return commands


def of_oomplan(folder: Path, text: str) -> list[list[str]]:
    (folder / "run.sh").write_text(text)
    done = subprocess.run(
        [PROGRAM, "read", "run.sh", "--commands", "--json"],
        cwd=folder,
        env={"HOME": "/root"},
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [c["words"] for c in json.loads(done.stdout)["commands"] if "condition" not in c]


def those_of(commands: list[list[str]], name: str = "run") -> list[list[str]]:
    return [c for c in commands if c and c[0] == name]


@pytest.mark.parametrize("name", SCRIPTS)
def test_commands_are_those_of_bash(name: str, tmp_path: Path) -> None:
    text = SCRIPTS[name]
    theirs = of_bash(tmp_path, text)
    assert those_of(theirs), "bash starts nothing"
    assert sorted(those_of(of_oomplan(tmp_path, text))) == sorted(those_of(theirs))


SUBSTITUTIONS = r"""
run "$(echo Qwen3-VL-4B-Instruct | sed 's/-Instruct//g; s/Qwen3-VL-/qwen3-/g; s/-2B/-1.7B/g')"
run "$(echo a/b | sed -E 's#(a)/(b)#\2-\1&#')" "$(echo aaa | sed 's/a/b/')" "$(echo aaa | sed -e 's/a/b/g' -e 's/^b/X/')"
run "$(echo a.b.c | sed 's/\./_/g')" "$(printf '1\n2\n' | sed 's/.*/{&}/')" "$(echo abc | sed 's/x*/-/g')"
run "$(echo 'a\/b' | sed 's/\//|/')" "$(printf 'no end' | sed 's/ /_/I')" "$(echo A1b22 | sed -r 's/[0-9]+/<&>/g')"
"""


@pytest.mark.skipif(shutil.which("sed") is None, reason="no sed")
def test_text_that_sed_replaces_is_that_of_sed(tmp_path: Path) -> None:
    (tmp_path / "programs").mkdir()
    (tmp_path / "programs" / "sed").symlink_to(str(shutil.which("sed")))
    theirs = of_bash(tmp_path, SUBSTITUTIONS, str(tmp_path / "programs"))
    assert len(those_of(theirs)) == 4
    assert those_of(of_oomplan(tmp_path, SUBSTITUTIONS)) == those_of(theirs)


# jq 1.7: jq -nc and jq -n of the same filters
MADE = {
    """--argjson n 8 '{actor: [1, $n], "roll out": [1, $n], z: {}}'""": '{"actor":[1,8],"roll out":[1,8],"z":{}}',
    """--arg n 8 --argjson all '{"a": [1, 2]}' '{$n, all: $all, t: [true, null, -0]}'""": None,
    """--arg n 8 --argjson all '{"a": [1, 2]}' '{$n, all: $all, t: [true, null, "x"]}'""": (
        '{"n":"8","all":{"a":[1,2]},"t":[true,null,"x"]}'
    ),
    "'{a: 1} + {b: 2}'": None,
    "'.a'": None,
}


@pytest.mark.parametrize("filter_", MADE)
def test_json_that_jq_makes_of_its_arguments_is_known(filter_: str, tmp_path: Path) -> None:
    found = those_of(of_oomplan(tmp_path, f'run "$(jq -nc {filter_})"\n'))[0][1]
    assert found == MADE[filter_] if MADE[filter_] is not None else isinstance(found, list | dict)


def test_what_only_the_machine_or_a_program_knows_is_said(tmp_path: Path) -> None:
    text = 'B=$(run captured)\nrun "[$B]" ${UNSET}\n[ -e /data/model ] && run there || run elsewhere\nrun $(date +%F)/x\n'
    (tmp_path / "run.sh").write_text(text)
    done = subprocess.run(
        [PROGRAM, "read", "run.sh", "--commands", "--json"],
        cwd=tmp_path,
        env={},
        capture_output=True,
        text=True,
        timeout=20,
        check=True,
    )
    found = json.loads(done.stdout)
    commands = those_of(found["commands"] and [c["words"] for c in found["commands"]])
    assert commands[1] == ["run", ["[", {"outside": "$(run captured)"}, "]"]]  # bash passes no word for what is not set
    conditions = {
        c["words"][1]: c.get("condition", "") for c in found["commands"] if len(c["words"]) > 1 and isinstance(c["words"][1], str)
    }
    assert conditions["there"] and conditions["elsewhere"]
    assert found["unset"] == ["UNSET"]


class Writer:
    """Random scripts of what launch scripts consist of."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.names = ["A", "B", "MODEL", "N_GPUS"]
        self.arrays = ["ARGS", "LIST"]

    def pick(self, *options: str) -> str:
        return self.random.choice(options)

    def literal(self) -> str:
        return self.pick("x", "8", "qwen-7b", "a/b.c", "--flag", "1e-6", "0", "two words", "k=v", "12")

    def value(self, depth: int = 0) -> str:
        name, array = self.random.choice(self.names), self.random.choice(self.arrays)
        if depth > 2:
            return f'"{self.literal()}"'
        return self.pick(
            f"'{self.literal()}'",
            f'"{self.literal()}"',
            f'"${name}"',
            f'"${{{name}:-{self.literal()}}}"',
            f'"${{{name}%-*}}/${{{name}##*/}}"',
            f'"${{{name}/x/yy}}"',
            f'"${{#{array}[@]}}"',
            f'"${{{array}[0]:-none}}"',
            f"$(( {self.random.randrange(9)} * (${{#{name}}} + {self.random.randrange(1, 5)}) ))",
            f'"$(echo {self.literal()} ${name})"',
            f'"pre{self.random.randrange(3)}_${{{name}}}_post"',
            f"${{{name}:+{self.value(depth + 1)}}}",
        )

    def word(self) -> str:
        return self.pick(
            self.value(),
            self.value(),
            "plain",
            "--key=" + self.value(),
            f'"${{{self.random.choice(self.arrays)}[@]}}"',
            f"${self.random.choice(self.names)}",
        )

    def condition(self) -> str:
        name = self.random.choice(self.names)
        return self.pick(
            f'[ -n "${name}" ]',
            f'[ "${name}" = x ]',
            f"[[ ${name} == *7b* ]]",
            f"[[ -z ${name} || ${name} != 8 ]]",
            f"(( ${{#{name}}} > 2 ))",
            f"[ ${{#{self.random.choice(self.arrays)}[@]}} -ge 2 ]",
            "true",
            "false",
        )

    def statement(self, depth: int = 0) -> list[str]:
        name, array = self.random.choice(self.names), self.random.choice(self.arrays)

        def inner() -> list[str]:
            return ["  " + line for _ in range(self.random.randrange(1, 3)) for line in self.statement(depth + 1)]

        simple = self.random.randrange(6)
        if depth > 2 or self.random.random() < 0.6:
            if simple == 0:
                return [f"{name}={self.value()}"]
            if simple == 1:
                return [f"{array}+=({self.word()} {self.word()})"]
            if simple == 2:
                return [f"{array}=({self.word()}  # note", f"  {self.word()}", ")"]
            if simple == 3:
                return [f"export {name}={self.value()}"]
            return [f"run {self.word()} \\", f"  {self.word()} {self.word()}"]
        if simple == 0:
            return [f"if {self.condition()}; then", *inner(), "else", *inner(), "fi"]
        if simple == 1:
            return [f"for {name} in {self.word()} {self.word()}; do", *inner(), "done"]
        if simple == 2:
            return [
                f'case "${name}" in',
                f"  {self.pick('x', '*7b', '[0-9]*', 'a|b')})",
                *inner(),
                "  ;;",
                "  *)",
                *inner(),
                "  ;;",
                "esac",
            ]
        if simple == 3:
            return [f"f{depth}() {{", *inner(), f"}}; f{depth} {self.word()}"]
        if simple == 4:
            return [f"{self.condition()} && run {self.word()} || run {self.word()}"]
        return ["(", *inner(), ")"]

    def script(self) -> str:
        lines = ["A=x", "MODEL=org/qwen-7b", 'ARGS=(--lr 1e-6 "two words")', "LIST=()", "B=", "N_GPUS=8"]
        for _ in range(self.random.randrange(4, 14)):
            lines += self.statement()
        return "\n".join([*lines, "run end"]) + "\n"


def test_commands_of_random_scripts_are_those_of_bash(tmp_path: Path) -> None:
    different = []
    for seed in range(300):
        text = Writer(seed).script()
        theirs, ours = those_of(of_bash(tmp_path, text)), those_of(of_oomplan(tmp_path, text))
        if ours != theirs:
            different.append((seed, [x for x in zip(ours, theirs, strict=False) if x[0] != x[1]][:1], len(ours), len(theirs)))
    assert not different, different[:3]


def test_nothing_is_executed_and_no_file_is_opened_unasked(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("SECRET=1\n")
    (tmp_path / "sub").mkdir()
    script = tmp_path / "sub" / "run.sh"
    script.write_text(
        f"touch {tmp_path}/made\n> {tmp_path}/made\necho x > {tmp_path}/made\nrm -rf {secret}\n$(touch {tmp_path}/made)\n`touch {tmp_path}/made`\n"
        f"cat <(touch {tmp_path}/made)\nsource {secret}\neval 'touch {tmp_path}/made'\n[[ -v A[$(touch {tmp_path}/made)] ]]\nrun \"${{SECRET:-unread}}\"\n"
    )
    done = subprocess.run(
        [PROGRAM, "read", "sub/run.sh", "--commands", "--json"],
        cwd=tmp_path / "sub" / "..",
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    assert secret.read_text() == "SECRET=1\n"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["secret", "sub"]
    assert done.returncode in (0, 2)
