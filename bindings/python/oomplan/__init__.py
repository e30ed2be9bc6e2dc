"""How much memory every GPU of an LLM job needs, before it is launched.

    import oomplan
    est = oomplan.estimate("job.yaml", "actor.tokens_per_micro_batch=16k")
    print(est)
    oomplan.check("job.yaml")  # raises DoesNotFit

A job is a path (a job file, a framework's file, a launch script), the text of a job file, a dict of the same shape, a Job, or a list as on a command line (path, then
key=value). All numbers come from the C++ core; sizes are bytes.
"""

from __future__ import annotations

import os

from . import _core
from ._core import (
    Candidate,
    Catalog,
    Change,
    Defect,
    Estimate,
    Evidence,
    Found,
    GpuAnswer,
    Guide,
    GuidePoint,
    HostAnswer,
    InputError,
    Limit,
    LiveTensor,
    Moment,
    Note,
    Problem,
    Program,
    Remedy,
    ServerAnswer,
    Trace,
    __version__,
    facts,
    gpus,
)
from ._core import Job as _Job

TYPE_CHECKING = False  # typing is not imported: it costs more than all of oomplan
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any, Union

    Source = Union[str, "os.PathLike[str]", dict[str, Any], _Job, list[str], tuple[str, ...], object]

__all__ = [
    "Candidate",
    "Catalog",
    "Change",
    "Defect",
    "DoesNotFit",
    "Estimate",
    "Evidence",
    "Found",
    "GpuAnswer",
    "Guide",
    "GuidePoint",
    "HostAnswer",
    "InputError",
    "Job",
    "Limit",
    "LiveTensor",
    "Moment",
    "Note",
    "Problem",
    "Program",
    "Remedy",
    "ServerAnswer",
    "Trace",
    "__version__",
    "advise",
    "check",
    "config_facts",
    "estimate",
    "estimate_many",
    "explain",
    "facts",
    "gpus",
    "guide",
    "model",
    "op",
    "program",
    "read",
    "read_megatron",
    "search",
]


class DoesNotFit(Exception):
    """The job needs more memory than there is. Has .estimate and .remedies."""

    def __init__(self, estimate: Estimate, remedies: list[Remedy]) -> None:
        super().__init__(estimate.verdict)
        self.estimate = estimate
        self.remedies = remedies


def read(
    source: Source | None = None,
    *overrides: str,
    command: Sequence[str] | None = None,
    arguments: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    which: int = 0,
    dialect: str = "",
    framework_version: str = "",
    gpu: str = "",
    config_roots: Sequence[str | os.PathLike[str]] = (),
    host_memory: str = "",
    sequence_tokens: int = 0,
    image_size: str = "",
    linear_attention: str = "",
    gpus: int = 0,
    catalog: Catalog | None = None,
) -> _Job:
    """The Job of a path, a text, a dict, a Job or a command-line list; overrides are "key=value".

    The path may be a script that starts a job, with its arguments and environment (None: that of this process); `command` is
    what one would type, word by word, in place of a source. Nothing is run. Of several jobs that are started `which` is the
    number of one, from 1. See docs/launch.md.

        oomplan.read("run.sh", arguments=["8"], environment={"MODEL": "Qwen/Qwen3-8B"})
        oomplan.read(command=["vllm", "serve", "Qwen/Qwen3-8B", "--tensor-parallel-size", "2"])

    The path may be a framework's own file (AReaL's YAML): then overrides are as the framework has them, framework_version is
    its release ("1.0.4") and gpu the kind of GPU, which no such file says. Its defaults lists may name files in its own folder and
    below config_roots. A framework's configuration that was composed already may be handed in as it is, a dict, an OmegaConf object
    or a dataclass: oomplan.check(config) in front of a trainer. host_memory is that of a node ("1TB"): with it the host's part is
    judged, too. sequence_tokens are those of a sequence, where samples of a job of verl are shorter than its settings allow;
    image_size is that of a sample's image ("640x480", or "none"), linear_attention what of its kernels is installed ("fla", or
    "fla_conv" with causal-conv1d). gpus is how many there are, where no key of the source says it (Oumi's files). Raises InputError with all that is wrong.
    """
    if gpus:
        overrides = (*overrides, f"gpus={gpus}")
    roots = [str(root) for root in config_roots]
    beside = (host_memory, sequence_tokens, image_size, linear_attention)
    if command is not None or source is None:
        if source is not None or not command:
            raise _core.refusal("", "a source and a command" if command else "neither a source nor a command", "one of them")
        seen = dict(os.environ) if environment is None else dict(environment)
        return _core.read_command(list(command), list(overrides), seen, framework_version, gpu, roots, which, catalog, *beside)
    script = (
        isinstance(source, (str, os.PathLike))
        and "\n" not in str(source)
        and os.path.isfile(source)
        and _core.is_script(str(source))
    )
    if script:
        seen = dict(os.environ) if environment is None else dict(environment)
        return _core.read_script(
            str(source), list(overrides), list(arguments), seen, framework_version, gpu, roots, which, catalog, *beside
        )
    if arguments or environment is not None or which:
        raise _core.refusal("", "arguments=, environment= or which= beside a source that is no script", "a script or a command")
    if isinstance(source, _Job):
        return source if not overrides else _core.read(source.to_yaml(), source.name, "oomplan", list(overrides), catalog)
    if isinstance(source, (list, tuple)):
        if not source:
            raise _core.refusal("", "an empty list", "a path, then key=value")
        return read(
            source[0],
            *source[1:],
            *overrides,
            dialect=dialect,
            framework_version=framework_version,
            gpu=gpu,
            config_roots=config_roots,
            host_memory=host_memory,
            sequence_tokens=sequence_tokens,
            image_size=image_size,
            linear_attention=linear_attention,
            catalog=catalog,
        )
    config = _configuration(source)
    if config is not None:
        return _core.read(_text_of(config), "<dict>", dialect, list(overrides), catalog, gpu, framework_version, *beside)
    if isinstance(source, str) and ("\n" in source or source.lstrip().startswith("{")):
        return _core.read(source, "<text>", dialect, list(overrides), catalog, gpu, framework_version, *beside)
    return _core.read_file(str(source), dialect, list(overrides), framework_version, gpu, roots, catalog, *beside)


