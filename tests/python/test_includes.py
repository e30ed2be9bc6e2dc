"""Data flows one way: a folder includes only what stands to its left."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / "estimator" / "src"

# Folder: what it may include besides itself and the public headers.
LAYERS: list[tuple[str, ...]] = [
    ("units",),
    ("catalog", "layout", "program"),
    ("job",),
    ("layers",),
    ("training", "inference", "sync"),
    ("frontends",),  # what was read, not what is answered; search and advice answer in the words of the file
    ("estimate",),
    ("search",),
    ("advice", "snapshot"),
    ("report", "calibrate"),
    ("cli", "bindings"),
]
RANK = {folder: rank for rank, folders in enumerate(LAYERS) for folder in folders}
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.MULTILINE)
# Heavy headers and who may include them; nobody may in a public header.
HEAVY = {
    "boost/": ("cli/options.cpp",),
    "yaml-cpp/": ("frontends/yaml.cpp",),
    "pybind11/": ("bindings/python/",),
    "Eigen/": ("calibrate/",),
}


def files() -> list[tuple[str, Path]]:
    found = [(path.relative_to(SOURCES).parts[0], path) for path in SOURCES.rglob("*.[ch]pp")]
    found += [("cli", path) for path in (ROOT / "estimator" / "cli").rglob("*.[ch]pp")]
    found += [("bindings", path) for path in (ROOT / "bindings").rglob("*.[ch]pp")]
    return found


def test_folders_are_known() -> None:
    assert {folder for folder, _ in files()} <= set(RANK)


def test_includes_point_left() -> None:
    wrong = []
    for folder, path in files():
        for kind, header in INCLUDE.findall(path.read_text()):
            target = header.split("/")[0]
            if kind != '"' or "/" not in header or target == folder or target not in RANK:
                continue
            if RANK[target] >= RANK[folder]:
                wrong.append(f"{path.relative_to(ROOT)} includes {header}")
    assert not wrong, "\n".join(wrong)


def test_compose_knows_no_framework() -> None:
    """What Hydra and OmegaConf do is the same for every framework that uses them."""
    wrong = []
    for _folder, path in files():
        if "frontends/compose" not in path.as_posix():
            continue
        for kind, header in INCLUDE.findall(path.read_text()):
            if kind == '"' and not header.startswith(("frontends/compose/", "frontends/yaml.hpp", "units/")):
                wrong.append(f"{path.relative_to(ROOT)} includes {header}")
    assert not wrong, "\n".join(wrong)


FRAMEWORK = re.compile(r"\bFramework::(?!torch\b)\w+|\bframework\s*[!=]=\s*[\"F]")
# Where frameworks have names: their own folders, the words of a job file and its default.
NAMES_FRAMEWORKS = re.compile(r"estimator/src/frontends/\w+/|estimator/src/job/names\.hpp|estimator/include/oomplan/job\.hpp")
# Provenance is data: no code compares the words that people read.
PROVENANCE = re.compile(r"because\s*[!=]=")


# a front end that is a row of another's family (docs/decisions/relax.md)
MADE_OF = {"relax": ("slime",)}


def test_front_ends_know_each_other_by_their_rows_alone() -> None:
    """A file beside the folders of the front ends asks none of them; dialect.cpp and assemble's rows name what they hold. Flags of
    an engine are read in one place, whichever framework hands them on."""
    rows = {"dialect.cpp"}
    shared = ("compose", "launch", "structured", "trainers")  # Hydra, bash, OmegaConf and Transformers' words are the same everywhere
    engines = ("megatron", "servers")
    folders = [path.name for path in (SOURCES / "frontends").iterdir() if path.is_dir() and path.name not in shared]
    wrong = []
    for path in (SOURCES / "frontends").glob("*.[ch]pp"):
        for _kind, header in INCLUDE.findall(path.read_text()):
            if path.name not in rows and any(header.startswith(f"frontends/{folder}/") for folder in folders):
                wrong.append(f"{path.name} includes {header}")
    for folder in folders:
        for path in (SOURCES / "frontends" / folder).rglob("*.[ch]pp"):
            for _kind, header in INCLUDE.findall(path.read_text()):
                known = (folder, *engines, *MADE_OF.get(folder, ()))
                if any(header.startswith(f"frontends/{other}/") for other in folders if other not in known):
                    wrong.append(f"{folder}/{path.name} includes {header}")
    assert not wrong, "\n".join(wrong)


def test_engines_know_no_framework() -> None:
    """What a framework does to an engine is a field of its loop (TrainingLoop), which its front end sets."""
    public = [("include", path) for path in (ROOT / "estimator" / "include").rglob("*.hpp")]
    wrong = []
    for _folder, path in [*files(), *public]:
        name = path.relative_to(ROOT).as_posix()
        if not NAMES_FRAMEWORKS.match(name) and (found := FRAMEWORK.findall(path.read_text())):
            wrong.append(f"{name}: {found}")
    assert not wrong, "\n".join(wrong)


def test_no_code_compares_what_people_read() -> None:
    """Where a value comes from is data (Origin::Kind, Origin::Rule); `because` is for people."""
    wrong = [path.relative_to(ROOT).as_posix() for _folder, path in files() if PROVENANCE.search(path.read_text())]
    assert not wrong, "\n".join(wrong)


def test_quoted_headers_exist() -> None:
    wrong = []
    for _folder, path in files():
        for kind, header in INCLUDE.findall(path.read_text()):
            places = [SOURCES, path.parent, ROOT / "estimator" / "cli", ROOT / "bindings" / "python"]
            if kind == '"' and not any((place / header).is_file() for place in places):
                wrong.append(f"{path.relative_to(ROOT)} includes {header}")
    assert not wrong, "\n".join(wrong)


def test_public_headers_include_only_public_headers() -> None:
    for path in (ROOT / "estimator" / "include").rglob("*.h*"):
        for kind, header in INCLUDE.findall(path.read_text()):
            assert kind == "<" and (header.startswith("oomplan/") or "/" not in header), f"{path.name} includes {header}"


def test_heavy_headers_stay_where_they_are() -> None:
    for _folder, path in files():
        for _kind, header in INCLUDE.findall(path.read_text()):
            for prefix, homes in HEAVY.items():
                if header.startswith(prefix):
                    assert any(home in str(path) for home in homes), f"{path.relative_to(ROOT)} includes {header}"
            if path.suffix == ".hpp" and path.name != "knob_access.hpp":  # an internal header of three .cpp files
                declares = header == "nlohmann/json_fwd.hpp"  # and defines nothing
                assert declares or not header.startswith(("nlohmann/", "fmt/")), f"{path.relative_to(ROOT)} includes {header}"


def test_no_type_is_defined_twice() -> None:
    """Two types of one name in one namespace link without a word and crash."""
    homes: dict[str, set[str]] = {}
    for path in [*SOURCES.rglob("*.hpp"), *(ROOT / "estimator" / "include").rglob("*.hpp")]:
        text = path.read_text()
        spaces = re.findall(r"^namespace ([\w:]+) \{", text, re.MULTILINE)
        for name in re.findall(r"^(?:struct|class|enum class) (\w+(?:::\w+)*)[^;{]*\{", text, re.MULTILINE):
            homes.setdefault("::".join([*spaces[:1], name]), set()).add(str(path.relative_to(ROOT)))
    twice = {name: sorted(where) for name, where in homes.items() if len(where) > 1}
    assert not twice, twice


def test_public_headers_are_seen_from_outside() -> None:
    """A shared library is compiled with hidden symbols: a public header says that its namespace is not."""
    headers = sorted((ROOT / "estimator" / "include").rglob("*.hpp"))
    blocks = {path: re.findall(r"^namespace oomplan.*?^}", path.read_text(), re.MULTILINE | re.DOTALL) for path in headers}
    assert len(headers) > 6
    for path, found in blocks.items():
        assert found or path.name == "export.hpp", path
        for block in found:
            only_names = re.fullmatch(r"namespace oomplan \{\s*(class \w+;[^\n]*\s*)*\}", block)
            assert only_names or block.startswith("namespace oomplan OOMPLAN_PUBLIC {"), f"{path}: {block[:80]}"
