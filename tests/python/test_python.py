"""The Python face: what goes in, what comes out, what is raised."""

from __future__ import annotations

import copy
import importlib.util
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import yaml

import oomplan

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / "examples" / "grpo.yaml"
PROGRAM = os.environ.get("OOMPLAN_PROGRAM", str(ROOT / "build" / "oomplan"))
FITS = {
    "oomplan": 1,
    "gpus": "8 x H100-80GB",
    "model": "qwen2.5-1.5b",
    "prompt_tokens": 1024,
    "response_tokens": 2048,
    "rollout": {"engine": "sglang 0.5.10", "layout": "d4"},
    "actor": {"engine": "fsdp2", "layout": "d4", "tokens_per_micro_batch": "4k"},
}


def too_large() -> dict[str, object]:
    job = copy.deepcopy(FITS)
    job.update(model="qwen2.5-72b", gpus="2 x H100-80GB", rollout={"engine": "sglang 0.5.10", "layout": "d1"})
    job["actor"] = {"engine": "fsdp2", "layout": "d1", "tokens_per_micro_batch": "16k"}
    return job


def test_the_same_job_in_every_form() -> None:
    text = FILE.read_text()
    expected = oomplan.estimate(str(FILE)).to_dict()["gpus"]
    forms: list[object] = [FILE, text, yaml.safe_load(text), [str(FILE)], oomplan.read(FILE)]
    for form in forms:
        assert oomplan.estimate(form).to_dict()["gpus"] == expected


def test_overrides() -> None:
    plain = oomplan.estimate(FITS)
    fewer = oomplan.estimate(FITS, "actor.tokens_per_micro_batch=3k")
    again = oomplan.estimate(oomplan.read(FITS), "actor.tokens_per_micro_batch=3k")
    assert plain.worst is not None and fewer.worst is not None
    assert fewer.to_dict()["gpus"] == again.to_dict()["gpus"] != plain.to_dict()["gpus"]


def test_an_answer_tells_its_parts() -> None:
    answer = oomplan.estimate(FITS)
    assert answer.fits and answer.verdict.startswith("fits: ")
    worst = answer.worst
    assert worst is not None and worst.capacity_needed_bytes > 0
    assert str(answer).splitlines()[0] == answer.verdict
    assert "<div" in answer._repr_html_() and answer.verdict in repr(answer)
    assert answer.to_dict()["schema"] == "oomplan.estimate/1"
    assert {gpu.gpu for gpu in answer.gpus} == {"H100-80GB"}
    assert not answer.explained


def test_explain_names_tensors() -> None:
    answer = oomplan.estimate(FITS).explain()
    assert answer.explained and answer.live
    tensor = answer.live[0]
    assert tensor.bytes > 0 and isinstance(tensor.shape, tuple)
    assert repr(tensor).startswith("LiveTensor(name=")
    assert answer.worst is not None and answer.worst.by_category_bytes["weights"] > 0


def test_check_raises_with_remedies() -> None:
    assert oomplan.check(FITS).fits
    with pytest.raises(oomplan.DoesNotFit) as raised:
        oomplan.check(too_large())
    assert not raised.value.estimate.fits
    assert isinstance(raised.value.remedies, list)
    assert str(raised.value).startswith("does not fit")


def test_input_errors_carry_all_problems() -> None:
    with pytest.raises(oomplan.InputError) as raised:
        oomplan.estimate({**FITS, "modl": "x", "promt_tokens": 3})
    assert isinstance(raised.value, ValueError)
    assert {problem.nearest for problem in raised.value.problems} >= {"model", "prompt_tokens"}
    assert raised.value.problems[0].line >= 1


@pytest.mark.parametrize("source", ["", "no-such-file.yaml", str(ROOT), [], "a\nb", "{", {"oomplan": 2}, "\x00\n"])
def test_wrong_sources(source: object) -> None:
    with pytest.raises(ValueError):
        oomplan.estimate(source)


def test_keyword_job() -> None:
    job = oomplan.Job(
        model="qwen2.5-1.5b",
        gpus="8 x H100-80GB",
        rollout="sglang 0.5.10:d4",
        actor="fsdp2:d4",
        tokens=4096,
        prompt_tokens=1024,
        response_tokens=2048,
    )
    assert oomplan.estimate(job).to_dict()["gpus"] == oomplan.estimate(FITS).to_dict()["gpus"]
    assert "layout: d4" in job.to_yaml() and job.to_dict()["schema"] == "oomplan.job/1"


def test_estimate_many_equals_one_by_one() -> None:
    jobs = [oomplan.read(FITS, f"actor.tokens_per_micro_batch={k}k") for k in (3, 4, 5, 6)]
    for quick in (False, True):
        many = oomplan.estimate_many(jobs, quick=quick, threads=3)
        assert [a.to_json() for a in many] == [oomplan.estimate(job, quick=quick).to_json() for job in jobs]
        assert all(a.replayed != quick for a in many)
    assert oomplan.estimate_many([]) == []


