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

PROGRAM = os.environ["OOMPLAN_PROGRAM"]
BASH = shutil.which("bash")
pytestmark = pytest.mark.skipif(BASH is None, reason="no bash")

RECORDER = r"""
command_not_found_handle() { printf '%s\0' $# "$@" >> "$RECORD"; }
"""
SCRIPTS = {
    "assignments": 'A=1 B="two words" C=three\\ words\nrun $A "$B" $B "$C" ${A}${B}',
    "defaults": 'run "${X:-d}" "${X-e}" ${Y:=w} "$Y" "${Y:+set}" ${X:+none} "${HOME:?m}"',
    "lengths and parts": "A=path/to/file.tar.gz\nrun ${#A} ${A%%.*} ${A%.*} ${A#*/} ${A##*/} ${A/to/TO} ${A//t/T} ${A/#path/p} ${A/%gz/z} ${A:2:3} ${A: -2}",
    "cases": 'A=MiXed\nrun ${A^^} ${A,,} ${A^} ${A,} "${A@Q}" ${A^^[m]}',
    "arrays": 'A=(one "two words" three)\nA+=(four)\nA[7]=seven\nrun "${A[@]}" ${#A[@]} "${A[*]}" "${!A[@]}" "${A[1]}" ${A[-1]} "${A[@]:1:2}" "${A[@]/o/0}"',
    "empty arrays": 'A=()\nrun "${A[@]}" "${A[*]}" end\nB=("")\nrun "${B[@]}" end',
    "maps": 'declare -A M=([a]=1 [b]="x y")\nM[c]=3\nrun "${M[a]}" "${M[b]}" ${M[c]} ${#M[@]} "${M[z]:-none}"',
    "arithmetic": "A=5\nrun $((A*2+1)) $((A**2%7)) $((A>3?1:0)) $(( (A<<2)|1 )) $((A++)) $A $((0x1f)) $((~A)) $((A/2))\n((A+=10))\nrun $A\nlet A=A-1 B=3\nrun $A $B",
    "quotes": "run 'single $A' \"double \\$A \\\\ \\q\" $'tab\\tnew\\nline\\x41' a\"b\"'c'd \"\" ''",
    "splitting": 'A="  a  b   c "\nrun $A end\nrun "$A" end\nIFS=,\nB=x,y,,z\nrun $B',
    "positional": 'set -- one "two words" three\nrun "$@" $# "$*" $1 "${2}" "${@:2}" ${#}\nshift\nrun "$1" $#',
    "for": 'for I in a "b c" {1..3} {x,y}z; do run $I "${I}"; done\nfor ((i=0;i<3;i++)); do run $i; done\nfor I; do run never; done',
    "while": "I=0\nwhile [ $I -lt 4 ]; do I=$((I+1)); [ $I = 2 ] && continue; [[ $I == 4 ]] && break; run $I; done\nuntil [ $I -eq 0 ]; do I=$((I-1)); done\nrun $I",
    "if": 'A=8\nif [ "$A" -gt 7 ] && [[ $A != 9 ]]; then run big; elif [ -z "$A" ]; then run none; else run small; fi\n[ -n "$B" ] || run unset\ntest $A -le 8 && run le',
    "case": 'for A in llama-7b qwen2.5-7b-instruct other ""; do case "$A" in llama*|mistral*) run L;; qwen2.[0-9]*-*) run Q;; "") run E;; *) run O;; esac; done',
    "conditions": 'A=qwen-7b\n[[ $A == qwen* ]] && run glob\n[[ $A =~ ^([a-z]+)-([0-9]+)b$ ]] && run "${BASH_REMATCH[1]}" ${BASH_REMATCH[2]}\n[[ -z $B && ( -n $A || x == y ) ]] && run both\n[[ 3 -lt 12 ]] && run less\n[[ ! $A < a ]] && run order',
    "functions": 'f() { local A=in; run "$A" "$1" $#; return 3; }\nA=out\nf "x y" z\nrun $? $A\nfunction g { f "$@"; }\ng 1 2 3',
    "substitution": 'A=$(echo one two)\nrun "$A" $(echo "a b") "$(printf "%s-%03d" x 7)" `echo back`\nB=$(f() { echo $1; }; f deep)\nrun $B',
    "here documents": "cat <<EOF > x\n$A\nEOF\nread -r L <<< 'a b'\nrun \"$L\"\nwhile read -r K V; do run $K \"$V\"; done <<'END'\nk1 v 1\nk2 $v\nEND",
    "continuations": "run a \\\n  --flag=1 \\\n  b # comment\nrun c \\  \nrun d",
    "comments in arrays": "A=(\n  --one 1  # first\n  # --two 2\n  --three 3\n)\nrun ${A[@]}",
    "pipes and lists": "run a 2>&1 | tee log\nrun b && run c || run d; run e & wait\n{ run f; run g; } > out\n( A=1; run $A ); run ${A:-none}\n! run h",
    "environment": 'export A=1 B="2 3"\nC=4 run $A "$B" ${C:-none}\nenv D=5 run\nreadonly R=r\nrun $R\nunset A\nrun ${A:-gone}',
    "eval": "A='run x \"y z\"'\neval \"$A\"\neval run \\$HOME_NOT\nB=A\nrun \"${!B}\"",
    "printf and mapfile": 'printf -v A "%d:%s" 3 x\nrun "$A"\nmapfile -t L < <(printf "1\\n2 3\\n")\nrun "${L[@]}"\nread -ra W <<< "p q r"\nrun ${W[2]} ${#W[@]}',
    "getopts": 'set -- -n 4 -v rest\nwhile getopts "n:v" o; do case $o in n) run n $OPTARG;; v) run v;; esac; done\nshift $((OPTIND-1))\nrun "$@"',
    "named arguments": 'set -- --nodes 2 --name=x y\nwhile [[ $# -gt 0 ]]; do case $1 in --nodes) N=$2; shift 2;; --name=*) M=${1#*=}; shift;; *) R+=("$1"); shift;; esac; done\nrun $N $M "${R[@]}"',
    "set -e": "set -euo pipefail\nrun a\nfalse || run b\nif false; then run c; fi\nfalse\nrun never",
    "exit": 'run a\n[ "$1" = x ] || { echo usage; exit 2; }\nrun never',
    "trap and set": "set -x\ntrap 'echo bye' EXIT\nrun a\nset +x\nulimit -n 65536\nrun b",
    "globs that match nothing": 'run *.nothing "*" [z]x? \\*',
    "tilde": "HOME=/h\nrun ~ ~/x \"~\" a~b\nA=~/y\nrun $A",
    "braces": "run {a,b}{1,2} {1..9..4} {c..a} {,x} {single} {03..05} a{b,{c,d}}e",
    "dollar star": 'set -- "a b" c\nIFS=:\nrun "$*" $* "${*}"',
    "nested expansions": 'A=1\nrun ${X:-${Y:-${A}0}} "${X:-"q $A"}" ${X:-$(echo "in $A")}',
    "indices": "A=(5 6 7)\ni=1\nrun ${A[i]} ${A[$i+1]} ${A[${#A[@]}-1]} $((A[0]+A[2]))",
    "appending": 'A=x\nA+=y\nB=(1)\nB+=(2 "3 4")\nA+=" z"\nrun "$A" "${B[@]}"',
    "select by number": 'N=16\ncase $((N/8)) in 1) run one;; 2) run two;& 3) run three;; esac\ncase x in x) run x;;& [a-z]) run l;; *) run n;; esac',
    "subshell and folder": '( run in; exit 3 )\nrun $?\nB=$(cd /x; echo captured)\nrun "[$B]"',
    "logic": "true && false || run a\nfalse && run b || run c\nif ! true || [ 1 -eq 1 ]; then run d; fi\n[ a = b -o c = c ] && run e",
    "declare": 'declare -i N=3+4\ndeclare -r K=v\nlocal_like() { declare L=1; run ${L}; }\nlocal_like\nrun $N $K ${L:-none}\ntypeset T=t\nrun $T',
    "here string and process": 'while IFS== read -r k v; do run "$k" "$v"; done <<< "a=b=c"\nrun "$(read -r L <<X\nin $((1+1))\nX\necho "$L")"',
}  # fmt: skip


