"""./dev: what it says while one waits, and that a bare Debian has, or gets, every program that tests and pages call."""

from __future__ import annotations

import ast
import re
import shlex
import shutil
import subprocess
import time
from pathlib import Path

import pytest
from test_docs import BLOCK, PAGES

ROOT = Path(__file__).resolve().parents[2]
DEV = (ROOT / "dev").read_text()
# Words of the shell, and what test_docs.py puts on the path.
NO_PROGRAMS = {
    "cd",
    "echo",
    "export",
    "set",
    "true",
    "false",
    "test",
    "[",
    "exit",
    "printf",
    "read",
    ".",
    "{",
    "}",
    "oomplan",
    "python3",
}


def stepped(command: str, tmp_path: Path, **environment: str) -> tuple[list[tuple[float, str]], str, int]:
    """Lines of standard error, each with the second at which it came; standard output; the exit status."""
    script = f'set -eu\n. "{ROOT}/cmake/progress.sh"\nstep slow sh -c "$1"\necho done\n'
    out = tmp_path / "out"
    began = time.monotonic()
    with out.open("w") as file:
        process = subprocess.Popen(
            ["sh", "-c", script, "sh", command],
            stdout=file,
            stderr=subprocess.PIPE,
            text=True,
            env={"PATH": "/usr/bin:/bin", **environment},
        )
        assert process.stderr is not None
        lines = [(time.monotonic() - began, line.rstrip("\n")) for line in process.stderr]
    return lines, out.read_text(), process.wait()


def test_a_long_step_says_at_least_every_ten_seconds_where_it_is(tmp_path: Path) -> None:
    lines, out, status = stepped('echo "[3/20] Building CXX object"; sleep 21', tmp_path)
    assert (out, status) == ("done\n", 0)
    times = [0.0, *(at for at, _ in lines), 21.0]
    assert max(after - before for before, after in zip(times, times[1:])) < 11
    assert any(line.endswith("s, 3 of 20 files, 15 %") for _, line in lines), lines


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("Setting up g++-12 (12.2.0-14)", "Setting up g++-12 (12.2.0-14)"),
        ("[ 40%] Building CXX object", "40%"),
        ("Collecting pytest", "Collecting pytest"),
        ("3: 0.25 s: a search that is told to stop stops", "a search that is told to stop stops"),
    ],
)
def test_what_a_step_is_at(said: str, told: str, tmp_path: Path) -> None:
    lines, _, _ = stepped(f"echo '{said}'; sleep 3", tmp_path, OOMPLAN_PROGRESS_S="1")
    assert any(line.endswith(told) for _, line in lines[1:]), lines


def test_a_short_step_says_nothing_and_one_that_fails_says_all(tmp_path: Path) -> None:
    assert stepped("echo words", tmp_path) == ([], "done\n", 0)
    lines, out, status = stepped("echo reason; exit 3", tmp_path)
    assert ([line for _, line in lines], out, status) == (["reason"], "", 3)


@pytest.mark.skipif(shutil.which("cmake") is None, reason="no cmake")
@pytest.mark.parametrize(
    ("option", "stops"), [("-DSKBUILD=ON", True), ("-DOOMPLAN_PROGRAM=ON", True), ("-DOOMPLAN_PYTHON=OFF", False)]
)
def test_a_program_that_was_asked_for_is_not_left_out_in_silence(option: str, stops: bool, tmp_path: Path) -> None:
    done = subprocess.run(
        ["cmake", "-S", str(ROOT), "-B", str(tmp_path), "-DCMAKE_DISABLE_FIND_PACKAGE_Boost=ON", option],
        capture_output=True,
        text=True,
    )
    assert (done.returncode != 0) == stops, done.stderr
    told = " ".join(done.stderr.split())
    assert "apt-get install libboost-program-options-dev" in told and "dnf install boost-devel" in told


def words_of(code: str) -> set[str]:
    """The programs that a piece of shell calls: the first word of each command."""
    out = set()
    for line in code.replace("\\\n", " ").splitlines():
        tokens = list(shlex.shlex(line, posix=True, punctuation_chars=True))
        first = True
        for token in tokens:
            if first and re.fullmatch(r"[A-Za-z_]\w*=.*", token):
                continue
            if first and re.fullmatch(r"[A-Za-z][\w.+-]*", token):
                out.add(token)
            first = token in {"|", "||", "&&", ";", "(", "&"}
    return out


def programs() -> set[str]:
    out = set()
    for page in PAGES:
        for language, code, _ in BLOCK.findall(page.read_text()):
            if language == "sh":
                out |= words_of(code)
    for file in sorted([*(ROOT / "tests" / "python").glob("*.py"), *(ROOT / "tests" / "cli").glob("*.py")]):
        for node in ast.walk(ast.parse(file.read_text())):
            # run(["patch", ...]), Popen(["sh", ...]), which("patch")
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or not node.args:
                continue
            at = node.args[0].elts[0] if isinstance(node.args[0], ast.List) and node.args[0].elts else node.args[0]
            if (
                node.func.attr in {"run", "Popen", "which", "check_output"}
                and isinstance(at, ast.Constant)
                and isinstance(at.value, str)
            ):
                out.add(at.value)
    return out - NO_PROGRAMS


def test_programs_are_found() -> None:
    assert {"patch", "nm", "sh", "head", "grep"} <= programs()


def needs(package: str, known: frozenset[str] = frozenset()) -> frozenset[str]:
    """A package, and what apt installs with it."""
    if package in known:
        return known
    known |= {package}
    shown = subprocess.run(["dpkg-query", "-W", "-f", "${Depends}", package], capture_output=True, text=True)
    for need in re.findall(r"(?:^|, )([a-z0-9][a-z0-9+.-]+)", shown.stdout):
        known = needs(need, known)
    return known


@pytest.mark.skipif(shutil.which("dpkg-query") is None, reason="not Debian")
@pytest.mark.parametrize("program", sorted(programs()))
def test_a_bare_debian_has_the_program_or_dev_installs_it(program: str) -> None:
    installed = set(
        re.findall(r"[a-z][a-z0-9+.-]+", " ".join(re.findall(r"^ *(?:need|tools\(\).*need|tools) ([^#\n]*)", DEV, re.MULTILINE)))
    )
    if program in installed:
        return
    installed |= {need for package in installed for need in needs(package)}
    path = shutil.which(program)
    assert path is not None, f"{program}: ./dev test has to install it"
    # A program can be a link (awk), and its package can know it by its place from before /bin became /usr/bin.
    places = {path, str(Path(path).resolve())}
    places |= {place.removeprefix("/usr") for place in places} | {
        f"/usr{place}" for place in places if not place.startswith("/usr")
    }
    found = subprocess.run(["dpkg-query", "-S", *sorted(places)], capture_output=True, text=True).stdout
    packages = {line.split(":")[0] for line in found.splitlines() if not line.startswith("diversion")}
    assert packages, f"{path} is of no package"
    show = ["dpkg-query", "-W", "-f", "${Essential} ${Priority}\n", *sorted(packages)]
    bare = "yes" in (shown := subprocess.run(show, capture_output=True, text=True).stdout) or "required" in shown
    assert bare or packages & installed, f"{program} ({packages}): a bare Debian lacks it; name its package in ./dev"
