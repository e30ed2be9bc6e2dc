"""The installed C++ and C libraries, used as others use them: find_package, pkg-config, add_subdirectory and FetchContent."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = Path(os.environ.get("OOMPLAN_PROGRAM", str(ROOT / "build" / "oomplan"))).resolve()
EXAMPLES = {"cpp": ROOT / "examples" / "cpp" / "check.cpp", "c": ROOT / "examples" / "c" / "check.c"}
JOB = str(ROOT / "examples" / "grpo.yaml")
WARNINGS = ["-Wall", "-Wextra", "-Wconversion", "-Wshadow", "-Wpedantic", "-Werror"]


def ran(*command: str | Path, status: int = 0, **variables: str) -> str:
    done = subprocess.run(
        [str(word) for word in command], capture_output=True, text=True, env={**os.environ, **variables}, timeout=600
    )
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout + done.stderr


def check_program(language: str, program: Path, **variables: str) -> None:
    """It says what the command line says, and ends as it does."""
    known = json.loads(ran(PROGRAM, "estimate", JOB, "--json"))
    for overrides, status in (([], 0), (["actor.tokens_per_micro_batch=512k"], 1), (["actor.layuot=d4"], 2)):
        said = ran(program, JOB, *overrides, status=status, **variables)
        if status == 2:
            assert "layuot" in said and "layout" in said
        elif status == 1:
            assert "does not fit" in said
        elif language == "cpp":
            assert said.startswith(known["verdict"]), said
        else:
            assert json.loads(said)["gpus"] == known["gpus"]


def library_folder(prefix: Path) -> Path:
    return next(prefix.rglob("oomplanConfig.cmake")).parents[2]


def test_what_is_installed(prefix: Path) -> None:
    headers = ROOT / "estimator" / "include"
    installed = prefix / "include"
    assert {p.relative_to(installed) for p in installed.rglob("*.h*")} == {p.relative_to(headers) for p in headers.rglob("*.h*")}
    assert not (prefix / "oomplan").exists()  # the Python package comes by pip
    assert ran(prefix / "bin" / "oomplan", "--version").strip()
    for path in (*prefix.rglob("*.cmake"), *prefix.rglob("*.pc")):
        assert str(ROOT) not in path.read_text() and "/made" not in path.read_text(), path


@pytest.mark.parametrize("language", ["cpp", "c"])
def test_find_package(language: str, prefix: Path, tmp_path: Path) -> None:
    ran("cmake", "-S", EXAMPLES[language].parent, "-B", tmp_path, f"-DCMAKE_PREFIX_PATH={prefix}")
    ran("cmake", "--build", tmp_path)
    check_program(language, tmp_path / "check")


@pytest.mark.parametrize("language", ["cpp", "c"])
def test_pkg_config(language: str, prefix: Path, tmp_path: Path) -> None:
    """The headers are not a system's here: a user's warnings see them."""
    folder = library_folder(prefix)
    name = {"cpp": "oomplan", "c": "oomplan_c"}[language]
    flags = ran("pkg-config", "--cflags", "--libs", name, PKG_CONFIG_PATH=str(folder / "pkgconfig")).split()
    compiler = ["c++", "-std=c++20"] if language == "cpp" else ["cc", "-std=c99"]
    ran(*compiler, *WARNINGS, EXAMPLES[language], *flags, "-o", tmp_path / "check")
    check_program(language, tmp_path / "check", LD_LIBRARY_PATH=str(folder))


def configured(folder: Path, text: str, *options: str, status: int = 0) -> str:
    (folder / "CMakeLists.txt").write_text(text)
    return ran("cmake", "-S", folder, "-B", folder / "build", *options, status=status)


def test_parts_and_releases(prefix: Path, tmp_path: Path) -> None:
    start = "cmake_minimum_required(VERSION 3.22)\nproject(user LANGUAGES CXX)\n"
    where = f"-DCMAKE_PREFIX_PATH={prefix}"
    whole = start + (
        "find_package(oomplan 0.1 REQUIRED)\nforeach(target oomplan oomplan_c program)\n"
        '  get_target_property(file oomplan::${target} LOCATION)\n  message(STATUS "found ${file}")\nendforeach()\n'
    )
    found = re.findall(r"found (.*)", configured(tmp_path, whole, where))
    assert len(found) == 3 and all(Path(file).is_file() for file in found), found
    for asked, why in (("0.9", "0.1.0"), ("1.0", "0.1.0"), ("COMPONENTS rust", "rust")):
        said = configured(tmp_path, start + f"find_package(oomplan {asked} REQUIRED)\n", where, status=1)
        assert why in said


OUTER = """
get_property(variables DIRECTORY PROPERTY VARIABLES)
foreach(name CMAKE_CXX_STANDARD CMAKE_CXX_STANDARD_REQUIRED CMAKE_CXX_EXTENSIONS CMAKE_POSITION_INDEPENDENT_CODE CMAKE_BUILD_TYPE
             CMAKE_CXX_VISIBILITY_PRESET CMAKE_VISIBILITY_INLINES_HIDDEN BUILD_SHARED_LIBS BUILD_TESTING FMT_INSTALL)
  message(STATUS "outer ${name}=${${name}}")