def _configuration(source: object) -> dict[str, Any] | None:
    """A dict as it is; what OmegaConf or a dataclass holds; None for anything else."""
    if isinstance(source, dict):
        return source
    if isinstance(source, (str, os.PathLike, list, tuple, _Job)):
        return None
    if type(source).__module__.partition(".")[0] == "omegaconf":
        from omegaconf import OmegaConf
        from omegaconf.errors import OmegaConfBaseException

        try:
            held: Any = OmegaConf.to_container(source, resolve=True, enum_to_str=True)
        except OmegaConfBaseException:  # an interpolation of a key that is not there is told with its place
            held = OmegaConf.to_container(source, resolve=False, enum_to_str=True)
        return held if isinstance(held, dict) else None
    import dataclasses

    if dataclasses.is_dataclass(source) and not isinstance(source, type):
        held = _plain(dataclasses.asdict(source))
        return held if isinstance(held, dict) else None
    return None


def _plain(value: object) -> object:
    """Members of an Enum by their names, as OmegaConf has them in a file, though they be texts."""
    import enum

    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, dict):
        return {_plain(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_plain(item) for item in value]
    return value


def _text_of(config: dict[str, Any]) -> str:
    """JSON; of a framework's configuration the lines that its file would have, so that places are told."""
    import json

    if "oomplan" in config or not all(isinstance(key, str) and key.isidentifier() for key in config):
        return json.dumps(config, default=str)
    return "".join(_lines(config, ""))


def _lines(config: dict[str, Any], indent: str) -> Iterable[str]:
    import json

    for key, value in config.items():
        name = key if isinstance(key, str) and key.isidentifier() else json.dumps(str(key))
        if isinstance(value, dict) and value:
            yield f"{indent}{name}:\n"
            yield from _lines(value, indent + "  ")
        else:
            yield f"{indent}{name}: {json.dumps(value, default=str, ensure_ascii=False)}\n"


def read_megatron(
    command: str | list[str] | tuple[str, ...] | dict[str, Any],
    *overrides: str,
    gpus: int | None = None,
    gpu: str = "",
    model: str = "",
    catalog: Catalog | None = None,
) -> _Job:
    """The Job of a launch of Megatron-LM: its command line, as text or words, or a dict of its arguments.

    read_megatron("torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers 32 ..."); read_megatron({"num_layers": 32, ...},
    gpus=64). `gpus` where the command does not say it, `gpu` their kind, `model` a known model in place of the arguments of its
    shape. Raises InputError with everything that Megatron would refuse. See docs/engines/megatron.md.
    """
    if isinstance(command, dict):
        import json

        text = json.dumps(command)
    elif isinstance(command, str):
        text = command
    else:
        import shlex

        text = shlex.join(command)
    said = list(overrides)
    if gpus is not None:
        said.append(f"gpus={gpus} x {gpu}" if gpu else f"gpus={gpus}")
    if model:
        said.append(f"model={model}")
    return _core.read(text, "command line", "megatron", said, catalog, gpu)


def config_facts(
    path: str | os.PathLike[str],
    *overrides: str,
    framework_version: str = "",
    config_roots: Sequence[str | os.PathLike[str]] = (),
) -> dict[str, Any]:
    """What a framework's own file means, fact by fact: ["roles"]["actor"]["layout"]["dp"]["v"]. See docs/areal.md."""
    return _core.config_facts(str(path), list(overrides), framework_version, [str(root) for root in config_roots])


def Job(*, catalog: Catalog | None = None, **fields: Any) -> _Job:
    """A job from keywords that are the keys of a job file: Job(model="qwen2.5-7b", gpus="8 x H100-80GB", actor="fsdp2:d4").

    A role may be short: "engine:layout". `tokens` is tokens_per_micro_batch of the role that trains.
    """
    tokens = fields.pop("tokens", None)
    for name, value in fields.items():
        if name in _ROLES and isinstance(value, str):
            engine, _, layout = value.partition(":")
            fields[name] = {"engine": engine, "layout": layout} if layout else {"engine": engine}
    if tokens is not None:
        name = "trainer" if "trainer" in fields else "actor"
        fields[name] = {**fields.get(name, {}), "tokens_per_micro_batch": tokens}
    return read({"oomplan": 1, **fields}, catalog=catalog)


_ROLES = frozenset(
    ("actor", "ref", "critic", "reward", "teacher", *(f"teacher_{n}" for n in range(2, 9)), "trainer", "rollout", "server")
)


def estimate(job: Source, *overrides: str, quick: bool = False, catalog: Catalog | None = None) -> Estimate:
    """Does it fit, and what does every GPU need in every phase? Milliseconds: the allocator is replayed.

    job: a path, the text of a job file, a dict of the same shape, a Job, or a list as on a command line.
    overrides: "key=value" as behind the program's file, keys as in the job file or, of a framework's file, as the framework has
    them: "actor.tokens_per_micro_batch=16k", "gpus=8xh100", "actor.mb_spec.max_tokens_per_mb=16384". What belongs to a
    framework's file besides (its release, the kind of GPU) is said to read().
    quick: microseconds; `reserved` and `needed` are then lower bounds, without what fragmentation costs.
    Raises InputError, a ValueError whose .problems lists all that is wrong, each with its place and the nearest spelling.

        answer = oomplan.estimate("examples/grpo.yaml", "actor.tokens_per_micro_batch=12k")
        print(answer.fits, answer.verdict, answer.fit_probability)
    """
    asked = read(job, *overrides, catalog=catalog)
    return _core.estimate(asked, catalog, quick)


def explain(job: Source, *overrides: str, catalog: Catalog | None = None) -> Estimate:
    """estimate(), and which tensors are alive at the worst moment, what the allocator makes of it, what would help.

    Takes and raises what estimate() does. .live lists the tensors of the worst moment, .remedies the changes.
    """
    return _core.explain(read(job, *overrides, catalog=catalog), catalog)


def estimate_many(
    jobs: Iterable[Source], *, quick: bool = False, threads: int = 1, catalog: Catalog | None = None
) -> list[Estimate]:
    """estimate() of every job, in one call into the core; `quick` as there."""
    return _core.estimate_many([read(job, catalog=catalog) for job in jobs], threads, catalog, quick)


def check(job: Source, *overrides: str, catalog: Catalog | None = None) -> Estimate:
    """Returns the Estimate of a job that fits; raises DoesNotFit otherwise, InputError for a wrong job. One line before a launch.

    Takes what estimate() takes:

        oomplan.check("job.yaml", "actor.tokens_per_micro_batch=16k")
    """
    asked = read(job, *overrides, catalog=catalog)
    answer = _core.estimate(asked, catalog)
    if not answer.fits:
        raise DoesNotFit(answer, _core.advise(asked, "speed", catalog))
    return answer


def advise(job: Source, *overrides: str, allow: str = "speed", catalog: Catalog | None = None) -> list[Remedy]:
    """The single changes that lower the worst moment most.

    allow: the strongest effect that they may have, "free", "speed", "numerics" or "semantics".

        for remedy in oomplan.advise("job.yaml"):
            print(remedy.override, remedy.gain_bytes, remedy.fits)
    """
    return _core.advise(read(job, *overrides, catalog=catalog), allow, catalog)


def guide(job: Source, *overrides: str, catalog: Catalog | None = None) -> Guide:
    """The framework's own tuning guide, gone through for this job: what each point would free, in which phase, at what cost.

    Raises InputError where the framework has no guide that is known:

        for point in oomplan.guide("run.sh").points:
            print(point.section, point.text, point.overrides, point.gain_bytes, point.why)
    """
    return _core.guide(read(job, *overrides, catalog=catalog), catalog)


def _words(given: str | Iterable[str]) -> list[str]:
    return [given] if isinstance(given, str) else list(given)


def search(
    job: Source | None = None,
    *overrides: str,
    model: str | None = None,
    gpus: int | None = None,
    gpu: str = "",
    nodes: int | None = None,
    framework: str | None = None,
    release: str | None = None,
    algorithm: str | None = None,
    prompt_tokens: int | None = None,
    response_tokens: int | None = None,
    samples: int | None = None,
    batch: int | None = None,
    lora: int | None = None,
    reference: bool | None = None,
    allow: str | Iterable[str] = (),
    maximise: str = "",
    fixed: str | Iterable[str] = (),
    min_probability: float = 0.9,
    keep: int = 10,
    threads: int = 1,
    catalog: Catalog | None = None,
) -> Found:
    """Configurations that fit, fastest first: of a job, or of the one that `model`, `gpus` and their like describe.

    A job that is described is one of `framework` ("areal" unless given; "oomplan": our own job file) in its release `release`, by
    `algorithm` ("grpo", "ppo", "dapo", "sft", "dpo") with `samples` responses to each of `batch` prompts; `lora` is a rank,
    `reference` a model for the KL penalty. What is left out is assumed. .best[0].job_file
    is the file that starts it.

    `allow`: effects that changes may have, `fixed`: keys that stay ("layout", "actor.recompute"); one word or several. What fits
    with less than `min_probability` is left out (.unlikely counts it). Raises InputError for a key that the job does not have,
    and KeyboardInterrupt soon after Ctrl-C.

        found = oomplan.search(model="qwen2.5-7b", gpus=8, algorithm="grpo", response_tokens=4096)
        open("job.yaml", "w").write(found.best[0].job_file)
    """
    described = {
        "model": model,
        "nodes": nodes,
        "framework": framework,
        "release": release,
        "algorithm": algorithm,
        "prompt_tokens": prompt_tokens,
        "response_tokens": response_tokens,
        "samples": samples,
        "batch": batch,
        "lora": lora,
        "reference": reference,
    }
    given = {name: value for name, value in described.items() if value is not None}
    if job is not None:
        if given:
            raise _core.refusal("", f"{next(iter(given))}= together with a job", "one of them")
        asked = read(job, *overrides, catalog=catalog)
    elif model is not None and gpus is not None:
        if overrides:
            raise _core.refusal("", "overrides of a job that is described", "a job")
        import json  # not before it is needed: the import of this module is cheap

        asked, _told = _core.describe(json.dumps({**given, "gpus": gpus, "gpu": gpu}), catalog)
        gpus = None
    else:
        raise _core.refusal("", "neither a job nor model= and gpus=", "one of them")
    return _core.search(
        asked,
        gpus=gpus,
        allow=_words(allow),
        maximise=maximise,
        fixed=_words(fixed),
        min_probability=min_probability,
        keep=keep,
        threads=threads,
        catalog=catalog,
    )


def program(job: Source, role: str, *overrides: str, catalog: Catalog | None = None) -> Program:
    """What one role allocates and frees, in order: .trace(), .timeline()."""
    return _core.program(read(job, *overrides, catalog=catalog), role, catalog)


def model(name: str, *, parameters: bool = False, catalog: Catalog | None = None) -> dict[str, Any]:
    """Parameters, layers and KV cache of a model, as a dict; with `parameters` every tensor."""
    return _core.model(name, parameters, catalog)


def op(
    name: str,
    *,
    by: str = "",
    dtype: str = "bf16",
    weights: str = "",
    pass_: str = "full",
    retain_graph: bool = False,
    gradient_held: bool = True,
    modules: int = 1,
    gpu: str = "H100-80GB",
    **sizes: int,
) -> dict[str, Any]:
    """What one operator takes by itself: op("swiglu", by="liger", tokens=4096, hidden=4096, width=14336)["allocated"]."""
    return _core.op(name, sizes, by, dtype, weights, pass_, retain_graph, gradient_held, modules, gpu)