def test_search_of_a_job_that_is_described() -> None:
    """The program's own answer: `oomplan search --model ... --json` prints the same configurations, and --launch N the same file."""
    found = oomplan.search(model="qwen2.5-7b", gpus=8, algorithm="ppo", response_tokens=4096, keep=3)
    options = ["--model", "qwen2.5-7b", "--gpus", "8", "--algorithm", "ppo", "--response-tokens", "4096", "--keep", "3"]
    said = json.loads(subprocess.run([PROGRAM, "search", *options, "--json"], capture_output=True, check=True).stdout)
    assert found.to_dict() == said
    launched = subprocess.run([PROGRAM, "search", *options, "--launch", "2"], capture_output=True, text=True, check=True).stdout
    assert found.best[1].job_file == launched
    answer = oomplan.estimate(oomplan.read(launched, framework_version="2.0.0", gpu="H100-80GB"))
    assert answer.fit_probability == found.best[1].estimate.fit_probability
    with pytest.raises(oomplan.InputError) as refused:
        oomplan.search(model="qwen2.5-7b", gpus=8, algorithm="grp", samples=0, framework="areal")
    assert [p.path for p in refused.value.problems] == ["algorithm", "samples"]
    for wrong in ({"framework": "verll"}, {"gpu": "H101"}, {"lora": 5000}, {"framework": "oomplan", "samples": 4}):
        with pytest.raises(oomplan.InputError):
            oomplan.search(model="qwen2.5-7b", gpus=8, **wrong)
    with pytest.raises(oomplan.InputError, match="samples= together with a job"):
        oomplan.search(FITS, samples=3)


def test_a_frameworks_guide_is_gone_through_as_the_program_does() -> None:
    script = ROOT / "examples" / "verl" / "grpo_8b.sh"
    guide = oomplan.guide(oomplan.read(script, framework_version="0.8.0", gpu="A100-40GB"))
    said = [PROGRAM, "advise", str(script), "--framework-version", "0.8.0", "--gpu", "A100-40GB", "--guide"]
    told = json.loads(subprocess.run([*said, "--json"], capture_output=True, check=False).stdout)
    assert guide.to_dict()["points"] == told["points"]
    assert [p.gain_bytes for p in guide.points] == [p["gain_bytes"] for p in told["points"]]
    assert str(guide).splitlines()[-1] in subprocess.run(said, capture_output=True, text=True, check=False).stdout
    with pytest.raises(oomplan.InputError, match="no guide that is known"):
        oomplan.guide(FITS)


def test_answers_in_the_words_of_a_frameworks_file() -> None:
    file = ROOT / "examples" / "areal" / "grpo_7b.yaml"
    job = oomplan.read(file, framework_version="1.0.4", gpu="H100-80GB")
    said = [PROGRAM, "advise", str(file), "--framework-version", "1.0.4", "--gpu", "H100-80GB", "--json"]
    remedies = json.loads(subprocess.run(said, capture_output=True, check=False).stdout)["remedies"]
    assert [r.overrides for r in oomplan.advise(job)] == [r["overrides"] for r in remedies]
    assert all(r.override == " ".join(r.overrides) for r in oomplan.advise(job))
    assert any(r.diff.startswith("--- ") for r in oomplan.advise(job))
    best = oomplan.search(job, keep=1).best[0]
    assert best.job_file.startswith(file.read_text()[:200]) and best.overrides
    again = oomplan.read(file, *best.overrides, framework_version="1.0.4", gpu="H100-80GB")
    assert oomplan.estimate(again).fit_probability == best.estimate.fit_probability


def test_search() -> None:
    found = oomplan.search(model="qwen2.5-7b", gpus=8, keep=3, framework="oomplan")
    assert found and len(found.best) <= 3 and found.judged >= found.fitting > 0
    first = found.best[0]
    assert first.estimate.fits and oomplan.estimate(first.job_file).fits
    assert found.to_dict()["schema"] == "oomplan.search/1"
    with pytest.raises(oomplan.InputError, match="numerics"):
        oomplan.search(FITS, allow=["numerixs"])
    with pytest.raises(oomplan.InputError):
        oomplan.search()


def test_catalog() -> None:
    assert any(gpu["name"] == "H100-80GB" for gpu in oomplan.gpus())
    assert oomplan.facts("sglang")
    assert oomplan.model("qwen2.5-7b")["parameters"]["total"] == 7615616512
    assert oomplan.model("qwen2.5-7b", parameters=True)["tensors"]
    with pytest.raises(oomplan.InputError, match="did you mean"):
        oomplan.facts("sglan")


