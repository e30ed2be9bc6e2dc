"""Bash itself with every program replaced by a recorder: what a script would start, without starting it.

Bash runs in an empty root folder of its own (chroot), without the system's programs: PATH names an empty folder, so every external command ends in
command_not_found_handle, which writes its words to a file and answers 0. Filters that change nothing (dirname, basename, seq, tr, cut,
head, tail, wc, grep, cat, tee, realpath, expr) are recorded and then run; probes of the machine answer as oomplan does: GPUs, no NPUs.
Files of the tree under test are copied without their executable bits.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

PURE = ["dirname", "basename", "seq", "tr", "cut", "head", "tail", "wc", "grep", "cat", "tee", "realpath", "expr"]

STUBS = r"""
__record() {
  local IFS=' '
  printf '%s\0' "$@" > "/record/$EPOCHREALTIME.$BASHPID.$SRANDOM"
}
command_not_found_handle() {
  __record "$@"
  local name=${1##*/}
  case $name in
    dirname|basename|seq|tr|cut|head|tail|wc|grep|cat|tee|realpath|expr) shift; "/pure/$name" "$@"; return ;;
    readlink) shift; [[ $1 == -* ]] && shift; /pure/realpath -m "$@"; return ;;
    egrep) shift; /pure/grep -E "$@"; return ;;
    xargs) if [[ $# == 1 ]]; then local all; all=$(/pure/cat); echo $all; return; fi ;;
    date) [[ $2 == +%s ]] && echo 1700000000 || echo 20250101_0000; return 0 ;;
    uname) [[ $2 == -m ]] && echo x86_64 || echo Linux; return 0 ;;
    which) command -v "$2"; return ;;
    nvidia-smi)
      case "$2" in
        -L|--list-gpus) for i in 0 1 2 3 4 5 6 7; do printf 'GPU %s: NVIDIA H100 80GB HBM3 (UUID: GPU-%08x)\n' $i $i; done ;;
        topo) for i in 0 1 2 3 4 5 6 7; do printf 'GPU%s' $i; for k in 0 1 2 3 4 5 6 7; do [[ $i == $k ]] && printf '\t X ' || printf '\tNV18'; done; printf '\n'; done ;;
        --query-gpu=name) for i in 0 1 2 3 4 5 6 7; do echo "NVIDIA H100 80GB HBM3"; done ;;
        --query-gpu=count) for i in 0 1 2 3 4 5 6 7; do echo 8; done ;;
      esac
      return 0 ;;
    rocm-smi|npu-smi|rocminfo|xpu-smi) return 127 ;;
    bash|sh|dash) shift; BASH_ENV=/stubs /bin/bash "$@"; return ;;
    python*)
      if [[ $2 == -c ]]; then
        [[ $3 == *torch_npu* ]] && return 1
        [[ $3 == *'print(torch.cuda.device_count())'* ]] && echo 8
      fi ;;
  esac
  return 0
}
command() {
  case "$1" in
    -v|-V) case "$2" in nvidia-smi) echo /usr/bin/nvidia-smi; return 0 ;; npu-smi|rocm-smi|rocminfo|xpu-smi) return 1 ;; esac
           builtin type -t "$2" >/dev/null 2>&1; return 0 ;;
  esac
  "$@"
}
kill() { return 0; }
wait() { return 0; }
trap() { return 0; }
exec() { [[ $# == 0 ]] && return 0; "$@"; exit; }
cd() {
  [[ $1 == -- ]] && shift
  local to=${1-$HOME}
  builtin cd "$to" 2>/dev/null && return 0
  [[ $to == /* ]] || to=$PWD/$to
  PWD=$(/pure/realpath -m -- "$to")
}
pwd() { printf '%s\n' "$PWD"; }
source() {
  if [[ -f $1 ]]; then builtin source "$@"; else __record source_of_nothing "$1"; return 0; fi
}
"""


@dataclass
class Ran:
    commands: list[list[str]]
    status: int
    said: str
    timed_out: bool = False
    stderr: str = field(default="", repr=False)


class Root:
    """A root folder with bash in it. Close it, or use it with `with`."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="bash_root_"))
        for folder in ("bin", "pure", "record", "tmp", "dev", "root", "proc", "repo"):
            (self.path / folder).mkdir()
        self._program("/bin/bash", "bin/bash")
        for name in PURE:
            found = shutil.which(name)
            assert found, name
            self._program(found, f"pure/{name}")
        (self.path / "stubs").write_text(STUBS)
        os.mknod(self.path / "dev/null", 0o666 | 0o020000, os.makedev(1, 3))
        os.chmod(self.path / "dev/null", 0o666)
        (self.path / "dev/fd").symlink_to("/proc/self/fd")  # for <(...)
        subprocess.run(["mount", "-t", "proc", "proc", str(self.path / "proc")], check=True)

    def __enter__(self) -> Root:
        return self

    def __exit__(self, *_: object) -> None:
        subprocess.run(["umount", str(self.path / "proc")], check=True)
        shutil.rmtree(self.path, ignore_errors=True)

    def _program(self, source: str, target: str) -> None:
        shutil.copy(source, self.path / target)
        listed = subprocess.run(["ldd", source], capture_output=True, text=True, check=False).stdout
        for word in listed.split():
            if word.startswith("/") and not (self.path / word[1:]).exists():
                (self.path / word[1:]).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(word, self.path / word[1:])

    def add_tree(self, tree: Path, at: str) -> None:
        """A copy of `tree` under the path `at`, nothing in it executable."""
        target = self.path / at.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(tree, target, symlinks=True)
        for path in target.rglob("*"):
            if path.is_file() and not path.is_symlink():
                path.chmod(0o644)

    def run(self, script: str, arguments: list[str], environment: dict[str, str], folder: str, seconds: float = 20) -> Ran:
        """Runs the script of that path in the root folder."""
        record = self.path / "record"
        for old in record.iterdir():
            old.unlink()
        given = {"PATH": "/nothing", "HOME": "/root", "USER": "root", "BASH_ENV": "/stubs", **environment}

        def enter() -> None:
            os.chroot(self.path)
            os.chdir(folder)

        timed_out = False
        with subprocess.Popen(
            ["/bin/bash", script, *arguments],
            env=given,
            preexec_fn=enter,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        ) as child:
            try:
                stdout, stderr = child.communicate(timeout=seconds)
            except subprocess.TimeoutExpired:
                timed_out = True
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)  # loops in the background outlive the script
            if timed_out:
                stdout, stderr = child.communicate()
            status = 124 if timed_out else child.returncode
        commands = []
        for path in sorted(record.iterdir(), key=lambda p: p.name):
            words = path.read_bytes().decode("utf-8", "surrogateescape").split("\0")[:-1]
            commands.append(words)
        last = stdout.decode("utf-8", "replace").strip().split("\n")[-1]
        return Ran(commands, status, last, timed_out, stderr.decode("utf-8", "replace"))
