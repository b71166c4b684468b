"""What an engine costs besides the operators it launches: one file per engine and version, one reason per constant."""

from __future__ import annotations

import functools
import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from profiles.errors import FileFormatError, InputError, UnknownNameError

_T = TypeVar("_T")
_FOLDER = Path(__file__).parent / "engines"


class Fact(BaseModel):
    """One constant: its value, unit, physical meaning, and where it came from."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    value: float
    unit: str
    meaning: str
    basis: Literal["published", "measured"]
    source: str
    fit_rows: str | None = None


class _EngineFile(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["training", "generation"]
    engine: str
    version: str
    note: str
    cuda_graphs: bool = False
    prefix_sharing: bool = False
    shares_weights: bool = False
    zero_stages: tuple[int, ...] = ()
    facts: dict[str, Fact]


@dataclass(frozen=True)
class GenerationEngine:
    """Facts of a generation engine; see the meaning beside each value in its file."""

    name: str
    facts_hash: str
    cuda_graphs: bool
    prefix_sharing: bool
    shares_weights: bool
    launch_s_per_layer: float
    host_s_per_step: float
    host_s_per_sequence: float
    max_num_seqs: float
    max_batched_tokens: float
    kernels_per_layer: float
    transition_fixed_s: float
    reload_bytes_per_s: float
    memory_reserve_bytes: float


@dataclass(frozen=True)
class TrainingEngine:
    """Facts of a training engine; see the meaning beside each value in its file."""

    name: str
    facts_hash: str
    zero_stages: tuple[int, ...]
    attention_backward_ratio: float
    grad_bytes_per_param: float
    grad_reduce_bytes_per_param: float
    optimizer_bytes_per_param: float
    optimizer_traffic_bytes_per_param: float
    overlap_dp: float
    network_efficiency: float
    iteration_fixed_s: float


def engine_names(kind: Literal["training", "generation"]) -> list[str]:
    """``engine@version`` of every profiled engine of a kind, newest version of each engine last."""
    names = [path.name.removesuffix(".yaml") for path in _FOLDER.glob("*.yaml")]
    return sorted((n for n in names if _read(n)[0].kind == kind), key=lambda n: (n.split("@")[0], _version(n)))


def default_engine(kind: Literal["training", "generation"]) -> str:
    """The newest profiled version of the default engine: Megatron-Core for training, vLLM for generation."""
    family = {"training": "megatron-core", "generation": "vllm"}[kind]
    return [n for n in engine_names(kind) if n.split("@")[0] == family][-1]


def load_generation_engine(name: str) -> GenerationEngine:
    """Load ``engine@version``; raises ``UnknownNameError`` or ``InputError`` (wrong kind)."""
    file, digest = _checked(name, "generation")
    values = {key: fact.value for key, fact in file.facts.items()}
    return _build(
        GenerationEngine,
        name,
        dict(
            facts_hash=digest,
            cuda_graphs=file.cuda_graphs,
            prefix_sharing=file.prefix_sharing,
            shares_weights=file.shares_weights,
            **values,
        ),
    )


def load_training_engine(name: str) -> TrainingEngine:
    """Load ``engine@version``; raises ``UnknownNameError`` or ``InputError`` (wrong kind)."""
    file, digest = _checked(name, "training")
    values = {key: fact.value for key, fact in file.facts.items()}
    return _build(TrainingEngine, name, dict(facts_hash=digest, zero_stages=file.zero_stages, **values))


def engine_constants(name: str) -> dict[str, Fact]:
    """Every constant of an engine with its meaning and source, for display."""
    return dict(_read(name)[0].facts)


def _build(cls: type[_T], name: str, values: dict[str, object]) -> _T:
    try:
        return cls(**{"name": name, **values})
    except TypeError as error:
        raise FileFormatError(f"engine file of {name}: {error}") from error


def _version(name: str) -> tuple[int, ...]:
    return tuple(int(part) for part in name.split("@")[1].split(".") if part.isdigit())


def _checked(name: str, kind: Literal["training", "generation"]) -> tuple[_EngineFile, str]:
    known = [path.name.removesuffix(".yaml") for path in _FOLDER.glob("*.yaml")]
    if name not in known:
        raise UnknownNameError(f"{kind} engine", name, [n for n in known if _read(n)[0].kind == kind])
    file, digest = _read(name)
    if file.kind != kind:
        raise InputError(f"engines.{kind}: '{name}' is a {file.kind} engine; known: {', '.join(engine_names(kind))}")
    return file, digest


@functools.cache
def _read(name: str) -> tuple[_EngineFile, str]:
    raw = (_FOLDER / f"{name}.yaml").read_bytes()
    try:
        return _EngineFile.model_validate(yaml.safe_load(raw)), hashlib.sha256(raw).hexdigest()
    except ValidationError as error:
        raise FileFormatError(f"engine file {name}.yaml: {error}") from error