def test_program_is_read_by_trace() -> None:
    program = oomplan.program(FITS, "actor")
    trace = program.trace()
    assert trace.peak_bytes > 0 and trace.live and trace.events > 0
    assert max(level for _, level in program.timeline()) == trace.peak_bytes


def test_to_frame_needs_pandas_or_gives_a_frame() -> None:
    answer = oomplan.estimate(FITS)
    if importlib.util.find_spec("pandas") is None:
        with pytest.raises(ImportError, match="pip install pandas"):
            answer.to_frame()
    else:
        assert len(answer.to_frame()) == sum(len(gpu.phases) for gpu in answer.gpus)


def test_the_gil_is_free_during_a_search() -> None:
    ticks = 0
    done = threading.Event()

    def tick() -> None:
        nonlocal ticks
        while not done.is_set():
            ticks += 1
            time.sleep(0.0005)

    thread = threading.Thread(target=tick)
    thread.start()
    started = time.perf_counter()
    oomplan.estimate_many([oomplan.read(FITS)] * 20000, quick=True)
    took = time.perf_counter() - started
    done.set()
    thread.join()
    if took < 0.02:
        pytest.skip("too fast to tell")
    assert ticks > 3


def test_import_is_cheap() -> None:
    loaded = subprocess.run(
        [sys.executable, "-c", "import sys; old = set(sys.modules); import oomplan; print(*(set(sys.modules) - old))"],
        capture_output=True,
        text=True,
        check=True,
        env=dict(os.environ),
    ).stdout.split()
    assert set(loaded) <= {"__future__", "oomplan", "oomplan._core"}, loaded


def test_the_version_has_one_source() -> None:
    cmake = (ROOT / "CMakeLists.txt").read_text()
    assert f"project(oomplan VERSION {oomplan.__version__} " in cmake


def test_all_names_exist() -> None:
    assert all(hasattr(oomplan, name) for name in oomplan.__all__)


def test_op_answers_for_one_operator() -> None:
    measured = 1100.25 * 2**20  # linkedin/Liger-Kernel benchmark/data, A100
    answer = oomplan.op("swiglu", by="liger 0.2.1", retain_graph=True, gpu="A100-80GB", tokens=4096, hidden=4096, width=11008)
    assert answer["allocated"] == measured
    assert answer["resident"] < answer["allocated"] <= answer["reserved"] and answer["live"]
    with pytest.raises(oomplan.InputError, match=r"sizes\.width"):
        oomplan.op("swiglu", tokens=1, hidden=1)
    with pytest.raises(oomplan.InputError, match="pass"):
        oomplan.op("swiglu", pass_="sideways", tokens=1, hidden=1, width=1)


MEGATRON = {
    "num_layers": 16,
    "hidden_size": 2048,
    "num_attention_heads": 32,
    "max_position_embeddings": 4096,
    "seq_length": 4096,
    "micro_batch_size": 1,
    "global_batch_size": 64,
    "bf16": True,
    "untie_embeddings_and_output_weights": True,
}


def test_megatron_launches_and_dicts_are_the_same_job() -> None:
    flags = [
        word for key, value in MEGATRON.items() for word in ([f"--{key.replace('_', '-')}"] + [str(value)] * (value is not True))
    ]
    words = ["torchrun", "--nproc-per-node", "8", "pretrain_gpt.py", *flags]
    by_words = oomplan.read_megatron(words, gpu="h200")
    assert oomplan.read_megatron(" ".join(words), gpu="h200").to_yaml() == by_words.to_yaml()
    by_dict = oomplan.read_megatron(MEGATRON, "gpus_per_node=8", gpus=8, gpu="H200-141GB")
    assert by_dict.to_dict()["roles"] == by_words.to_dict()["roles"]
    assert oomplan.estimate(by_words).fits
    with pytest.raises(oomplan.InputError) as refused:
        oomplan.read_megatron({**MEGATRON, "tensor_model_parallel_size": 3, "recompute_granularity": "full"}, gpus=8)
    text = str(refused.value)
    assert "the world size is not divisible" in text and "full recomputation needs a method" in text


def test_in_service() -> None:
    answer = oomplan.estimate(str(FILE), quick=True)
    service = answer.servers[0].in_service
    assert service is not None and service.at_once + service.waiting == answer.servers[0].requests_asked_per_replica
    assert service.to_the_end <= service.at_once or service.given_up == 0
    fewer = oomplan.estimate(str(FILE), "rollout.concurrency=4", quick=True).servers[0].in_service
    assert fewer is not None and fewer.waiting == 0 and fewer.given_up == 0 and fewer.cause == ""
    assert oomplan.estimate(str(FILE), "rollout.concurrency=auto", quick=True).servers[0].in_service is None


def test_search_of_a_server() -> None:
    found = oomplan.search(str(ROOT / "examples" / "serving.yaml"), keep=3)
    assert found.best[0].relative_throughput == 1
    assert all(0 < candidate.relative_throughput <= 1 for candidate in found.best)