def of_bash(folder: Path, text: str) -> list[list[str]]:
    (folder / "recorder").write_text(RECORDER)
    (folder / "run.sh").write_text(text)
    record = folder / "record"
    record.write_bytes(b"")
    given = {"PATH": "/nothing", "BASH_ENV": str(folder / "recorder"), "RECORD": str(record), "HOME": "/root"}
    subprocess.run([str(BASH), "run.sh"], cwd=folder, env=given, capture_output=True, stdin=subprocess.DEVNULL, timeout=20, check=False)
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
        [PROGRAM, "read", "run.sh", "--commands", "--json"], cwd=folder, env={"HOME": "/root"}, capture_output=True, text=True, timeout=20, check=False
    )
    assert done.returncode == 0, done.stderr
    return [c["words"] for c in json.loads(done.stdout)["commands"] if "condition" not in c]


def those_of(commands: list[list[str]], name: str = "run") -> list[list[str]]:
    return [c for c in commands if c and c[0] == name]


@pytest.mark.parametrize("name", SCRIPTS)
def test_commands_are_those_of_bash(name: str, tmp_path: Path) -> None:
    text = SCRIPTS[name] + "\n"
    theirs = of_bash(tmp_path, text)
    assert those_of(theirs), "bash starts nothing"
    assert sorted(those_of(of_oomplan(tmp_path, text))) == sorted(those_of(theirs))


