"""From the words of a published table to our models and devices, and from its cells to numbers.

Whoever publishes writes the same model in many ways ("Llama-2 7B", "meta-llama/Llama-2-7b-hf"). A name is compared
by its key: lower case, no organisation, no words that do not change the architecture, no punctuation.
"""

from __future__ import annotations

import math
import re
from functools import cache
from typing import TYPE_CHECKING, Literal

from benchmarks.validation.aliases import ALIASES, INEXPRESSIBLE
from benchmarks.validation.architectures import gpt_in_words, other_architectures
from profiles.errors import HybridmapError
from profiles.models.catalogue import checkpoint_entries, hf_id, load_model, model_names

if TYPE_CHECKING:
    from profiles.models.shape import ModelShape


class NotPredicted(HybridmapError):
    """A published quantity that the product makes no statement about; ``reason`` says why, in one line."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


# Words of a model's name that leave its shape as it is: tuning, number format, date of a checkpoint.
_TUNING = """instruct inst chat base hf it pt sft dpo rlhf rm thinking preview fp8 fp4 fp16 bf16 nvfp4 mxfp4 int8 int4
w8a8 awq gptq dynamic kv block meta mcore model 2501 2503 2506 2507 2508 0324 0528 0905 zero 128k 32k 8k 4k 1m
tokendrop dropless"""
_NO_SHAPE = frozenset(_TUNING.split())
_VERSION = re.compile(r"v0\.\d")  # Mistral's v0.3 has another vocabulary, so it is dropped only at the last try
_COMPOSITE = re.compile(r"^(?P<actor>.+?)\s+actor\s*\+\s*(?P<other>.+?)\s+critic(?:\s*/\s*reward)?$", re.IGNORECASE)
_REPEATED = re.compile(r"^\d+\s*x\s+(?P<model>.+)$", re.IGNORECASE)
_MAX_COUNT = 10**9
_UNITS = "tokens?|samples?|prompts?|sequences?|gpus?|s|sec|seconds?|gib|gb|tflops?|tflop/s"
ROLES = ("actor", "critic", "reference", "reward")

# First match wins. A part without operator tables is named, so that "H100 NVL" never passes as "H100".
_DEVICES: tuple[tuple[str, str], ...] = (
    (r"h100.*hbm2e|hbm2e.*h100|h100.*\b96\s*gb|h100.*500\s*w", "h100-96gb-hbm2e"),
    (r"\bh20\b.*\b141|\bh20-?3e", "h20-141gb-sxm"),
    (r"\bh20\b", "h20-96gb-sxm"),
    (r"\bgh200.*\b(141|144)", "gh200-144gb"),
    (r"\bgh200", "gh200-96gb"),
    (r"\bh100.*nvl\b(?!\s*72)", "h100-94gb-nvl"),
    (r"\bh100.*pcie", "h100-80gb-pcie"),
    (r"\bh200.*nvl\b(?!\s*72)", "h200-141gb-nvl"),
    (r"\ba100.*pcie(?!.*\b40\s*gb)", "a100-80gb-pcie"),
    (r"\bmi325x", "mi325x-256gb"),
    (r"\bmi355x", "mi355x-288gb"),
    (r"a100.*\b40\s*gb(?!.*pcie)", "a100-40gb-sxm"),
    (r"\ba6000", "rtx-a6000"),
    (r"\bmi300x", "mi300x-192gb"),
    (r"\bl20\b", "l20-48gb"),
    (
        r"pcie|nvl\b(?!\s*72)|\bb100|\bl20\b|\bl40\b|a6000|a5000|\bmi\d|tpu|v100|\ba10\b",
        "",
    ),
    (r"\bgb300", "gb300"),
    (r"\bb300", "b300-sxm"),
    (r"\bl40s", "l40s"),
    (r"rtx.?pro.?6000", "rtx-pro-6000"),
    (r"\bgb200", "gb200"),
    (r"\bb200", "b200-sxm"),
    (r"\bh200", "h200-sxm"),
    (r"\bh800", "h800-80gb-sxm"),
    (r"\bh100", "h100-80gb-sxm"),
    (r"\ba800(?!.*\b40\s*gb)", "a800-80gb-sxm"),
    (r"\ba100(?!.*\b40\s*gb)", "a100-80gb-sxm"),
)


WITHOUT_TABLES = ("mi300x-192gb", "mi325x-256gb", "mi355x-288gb", "l20-48gb")
"""Parts of other kinds than any with tables, known by data sheets and by what others measured of their kernels."""


def published_model(text: str, trained: bool = False) -> ModelShape:
    """The shape of the model that a table names, to be ``trained`` or served.

    Raises
    ------
    NotPredicted
        No such architecture is known, or a ``ModelShape`` cannot express it.
    """
    name = str(text).strip()
    in_words = gpt_in_words(name)
    if in_words is not None:
        return in_words
    if _COMPOSITE.match(name) or _REPEATED.match(name):
        raise NotPredicted(f"'{name}' names several models; each role has its own")
    keys = _keys(name)
    for key in keys:
        if key in _known():
            return _priced(_load(_known()[key]), trained)
    for start, what in INEXPRESSIBLE.items():
        if keys[0].startswith(start):
            raise NotPredicted(f"'{name}': the shape of a model cannot express {what}")
    raise NotPredicted(f"no architecture known for '{name}'")


def _priced(shape: ModelShape, trained: bool) -> ModelShape:
    """Refuse shapes of whose layers some have no price yet."""
    if trained and shape.sparse is not None:
        raise NotPredicted(f"{shape.name}: training its sparse attention layers has no price yet")
    return shape


def published_models(text: str) -> dict[str, ModelShape]:
    """The shape of every role's model: "A actor + B critic/reward", "4 x A", or one model for all of them.

    Raises
    ------
    NotPredicted
        As ``published_model``.
    """
    name = str(text).strip()
    both, repeated = _COMPOSITE.match(name), _REPEATED.match(name)
    if both:
        actor, other = published_model(both["actor"]), published_model(both["other"])
        return {"actor": actor, "critic": other, "reference": actor, "reward": other}
    return dict.fromkeys(ROLES, published_model(repeated["model"] if repeated else name))


def published_device(text: str) -> str:
    """The name of our profile for a published part; load it with ``devices.device_profile``.

    A bare "H100" or "A100" is taken as the SXM part with 80 GB: the sources name the others.

    Raises
    ------
    NotPredicted
        There are no tables that could price the part, or the table does not name one.
    """
    name = "" if is_empty(text) else " ".join(str(text).split())
    if not name:
        raise NotPredicted("the source does not name the GPU")
    found = next((device for pattern, device in _DEVICES if re.search(pattern, name, re.IGNORECASE)), "")
    if not found:
        raise NotPredicted(f"no operator tables for {name}")
    return found


def model_kind(shape: ModelShape) -> Literal["dense", "moe"]:
    """How reports group models."""
    return "moe" if shape.moe else "dense"


def is_empty(cell: object) -> bool:
    """Whether a cell says nothing: missing, blank, or one of the words for it."""
    if cell is None or (isinstance(cell, float) and math.isnan(cell)):
        return True
    return str(cell).strip().lower() in ("", "nan", "none", "null", "n/a", "na", "-", "--", "?", "unknown", "<na>")


def number(cell: object) -> float | None:
    """The finite number of a cell, with stray spaces and thousands separators removed; ``None`` for anything else.

    What follows a number in parentheses is a remark: "1 (5)" is 1 (5 belongs to another recipe), "64 (global)" is 64.
    So is the name of a degree before it ("TP 4"), a sign that it is rounded ("~800") and the unit of its column.
    """
    if isinstance(cell, int | float) and not isinstance(cell, bool):
        return float(cell) if math.isfinite(cell) else None
    if is_empty(cell) or isinstance(cell, bool):
        return None
    text = re.sub(r"(?<=\d)\s*\([^()]*\)\s*$", "", str(cell))
    text = re.sub(r"^\s*(?:[~≈]|(?:v?[tpcedv]pp?)\s*[=:]?(?=\s*\d))", "", text, flags=re.IGNORECASE)
    text = re.sub(rf"(?<=\d)\s*(?:{_UNITS})\s*$", "", text, flags=re.IGNORECASE)
    text = re.sub(r"[\s\u00a0\u202f_']", "", text)
    text = re.sub(r"(?<=\d),(?=\d{3}(?:\D|$))", "", text)
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def tokens_of(cell: object) -> float | None:
    """A length in tokens: a number, or "4K" and "1M" in powers of two; ``None`` for anything else."""
    shortened = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([km])\s*(?:tokens)?\s*", text_of(cell).lower())
    if shortened is None:
        return number(cell)
    return float(shortened[1]) * {"k": 2**10, "m": 2**20}[shortened[2]]


def integer(cell: object, default: int) -> int:
    """The count of a cell, 1 or more; ``default`` where it is empty.

    Raises
    ------
    NotPredicted
        The cell holds something that can be no count: no default would be honest.
    """
    if is_empty(cell):
        return default
    value = number(cell)
    if value is None or value != int(value):
        raise NotPredicted(f"'{str(cell).strip()[:40]}' is no whole number")
    if not 1 <= value <= _MAX_COUNT:
        raise NotPredicted(f"a count of {value:g} is out of range")
    return int(value)


def per_rank(cell: object, ranks: int, default: int) -> int:
    """A micro-batch in samples of one data-parallel rank; "64 (global)" counts those of all ``ranks``.

    Raises
    ------
    NotPredicted
        As ``integer``.
    """
    samples = integer(cell, default)
    return max(1, samples // ranks) if "global" in text_of(cell).lower() else samples


def text_of(cell: object) -> str:
    """The words of a cell, spaces in order; empty where it says nothing."""
    return "" if is_empty(cell) else " ".join(str(cell).split())


def _keys(name: str) -> list[str]:
    """Keys to look a name up by: as written, then without the words that leave the shape as it is."""
    words = re.split(r"[\s_\-]+", name.split("/")[-1].lower().replace("(", " ").replace(")", " ").strip())
    kept = [word for word in words if word and word not in _NO_SHAPE]
    tries = (words, kept, [word for word in kept if not _VERSION.fullmatch(word)])
    return [re.sub(r"[^a-z0-9.]", "", "".join(some)) for some in tries]


@cache
def _known() -> dict[str, str]:
    """Key to the name that ``_load`` takes; the catalogue's own spelling wins over every alias."""
    known: dict[str, str] = {}
    pairs = [(name, name) for name in model_names()]
    pairs += [(hf_id(name), name) for name in model_names()]
    pairs += [(name, name) for name in other_architectures()]
    pairs += list(ALIASES.items())
    pairs += list(checkpoint_entries().items())
    for spelling, name in pairs:
        for key in _keys(spelling):
            known.setdefault(key, name)
    return known


def _load(name: str) -> ModelShape:
    return load_model(name) if name in model_names() else other_architectures()[name]