LONG = {
    "search": "oomplan.search(model='qwen2.5-72b', gpus=512, allow='numerics')",
    "advice": f"oomplan.advise({str(ROOT / 'examples' / 'megatron_deepseek_v3.yaml')!r}, allow='semantics')",
    "threads": "oomplan.search(model='qwen2.5-72b', gpus=512, allow='numerics', threads=3)",
    "estimates": f"oomplan.estimate_many([oomplan.read({str(FILE)!r})] * 100_000, threads=2)",
}


@pytest.mark.parametrize("call", LONG.values(), ids=list(LONG))
def test_ctrl_c_ends_what_takes_long(call: str) -> None:
    code = (
        "import time, oomplan\n"
        "print('ready', flush=True)\n"
        f"try:\n    {call}\n"
        "except KeyboardInterrupt:\n    print(time.time(), flush=True)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    time.sleep(0.6)
    began = time.time()
    process.send_signal(signal.SIGINT)
    said = process.stdout.readline()
    assert said, (process.wait(timeout=60), process.communicate())
    assert float(said) - began < 0.2
    assert process.wait(timeout=60) == 0


def test_a_search_holds_keys_that_exist() -> None:
    found = oomplan.search(model="qwen2.5-0.5b", gpus=2, fixed="actor.recompute", allow="speed", keep=3)
    assert all(change.key != "actor.recompute" for candidate in found.best for change in candidate.changes)
    with pytest.raises(oomplan.InputError, match="did you mean 'layout'"):
        oomplan.search(model="qwen2.5-0.5b", gpus=2, fixed=["layuot"])


def test_every_repr_tells_what_the_object_is() -> None:
    explained = oomplan.explain(FITS)
    found = oomplan.search(FITS, keep=1)
    program = oomplan.program(FITS, "actor")
    too_small = oomplan.search(too_large(), gpus=1, keep=1)
    objects = [
        explained,
        explained.job,
        explained.gpus[0],
        explained.worst,
        explained.live[0],
        explained.hosts[0],
        explained.servers[0],
        explained.evidence,
        found,
        found.best[0],
        found.best[0].changes[0] if found.best[0].changes else found,
        program,
        program.trace(),
        *too_small.limits[:1],
        *oomplan.advise(too_large())[:1],
    ]
    for thing in objects:
        assert " object at 0x" not in repr(thing), repr(thing)
        assert len(repr(thing)) > len(type(thing).__name__) + 3, repr(thing)
    assert "qwen2.5-1.5b" in repr(explained.job) and "8 x H100-80GB" in repr(explained.job)


def test_a_search_is_a_table_in_a_notebook() -> None:
    found = oomplan.search(FITS, keep=2)
    html = found._repr_html_()
    assert html.startswith("<div") and html.count("<tr>") == 2 + len(found.best) and "padding" in html
    assert "padding" in oomplan.estimate(FITS)._repr_html_()
    nothing = oomplan.search(too_large(), gpus=1, keep=1)._repr_html_()
    assert "nothing fits" in nothing and "still missing" in nothing


def test_a_search_leaves_out_what_is_not_likely() -> None:
    every = oomplan.search(FITS, keep=5, min_probability=0)
    likely = oomplan.search(FITS, keep=5, min_probability=0.97)
    assert every.unlikely == 0 and likely.unlikely >= 0 and likely.min_probability == 0.97
    assert every.fitting == likely.fitting
    assert all((row.estimate.fit_probability or 1) >= 0.97 for row in likely.best)
    for wrong in (-0.1, 1.1, float("nan")):
        with pytest.raises(oomplan.InputError, match="min_probability"):
            oomplan.search(FITS, min_probability=wrong)


def test_python_m_oomplan_is_the_program() -> None:
    program = os.environ.get("OOMPLAN_PROGRAM", str(ROOT / "build" / "oomplan"))
    environment = {**os.environ, "OOMPLAN_PROGRAM": program, "PYTHONPATH": str(Path(oomplan.__file__).parents[1])}
    done = subprocess.run([sys.executable, "-m", "oomplan", "-V"], env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and done.stdout == f"oomplan {oomplan.__version__}\n"
    wrong = subprocess.run(
        [sys.executable, "-m", "oomplan", "estimte"], env=environment, capture_output=True, text=True, timeout=60
    )
    assert wrong.returncode == 2 and "did you mean 'estimate'" in wrong.stderr


def test_help_shows_overrides_errors_and_an_example() -> None:
    for call in (oomplan.estimate, oomplan.check):
        text = call.__doc__ or ""
        assert "InputError" in text and f"oomplan.{call.__name__}(" in text
    assert "overrides" in (oomplan.estimate.__doc__ or "") and "gpus=8xh100" in (oomplan.estimate.__doc__ or "")
