"""Compares the commands that oomplan reads from launch scripts with those that bash runs, word by word.

    python benchmarks/oracle/launch_scripts.py verl=/path/to/verl slime=/path/to/slime [--program build/oomplan] [--verbose]

Bash runs every script of the trees with each program replaced by a recorder (bash_stand_in.py): nothing is started. The script is tried
without anything, then with every variable set that oomplan names as unset, then with two arguments besides; the first try in which bash
starts a program counts. A command of bash must be among oomplan's with the same words, in the same order; what oomplan reads besides must
stand under a condition that only the machine can decide. Parts of words that only a program knows (a date, an address) are compared as
"anything", and counted.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from bash_stand_in import PURE, Ran, Root

# Recorded, and no program of a job: they make folders and texts, or ask.
SETTING_UP = {*PURE, "mkdir", "rm", "date", "sleep", "chmod", "cp", "mv", "touch", "sed", "awk", "find", "xargs", "uname", "readlink", "which", "egrep", "hostname",
              "ls", "pkill", "kill", "ps", "sort", "uniq", "mktemp", "id", "whoami", "env", "nproc", "lscpu", "source_of_nothing", "ln", "stat", "df", "free", "git"}  # fmt: skip
Word = str | list[Any]


def ours_of(program: str, script: str, arguments: list[str], environment: dict[str, str], folder: Path) -> dict[str, Any]:
    call = [program, "read", "--json", "--commands", "--config-root", str(folder), script, *arguments]
    if Path(program).name == "main":  # a reader by itself
        call = [program, script, *arguments]
    given = {"HOME": "/root", "USER": "root", "LB_JSON": "1", **environment}
    done = subprocess.run(call, cwd=folder, env=given, capture_output=True, text=True, timeout=60, check=False)
    try:
        return json.loads(done.stdout)
    except json.JSONDecodeError:
        return {"commands": [], "unset": [], "failed": (done.stdout + done.stderr)[-300:], "status": done.returncode}


def is_job(words: list[str]) -> bool:
    probe = len(words) > 1 and words[0].startswith("python") and words[1] == "-c"
    return bool(words) and os.path.basename(words[0]) not in SETTING_UP and not probe


def pattern_of(word: Word) -> str:
    if isinstance(word, str):
        return re.escape(word)
    out = ""
    for part in word:
        out += re.escape(part) if isinstance(part, str) else r"[\s\S]*"
    return out.replace("\\\n[", "\\\n?[")  # a line break that a program's own output would have ended


def same_word(ours: Word, theirs: str) -> bool:
    return re.fullmatch(pattern_of(ours), theirs) is not None


def same_command(ours: list[Word], theirs: list[str]) -> bool:
    """A word of which nothing is known may be any number of words."""
    reached = {0}
    for word in ours:
        if isinstance(word, list) and not any(isinstance(part, str) for part in word):
            reached = set(range(min(reached), len(theirs) + 1))
        else:
            reached = {i + 1 for i in reached if i < len(theirs) and same_word(word, theirs[i])}
        if not reached:
            return False
    return len(theirs) in reached


def first_words(words: list[Word]) -> list[str]:
    return [w if isinstance(w, str) else "".join(p for p in w if isinstance(p, str)) for w in words]


class Compared:
    def __init__(self, bash: Ran, ours: dict[str, Any]) -> None:
        self.bash = [c for c in bash.commands if is_job(c)]
        self.ours = [c for c in ours["commands"] if is_job(first_words(c["words"]))]
        self.why = ""
        self.partly = 0
        at = 0
        for command in self.bash:
            found = next((i for i in range(at, len(self.ours)) if same_command(self.ours[i]["words"], command)), None)
            skipped = self.ours[at : found if found is not None else len(self.ours)]
            sure = [c for c in skipped if "condition" not in c]
            if found is None or (sure and not self._parallel(sure)):
                self.why = self.difference(command, at)
                return
            self.partly += sum(not isinstance(w, str) for w in self.ours[found]["words"])
            del self.ours[found]
            at = 0 if self._parallel(sure) else found
        left = [c for c in self.ours if "condition" not in c]
        if left and not bash.timed_out:
            self.why = f"oomplan alone: {left[0]['words'][:6]} of line {left[0]['line']}"

    @staticmethod
    def _parallel(commands: list[dict[str, Any]]) -> bool:
        """Sides of a pipe and what runs in the background may come in any order."""
        return len(commands) <= 8

    def difference(self, command: list[str], at: int) -> str:
        best = max(self.ours, key=lambda c: sum(same_word(a, b) for a, b in zip(c["words"], command, strict=False)), default=None)
        if best is None:
            return f"bash alone: {command[:6]}"
        for i, (a, b) in enumerate(zip(best["words"], command, strict=False)):
            if not same_word(a, b):
                return f"line {best['line']} word {i}: oomplan {a!r}, bash {b!r}"
        return f"line {best['line']}: {len(best['words'])} words, bash {len(command)}: {command[:4]} ... {command[len(best['words']) :][:3]}{best['words'][len(command) :][:3]}"


def tries(program: str, root: Root, script: str, folder: Path) -> tuple[str, Ran, dict[str, Any]]:
    environment: dict[str, str] = {}
    arguments: list[str] = []
    ran, ours = root.run(script, [], {}, str(folder)), ours_of(program, script, [], {}, folder)
    for name in ("alone", "variables", "more variables", "arguments"):
        if name != "alone":
            unset = [n for n in ours.get("unset", []) if re.fullmatch(r"[A-Za-z_]\w*", n)] + re.findall(
                r"line \d+: (\w+): ", ran.stderr
            )
            rests = ours.get("ends", {}).get("rests_on", [])
            environment.update(
                {n: f"/given/{n}" for n in [*unset, *rests] if re.fullmatch(r"[A-Za-z_]\w*", n) and n not in environment}
            )
            if name == "arguments":
                arguments = ["8", "/given/argument"]
            ran, ours = (
                root.run(script, arguments, environment, str(folder)),
                ours_of(program, script, arguments, environment, folder),
            )
        if any(is_job(c) for c in ran.commands):
            return name, ran, ours
    return "none", ran, ours


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trees", nargs="+", help="name=folder, or name-release=folder")
    parser.add_argument("--program", default="build/oomplan")
    parser.add_argument("--only", default="")
    parser.add_argument("--verbose", action="store_true")
    options = parser.parse_args()
    program = str(Path(options.program).resolve())
    reached = equal = partly = 0
    total: Counter[str] = Counter()
    with Root() as root:
        for tree in options.trees:
            name, _, where = tree.partition("=")
            folder = Path(where).resolve()
            root.add_tree(folder, str(folder))
            link = root.path / "root" / name.partition("-")[0]  # scripts name their checkout: /root/slime
            link.unlink(missing_ok=True)
            link.symlink_to(folder)
            counts: Counter[str] = Counter()
            for path in sorted(folder.rglob("*.sh")):
                script = str(path.relative_to(folder))
                if options.only not in script:
                    continue
                how, ran, ours = tries(program, root, script, folder)
                counts["scripts"] += 1
                if how == "none":
                    counts["bash starts nothing"] += 1
                    if options.verbose:
                        print(
                            f"{name} {script}: bash starts nothing (status {ran.status}); oomplan {len(ours['commands'])} commands"
                        )
                    continue
                compared = Compared(ran, ours)
                counts[how] += 1
                counts["reached"] += 1
                counts["partly unknown words"] += compared.partly
                counts["words"] += sum(len(c) for c in compared.bash)
                if compared.why or "failed" in ours:
                    counts["different"] += 1
                    print(
                        f"{name} {script} ({how}): {compared.why} {ours.get('failed', '')} {ours.get('ends', '')} {ours.get('broken', '')}"
                    )
                else:
                    counts["equal"] += 1
            print(f"{name}: {dict(counts)}")
            total += counts
    reached, equal, partly = total["reached"], total["equal"], total["partly unknown words"]
    print(
        f"{equal} of {reached} scripts equal ({100 * equal / max(reached, 1):.1f} %), {total['words']} words, {partly} of them partly unknown; {total['scripts']} scripts in all"
    )
    return 0 if equal >= 0.97 * reached else 1


if __name__ == "__main__":
    sys.exit(main())
