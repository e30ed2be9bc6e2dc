"""Writes models/frameworks/verl.json: what verl's configuration looks like in every release, from a git checkout.

    python models/frameworks/verl_schema.py /path/to/verl.git > models/frameworks/verl.json

Of every YAML file that an entry point composes: keys, defaults, links, its defaults list and its package; of every entry point its
module, folder and primary file (the arguments of @hydra.main). A file that stays what it is stands once, with the releases it holds for.
Nothing of the checkout is run. Needs omegaconf, which reads the numbers as verl does.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import PurePosixPath
from typing import Any

from omegaconf import OmegaConf

# release, commit; the last is the development version after 0.9.0
RELEASES = [
    ("0.3.0", "v0.3.0.post1"),
    ("0.4.0", "v0.4.0"),
    ("0.4.1", "v0.4.1"),
    ("0.5.0", "v0.5.0"),
    ("0.6.0", "v0.6.0"),
    ("0.6.1", "v0.6.1"),
    ("0.7.0", "v0.7.0"),
    ("0.7.1", "v0.7.1"),
    ("0.8.0", "v0.8.0"),
    ("0.9.0", "v0.9.0"),
    ("0.10.0", "1dda039b9c6311889a9c9a26040677e1254814f9"),
]
CONFIG = re.compile(r"(verl|recipe)/(?!.*_generated_).*config/.*\.yaml")
MAIN = re.compile(r"^([\w./]+\.py):@hydra\.main\(config_path=(\S+?), config_name=[\"']([\w-]+)[\"']", re.MULTILINE)
PACKAGE = re.compile(r"#\s*@package\s+(\S+)")


def git(checkout: str, *words: str) -> str:
    done = subprocess.run(["git", "--git-dir", checkout, *words], capture_output=True, text=True, check=False)
    return done.stdout


def config_of(text: str) -> tuple[str, Any]:
    """The package that the head of the file names, "" for none, and the content with links as written."""
    head = text.split("\n\n")[0] if text.lstrip().startswith("#") else ""
    package = PACKAGE.search("\n".join(line for line in head.splitlines() if line.startswith("#")) or text[:200])
    return package[1] if package else "", OmegaConf.to_container(OmegaConf.create(text), resolve=False)


def spread(rows: dict[str, list[tuple[int, int, Any]]], key: str, number: int, value: Any) -> None:
    """The value holds in this release too, or from it on."""
    known = rows.setdefault(key, [])
    if known and known[-1][1] == number - 1 and known[-1][2] == value:
        known[-1] = (known[-1][0], number, value)
    else:
        known.append((number, number, value))


def main() -> None:
    checkout = sys.argv[1]
    files: dict[str, list[tuple[int, int, Any]]] = {}
    mains: dict[str, list[tuple[int, int, Any]]] = {}
    for number, (_release, commit) in enumerate(RELEASES):
        listed = git(checkout, "ls-tree", "-r", "--name-only", commit).splitlines()
        for path in sorted(path for path in listed if CONFIG.fullmatch(path)):
            package, content = config_of(git(checkout, "show", f"{commit}:{path}"))
            if isinstance(content, dict):
                spread(files, path, number, {"package": package, "content": content} if package else {"content": content})
        found = git(checkout, "grep", "-E", r"^@hydra\.main\(config_path", commit, "--", "verl", "recipe")
        for path, folder, name in MAIN.findall(re.sub(rf"^{commit}:", "", found, flags=re.MULTILINE)):
            module = path.removesuffix(".py").replace("/", ".")
            where = (PurePosixPath(path).parent / folder.strip("'\"")).as_posix() if folder != "None" else ""
            spread(mains, module, number, {"folder": where, "config": name})
    names = [release for release, _commit in RELEASES]
    out = {
        "source": "verl-project/verl, " + ", ".join(f"{release}: {commit}" for release, commit in RELEASES),
        "releases": names,
        "entry_points": {
            key: [{"first": names[a], "last": names[b], **value} for a, b, value in rows] for key, rows in sorted(mains.items())
        },
        "files": {
            key: [{"first": names[a], "last": names[b], **value} for a, b, value in rows] for key, rows in sorted(files.items())
        },
    }
    print(json.dumps(out, ensure_ascii=False, separators=(",", ":")))


if __name__ == "__main__":
    main()
