"""Jobs as one would type them: scripts and commands, behind whatever stands in front, and the verdict alone."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = os.environ.get("OOMPLAN_PROGRAM", str(ROOT / "build" / "oomplan"))
SERVER = "vllm serve Qwen/Qwen3-8B --tensor-parallel-size 2 --max-model-len 8192"
MEGATRON = (
    "torchrun --nproc-per-node 8 --nnodes 1 pretrain_gpt.py --num-layers 4 --hidden-size 1024 --num-attention-heads 16 --seq-length 2048 "
    "--max-position-embeddings 2048 --micro-batch-size 1 --global-batch-size 8 --vocab-size 32000 --tokenizer-type NullTokenizer --bf16"
)


def run(*arguments: str, folder: Path = ROOT, text: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
    given = {"HOME": "/root", "PATH": "/usr/bin:/bin", **variables}
    return subprocess.run(
        [PROGRAM, *arguments], cwd=folder, env=given, input=text, capture_output=True, text=True, timeout=60, check=False
    )


def job_of(*arguments: str, folder: Path = ROOT, **variables: str) -> dict[str, object]:
    done = run("read", "--json", *arguments, folder=folder, **variables)
    assert done.returncode == 0, done.stderr
    job = json.loads(done.stdout)
    job.pop("origins")  # places: a line of the script, or the command line
    return dict(job)


WRAPPERS = [
    "srun -N 1 --gpus-per-node=8 {}",
    "srun --nodes=1 bash -c {quoted}",
    "sbatch --wrap {quoted}",
    "ray job submit --address http://127.0.0.1:8265 -- {}",
    "docker run --gpus all -v /a:/b --rm image:tag {}",
    "apptainer exec --nv image.sif {}",
    "singularity run --nv image.sif {}",
    "nsys profile -o out {}",
    "env A=1 B=2 {}",
    "timeout 3600 {}",
    "nohup {}",
    "uv run {}",
    "conda run -n env {}",
    "A=1 nice -n 5 {}",
    "time {}",
    "exec {}",
    "sudo -E {}",
]


@pytest.mark.parametrize("wrapper", WRAPPERS)
@pytest.mark.parametrize("command", [SERVER, MEGATRON], ids=["server", "megatron"])
def test_what_stands_in_front_changes_nothing(wrapper: str, command: str, tmp_path: Path) -> None:
    plain = job_of("--", *shlex.split(command))
    script = tmp_path / "run.sh"
    script.write_text(wrapper.format(command, quoted=shlex.quote(command)) + "\n")
    assert job_of(str(script)) == plain
    if "quoted" not in wrapper and not wrapper.startswith(("A=1", "time", "exec")):
        assert job_of("--", *shlex.split(wrapper.format(command))) == plain


def test_nodes_and_gpus_of_what_stands_in_front_count(tmp_path: Path) -> None:
    script = tmp_path / "run.slurm"
    command = MEGATRON.replace("torchrun --nproc-per-node 8 --nnodes 1", "torchrun --nproc-per-node 8")
    script.write_text(
        f"#!/bin/bash\n#SBATCH --nodes=4\n#SBATCH --gres=gpu:8\n{command.replace('--global-batch-size 8', '--global-batch-size 32')}\n"
    )
    assert json.loads(run("read", "--json", str(script)).stdout)["settings"]["gpus"] == "32 x H100-80GB"


def test_variables_come_from_the_environment_and_set(tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text("vllm serve ${MODEL:-Qwen/Qwen3-0.6B} --tensor-parallel-size $1 --max-model-len $((LEN * 2))\n")
    asked = [str(script), "2", "--set", "LEN=4096", "--set", "MODEL=Qwen/Qwen3-8B"]
    assert job_of(*asked) == job_of("--", *shlex.split(SERVER))
    assert job_of(str(script), "2", LEN="4096", MODEL="Qwen/Qwen3-8B") == job_of("--", *shlex.split(SERVER))


def test_a_script_may_come_from_standard_input() -> None:
    done = run("check", "-", text=f"#!/bin/bash\nset -x\n{SERVER}\n")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("fits: the fullest GPU, server 0-1")


def test_areal_is_read_through_its_launcher(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text((ROOT / "examples" / "areal" / "grpo_7b.yaml").read_text())
    words = ["python3", "-m", "areal.launcher.local", "train.py", "--config", "job.yaml", "actor.mb_spec.max_tokens_per_mb=8192"]
    of_file = job_of("job.yaml", "actor.mb_spec.max_tokens_per_mb=8192", folder=tmp_path)
    assert job_of("--", *words, folder=tmp_path) == of_file
    (tmp_path / "run.sh").write_text("TOKENS=8192\n" + shlex.join(words).replace("=8192", "=$TOKENS") + '  "$@"\n')
    assert job_of("run.sh", folder=tmp_path) == of_file
    diff = run("advise", "run.sh", "actor.mb_spec.max_tokens_per_mb=131072", "--diff", "1", folder=tmp_path)
    assert diff.stdout.startswith("--- job.yaml") or diff.returncode == 2, diff.stderr


def test_one_of_several_jobs_is_asked_for(tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text("vllm serve Qwen/Qwen3-8B --port 1 &\nvllm serve Qwen/Qwen3-0.6B --port 2 &\nwait\n")
    assert "2 jobs" in run("check", str(script)).stderr
    assert json.loads(run("read", "--json", str(script), "--command", "2").stdout)["settings"]["model"] == "Qwen/Qwen3-0.6B"


def test_an_unknown_value_matters_only_where_memory_depends_on_it(tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text('vllm serve Qwen/Qwen3-8B --host "$(hostname -I)" --port "$PORT_OF_MINE"\n')
    assert run("check", str(script)).returncode == 0
    script.write_text("vllm serve Qwen/Qwen3-8B --max-model-len $LENGTH_OF_MINE\n")
    done = run("check", str(script))
    assert done.stderr.splitlines()[0] == f"oomplan: {script}:1 --max-model-len: found nothing behind it, expected a value"
    assert "give it: LENGTH_OF_MINE=... oomplan ..., or --set LENGTH_OF_MINE=..." in done.stderr
    script.write_text('vllm serve Qwen/Qwen3-8B --max-model-len "$LENGTH_OF_MINE"\n')
    assert "LENGTH_OF_MINE" in run("check", str(script)).stderr


EXAMPLES = sorted((ROOT / "examples").glob("*.yaml"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.stem)
@pytest.mark.parametrize("change", ["", "gpus"])
def test_check_says_what_estimate_says(path: Path, change: str) -> None:
    kinds = [f"gpus={n} x {kind}" for kind in ("A100-40GB", "L40S", "H200-141GB") for n in (8,)] if change else [""]
    for kind in kinds:
        more = [kind] if kind else []
        asked, whole = run("check", str(path), *more), run("estimate", str(path), *more)
        assert asked.returncode == whole.returncode, (kind, asked.stdout, whole.stdout[:200])
        if asked.returncode != 2:
            assert asked.stdout.count("\n") == 1
            assert asked.stdout.startswith("fits" if asked.returncode == 0 else "does not fit")


def test_check_in_json_is_as_written_down() -> None:
    import jsonschema

    schema = json.loads((ROOT / "docs" / "schema" / "check.schema.json").read_text())
    for more in ([], ["gpus=8 x A100-40GB"]):
        answer = json.loads(run("check", "--json", str(ROOT / "examples" / "grpo.yaml"), *more).stdout)
        jsonschema.Draft202012Validator(schema).validate(answer)


def test_commands_in_json_are_as_written_down(tmp_path: Path) -> None:
    import jsonschema

    schema = json.loads((ROOT / "docs" / "schema" / "commands.schema.json").read_text())
    script = 'A=$(date)\n[ -e /x ] && run "$A" $B a\\ b\nbash -c "run inner" &\nexit 2\n'
    (tmp_path / "run.sh").write_text(script)
    answer = json.loads(run("read", "--json", "--commands", "run.sh", folder=tmp_path).stdout)
    jsonschema.Draft202012Validator(schema).validate(answer)
    assert len(answer["commands"]) >= 3 and answer["ends"]["status"] == 2


KINDS = {
    "malformed": ["estimate", "--", "vllm", "serve", "Qwen/Qwen3-8B", "--tensor-parallel-siez", "2"],
    "not_supported": ["estimate", "--", "swift", "sft", "--config", "recipe.yaml"],
    "unknown_model": ["estimate", "--", "vllm", "serve", "nobody/has-this-model-7b"],
    "refused_by_framework": [
        "estimate",
        "--",
        *shlex.split(MEGATRON.replace("--num-attention-heads 16", "--num-attention-heads 15")),
    ],
}


@pytest.mark.parametrize("kind", KINDS)
def test_errors_say_of_which_kind_they_are(kind: str) -> None:
    done = run(*KINDS[kind], "--json") if "--" not in KINDS[kind] else run(KINDS[kind][0], "--json", *KINDS[kind][1:])
    assert done.returncode == 2
    assert json.loads(done.stdout)["kind"] == kind, done.stdout


BROKEN = [json.loads(line) for line in (ROOT / "tests" / "data" / "broken_launches.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("row", BROKEN, ids=lambda row: " ".join(row.get("command", [row.get("script")]))[:60])
def test_what_is_wrong_with_a_launch_is_said(row: dict[str, object], tmp_path: Path) -> None:
    files = row.get("files", {})
    assert isinstance(files, dict)
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    if "script" in row:
        (tmp_path / "run.sh").write_bytes(str(row["script"]).encode())
        arguments = row.get("arguments", [])
        assert isinstance(arguments, list)
        done = run("check", "run.sh", *arguments, folder=tmp_path)
    else:
        command = row["command"]
        assert isinstance(command, list)
        done = run("check", "--", *command, folder=tmp_path)
    assert (done.returncode, (done.stderr or done.stdout).splitlines()) == (row["status"], row["said"])


# Each round of these loops leaves more to copy than the round before.
GROWING = {
    "array": "while nothing[[ $# -gt 0 ]]; do R+=(x); done",
    "subshell": "A=(); for ((i=0; i<100000; i++)); do A+=($i); (cd /); done",
    "substitution": 'X=a; while true; do X=$X$X; Y=$(echo "$X"); done',
    "either": "A=(); for ((i=0; i<100000; i++)); do A+=($i); if unknown; then B=1; fi; done",
    "names": "for ((i=0; i<100000; i++)); do eval V$i=$i; (cd /); done",
    "dictionary": "declare -A D; for ((i=0; i<100000; i++)); do D[$i]=$i; (cd /); done",
    "positional": 'while true; do set -- "$@" x; (cd /); done',
    "functions": 'for ((i=0; i<100000; i++)); do eval "f$i() { :; }"; (cd /); done',
    "pipe": 'while true; do X+=" word"; echo $X | cat; done',
    "longer each": 'A=(); while true; do A+=("${A[*]}x"); (cd /); done',
    "sourced": 'while true; do X+=("$X"); source other.sh; done',
}


@pytest.mark.parametrize("body", GROWING.values(), ids=GROWING)
def test_a_script_that_grows_ends_soon(body: str) -> None:
    began = os.times()
    done = run("read", "--commands", "-", text=f"{body}\npython3 train.py\n")
    ended = os.times()
    seconds = ended.children_user + ended.children_system - began.children_user - began.children_system
    assert done.returncode in (0, 2), done.stderr
    assert seconds < 1, f"{seconds} s of CPU"
