"""What reports of out-of-memory errors say, word by word: settings by their names, cards, models, releases.

Nothing that decides is guessed. What is left open and has few values is a choice: every value is asked, and all must give one answer.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from corpus import CannotExpress, Row, find_config, find_gpu, gpu_table
from serving import PUBLISHED, with_quantization

T = TypeVar("T")

# Settings that only say what was seen, or that stand beside others.
TOLD = {
    "call", "cause", "cudagraphs", "debug_mode", "deepspeed_log", "epoch_progress", "estimator_gb", "example", "fails", "fails_with",
    "gpu_blocks", "kv_cache_per_worker_gib", "log", "num_gpus_asked", "measured_gb", "minimum_fraction", "note", "notes", "observed", "observed_gb",
    "step", "vllm_log", "weights_gb_per_gpu", "works", "works_with", "works_without",
}  # fmt: skip

# Phases that are over before the first batch.
EARLY = ("init", "weights load")


class Open(Exception):
    """A setting that the report leaves open, and the values it can have."""

    def __init__(self, name: str, values: Sequence[Any]) -> None:
        super().__init__(name)
        self.name, self.values = name, list(values)


class Choice:
    """Values that were taken for what is left open."""

    def __init__(self, taken: Row | None = None) -> None:
        self.taken: Row = dict(taken or {})

    def of(self, name: str, values: Sequence[T]) -> T:
        if len(values) == 1:
            return values[0]
        if name not in self.taken:
            raise Open(name, values)
        found: T = self.taken[name]
        return found


def expand(build: Callable[[Choice], Row], most: int = 96) -> list[tuple[Row, Row]]:
    """Every choice of what is left open, and what is built of it. What cannot be built for any choice is refused."""
    waiting: list[Row] = [{}]
    out: list[tuple[Row, Row]] = []
    refused: CannotExpress | None = None
    while waiting:
        taken = waiting.pop(0)
        try:
            out.append((taken, build(Choice(taken))))
        except Open as left:
            waiting += [{**taken, left.name: value} for value in left.values]
        except CannotExpress as reason:
            refused = refused or reason
        if len(waiting) + len(out) > most:
            names = ", ".join(sorted({name for choice in waiting for name in choice}))
            raise CannotExpress(f"too much is not stated: {names}")
    if not out:
        raise refused or CannotExpress("nothing is stated")
    return out


def before_arrow(value: Any) -> Any:
    """Of "0.7 -> 0.6" what failed."""
    if not isinstance(value, str) or "->" not in value:
        return value
    first = value.split("->", maxsplit=1)[0].strip()
    return float(first) if re.fullmatch(r"\d+\.\d+", first) else int(first) if first.isdigit() else first


FLAG_WORDS = {"true": True, "yes": True, "on": True, "full": True, "false": False, "no": False, "off": False, "none": False}


class Settings:
    """The settings of a report. Each is taken once; one that nobody takes is not understood, and may decide."""

    def __init__(self, config: Any) -> None:
        if not isinstance(config or {}, dict):
            raise CannotExpress("the settings are no object")
        self.left: Row = {
            key: before_arrow(value) for key, value in dict(config or {}).items() if key not in TOLD and value is not None
        }

    def take(self, *names: str) -> Any:
        """The value under the first of these names that is there; None when it is not stated."""
        for name in names:
            if name in self.left:
                return self.left.pop(name)
        return None

    def count(self, *names: str) -> int | None:
        value = self.take(*names)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, (int, str)) or not re.fullmatch(r"\d+", str(value)):
            raise CannotExpress(f"the setting {names[0]} is not one whole number")
        return int(value)

    def share(self, *names: str) -> float | None:
        value = self.take(*names)
        if value is None:
            return None
        if isinstance(value, bool) or not re.fullmatch(r"\d*\.?\d+", str(value)):
            raise CannotExpress(f"the setting {names[0]} is not one number")
        return float(value)

    def flag(self, *names: str) -> bool | None:
        value = self.take(*names)
        if value is None:
            return None
        if isinstance(value, str):
            value = FLAG_WORDS.get(value.lower(), value)
        if not isinstance(value, bool):
            raise CannotExpress(f"the setting {names[0]} is not yes or no")
        return value

    def word(self, *names: str) -> str | None:
        value = self.take(*names)
        return None if value is None else str(value).strip().lower()

    def done(self) -> None:
        if self.left:
            raise CannotExpress(f"the setting {sorted(self.left)[0]} of a report is not mapped")


def needed(value: T | None, what: str) -> T:
    if value is None:
        raise CannotExpress(f"{what} is not stated")
    return value


# ---- cards


def of_size(gigabytes: str) -> list[str]:
    return [str(gpu["name"]) for gpu in gpu_table() if str(gpu["name"]).endswith(f"-{gigabytes}GB")]


def cards(text: Any) -> list[str]:
    """Every card of the table that the words can mean: several where only a size, two names, or a name of two sizes is said."""
    if not isinstance(text, str) or not text.strip():
        raise CannotExpress("the GPU is not stated")
    plain = re.sub(r"\([^)]*\)", " ", text)
    if re.search(r"\+| and ", plain):
        raise CannotExpress("GPUs of two kinds in one job are not supported yet")
    sizes = re.findall(r"(\d+)\s*GB", plain, re.IGNORECASE)
    out: list[str] = []
    for part in plain.split("/"):
        words = re.sub(r"\b(class|\d+\s*GB)(?![A-Za-z0-9])", " ", part, flags=re.IGNORECASE).strip()
        if not words and not sizes:
            raise CannotExpress("the GPU is not stated")
        if not words:
            out += of_size(sizes[-1])
            continue
        size = f" {sizes[-1]}GB" if sizes else ""
        found = find_gpu(words + size)
        if not any(word.isdigit() or any(c.isdigit() for c in word) for word in words.split()):
            raise CannotExpress("the GPU is not in the table")
        if size and not found.endswith(f"-{sizes[-1]}GB") and abs(int(found.split("-")[-1][:-2]) - int(sizes[-1])) > 8:
            raise CannotExpress("the GPU is not in the table")
        family = found.rsplit("-", maxsplit=1)[0]
        same = [str(gpu["name"]) for gpu in gpu_table() if str(gpu["name"]).rsplit("-", maxsplit=1)[0] == family]
        out += [found] if size else same
    if not out:
        raise CannotExpress("the GPU is not in the table")
    return list(dict.fromkeys(out))


def card(row: Row, choice: Choice) -> str:
    return choice.of("the GPU", cards(row.get("gpu")))


def gpus_of(row: Row) -> int:
    count = row.get("n_gpus")
    if isinstance(count, str) and count.isdigit():
        count = int(count)
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        raise CannotExpress("the number of GPUs is not stated")
    return count


# ---- models


def model_name(row: Row) -> str:
    """The name without remarks. Names of a class of models, or of no model, are none."""
    text = str(row.get("model") or "").strip()
    if not text or text.startswith("(") or re.search(r"\b(class|like|any)\b", text):
        raise CannotExpress("the model is not named")
    name = text.split(" (")[0].split(" + ")[0].split(" of the ")[0].strip()
    return re.sub(r"[ -](fp8|bf16|bnb-4bit|4[- ]?bit)$", "", name, flags=re.IGNORECASE)


def known_config(name: str, corpus: Path) -> Row:
    """Of "Qwen2.5 32B" that of Qwen2.5-32B; of "DeepSeek-V3 671B" that of DeepSeek-V3."""
    short = re.sub(r" \d+(\.\d+)?B$", "", name)
    if short != name and re.search(r"\d", short):
        try:
            return find_config(name.replace(" ", "-"), corpus)
        except CannotExpress:
            return find_config(short, corpus)
    return find_config(name, corpus)


def model_config(row: Row, corpus: Path, quantization: str | None = None) -> Row:
    """Its config.json, of which a server's checkpoint may be quantised."""
    name = model_name(row)
    config = known_config(name, corpus)
    said = quantization
    if re.match(r"(Qwen/)?Qwen3.*-FP8$", str(row["model"])):
        said = said or "fp8 block"  # Qwen's own: blocks of 128 x 128
    if not said and re.search(r"fp8|awq|gptq|int4|int8|nvfp4|w4a16", str(row["model"]), re.IGNORECASE):
        said = "fp8" if "fp8" in str(row["model"]).lower() else str(row["model"])
    if said:
        config = with_quantization(config, {"model": row["model"], "quantization": said})
    published = PUBLISHED.get(name, {})
    if published and isinstance(config.get("text_config"), dict):
        config = {**config, "text_config": {**config["text_config"], **published}}
    return config


# ---- releases


def release(text: Any) -> str:
    """A version as the first words say it ("0.8.2", "vLLM 0.8.2", "v0.5.0rc1"); "" when none is stated. A branch is none."""
    if not text:
        return ""
    said = str(text).strip()
    if re.search(r"branch|fork|image|docker|patched", said, re.IGNORECASE):
        raise CannotExpress("the version is not that of a release")
    found = re.match(r"(?:[A-Za-z-]+ )?v?(\d+\.\d+(?:\.\d+)?)", said)
    return found.group(1) if found and not re.match("with |torch|transformers", said, re.IGNORECASE) else ""


def newest(releases: Sequence[tuple[str, str]], date: Any) -> str:
    """The newest release of the day of the report ("2025-08" is its first day); "" when the day is not stated."""
    day = str(date or "")
    if not re.fullmatch(r"20\d\d-\d\d(-\d\d)?", day):
        return ""
    older = [name for since, name in releases if since <= (day if len(day) > 7 else f"{day}-01")]
    if not older:
        raise CannotExpress("no release of that day is described")
    return older[-1]