endforeach()
get_target_property(options oomplan::oomplan INTERFACE_COMPILE_OPTIONS)
get_target_property(definitions oomplan::oomplan INTERFACE_COMPILE_DEFINITIONS)
message(STATUS "used with ${options} ${definitions}")
"""
WAYS = {
    "add_subdirectory": f'add_subdirectory("{ROOT}" oomplan)',
    "FetchContent": f'include(FetchContent)\nFetchContent_Declare(oomplan SOURCE_DIR "{ROOT}")\nFetchContent_MakeAvailable(oomplan)',
}


@pytest.mark.parametrize("shared", ["OFF", "ON"])
@pytest.mark.parametrize("way", WAYS)
def test_inside_of_another_project(way: str, shared: str, build: Path, tmp_path: Path) -> None:
    """Configured, not compiled: the user's settings, warnings, tests and installation are as they were."""
    text = (
        "cmake_minimum_required(VERSION 3.22)\nproject(user LANGUAGES C CXX)\nset(OOMPLAN_C ON)\n"
        f"set(BUILD_SHARED_LIBS {shared})\n{WAYS[way]}\n{OUTER}"
        f'add_executable(with_cpp "{EXAMPLES["cpp"]}")\ntarget_link_libraries(with_cpp PRIVATE oomplan::oomplan)\n'
        f'add_executable(with_c "{EXAMPLES["c"]}")\ntarget_link_libraries(with_c PRIVATE oomplan::oomplan_c)\n'
    )
    cache = (build / "CMakeCache.txt").read_text()
    fetch = re.search(r"^OOMPLAN_FETCH:BOOL=(\w+)", cache, re.MULTILINE)
    said = configured(tmp_path, text, "-DCMAKE_EXPORT_COMPILE_COMMANDS=ON", f"-DOOMPLAN_FETCH={fetch[1] if fetch else 'OFF'}")
    outer = dict(re.findall(r"outer (\w+)=(.*)", said))
    assert outer.pop("BUILD_SHARED_LIBS") == shared
    assert not any(outer.values()), outer
    assert "used with options-NOTFOUND definitions-NOTFOUND" in said
    commands = {row["file"]: row["command"] for row in json.loads((tmp_path / "build" / "compile_commands.json").read_text())}
    ours = [command for file, command in commands.items() if file.startswith(str(ROOT / "estimator"))]
    assert len(ours) > 100 and not any("-Werror" in command for command in ours)
    flags = commands[str(EXAMPLES["cpp"])].split()
    assert not [flag for flag in flags if flag.startswith(("-W", "-f", "-O", "-g", "-D"))], flags
    assert any(re.fullmatch(r"-std=(gnu|c)\+\+2\w", flag) for flag in flags), flags
    assert not (tmp_path / "build" / "CTestTestfile.cmake").exists() or "unit" not in ran(
        "ctest", "--test-dir", tmp_path / "build", "-N"
    )
    for script in (tmp_path / "build").rglob("cmake_install.cmake"):
        assert "file(INSTALL" not in script.read_text(), script


def exported(library: Path) -> list[str]:
    rows = ran("nm", "-DC", "--defined-only", library).splitlines()
    return [row.split(maxsplit=2)[2] for row in rows]


def soname(library: Path) -> str:
    found = re.search(r"SONAME.*\[(.*)\]", ran("readelf", "-d", library))
    assert found
    return found[1]


def test_c_library_shows_its_calls_alone(prefix: Path) -> None:
    library = library_folder(prefix) / "liboomplan_c.so"
    header = (prefix / "include" / "oomplan" / "oomplan.h").read_text()
    assert sorted(exported(library)) == sorted(re.findall(r"^OOMPLAN_API [^(]*?(\w+)\(", header, re.MULTILINE))
    assert soname(library) == "liboomplan_c.so.1"
    abi = re.search(r"^#define OOMPLAN_ABI (\d+)$", header, re.MULTILINE)
    assert abi and library.resolve().name == f"liboomplan_c.so.1.{abi[1]}.0"


def test_shared_library_shows_its_namespace_alone(build: Path, prefix: Path, tmp_path: Path) -> None:
    library = build / "liboomplan.so"
    names = exported(library)
    foreign = [n for n in names if not re.match(r"((typeinfo|typeinfo name|vtable) for )?oomplan::", n)]
    assert not foreign, foreign[:20]
    assert any(n.startswith("oomplan::estimate(") for n in names) and not any("TapeStore" in n for n in names)
    release = re.search(r"(\d+\.\d+)\.\d+", ran(PROGRAM, "--version"))
    assert (
        release and soname(library) == f"liboomplan.so.{release[1]}" and library.resolve().name == f"liboomplan.so.{release[0]}"
    )
    ran("c++", "-std=c++20", EXAMPLES["cpp"], "-I", prefix / "include", f"-L{build}", "-loomplan", "-o", tmp_path / "check")
    assert soname(library) in ran("readelf", "-d", tmp_path / "check")
    check_program("cpp", tmp_path / "check", LD_LIBRARY_PATH=str(build))


def test_module_shows_its_start_alone(build: Path) -> None:
    assert exported(next((build / "python" / "oomplan").glob("_core.*.so"))) == ["PyInit__core"]