def test_what_only_the_machine_or_a_program_knows_is_said(tmp_path: Path) -> None:
    text = 'B=$(run captured)\nrun "[$B]" ${UNSET}\n[ -e /data/model ] && run there || run elsewhere\nrun $(date +%F)/x\n'
    (tmp_path / "run.sh").write_text(text)
    done = subprocess.run([PROGRAM, "read", "run.sh", "--commands", "--json"], cwd=tmp_path, env={}, capture_output=True, text=True, timeout=20, check=True)
    found = json.loads(done.stdout)
    commands = those_of(found["commands"] and [c["words"] for c in found["commands"]])
    assert commands[1] == ["run", ["[", {"outside": "$(run captured)"}, "]"]]  # bash passes no word for what is not set
    conditions = {c["words"][1]: c.get("condition", "") for c in found["commands"] if len(c["words"]) > 1 and isinstance(c["words"][1], str)}
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
            f"\"$(echo {self.literal()} ${name})\"",
            f'"pre{self.random.randrange(3)}_${{{name}}}_post"',
            f"${{{name}:+{self.value(depth + 1)}}}",
        )

    def word(self) -> str:
        return self.pick(self.value(), self.value(), "plain", "--key=" + self.value(), f'"${{{self.random.choice(self.arrays)}[@]}}"', f"${self.random.choice(self.names)}")

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
        inner = lambda: ["  " + line for _ in range(self.random.randrange(1, 3)) for line in self.statement(depth + 1)]  # noqa: E731
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
            return [f'case "${name}" in', f"  {self.pick('x', '*7b', '[0-9]*', 'a|b')})", *inner(), "  ;;", "  *)", *inner(), "  ;;", "esac"]
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
    done = subprocess.run([PROGRAM, "read", "sub/run.sh", "--commands", "--json"], cwd=tmp_path / "sub" / "..", capture_output=True, text=True, timeout=20, check=False)
    assert secret.read_text() == "SECRET=1\n"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["secret", "sub"]
    assert done.returncode in (0, 2)
