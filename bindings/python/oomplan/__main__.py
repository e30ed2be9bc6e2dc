"""`python -m oomplan`: the program that stands beside this Python, with the same arguments."""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig


def program() -> str:
    """The program of this installation, else the one on the PATH; OOMPLAN_PROGRAM names another."""
    scripts = sysconfig.get_path("scripts")
    found = os.environ.get("OOMPLAN_PROGRAM") or shutil.which("oomplan", path=scripts) or shutil.which("oomplan")
    if found is None:
        sys.exit(f"oomplan: the program is not installed, neither in {scripts} nor on the PATH: pip install oomplan brings it")
    return found


if __name__ == "__main__":
    path = program()
    os.execv(path, [path, *sys.argv[1:]])
