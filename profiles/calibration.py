"""A calibration layer: what runs on a machine say of the prices there, as a few factors with their uncertainty.

It lies beside the tables of a device folder, or beside a job, and is measured like them; the code has no number of it.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from profiles.errors import FileFormatError
from profiles.yaml_text import parse_yaml, yaml_of

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

CALIBRATION_FILE = "calibration.yaml"

FACTORS = ("generation", "generation_host", "training", "training_host", "scoring", "reference", "transition")
"""What a calibration moves: whole calls by kind, and within them the host times of an engine."""

CALLS = {
    "generation": ("generate_sequences",),
    "training": ("update_actor", "update_critic"),
    "scoring": (
        "compute_log_prob",
        "compute_ref_log_prob",
        "compute_values",
        "compute_reward",
        "compute_cost",
        "compute_loss",
    ),
    "reference": ("compute_ref_log_prob",),
    "transition": ("transition",),
}
"""Calls whose whole time a factor multiplies; the reference's is multiplied by two, as it may be offloaded."""

LEAST_VARIANCE = 1e-12
MOST_LOG = 7.0
"""A factor of a thousand is a mistake."""

UNMOVED = 1.0
"""A factor that changes nothing."""

MOST_MEMORY = 3.0
"""Passes that need three times what is priced are another program's."""

Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Log = Annotated[float, Field(ge=-MOST_LOG, le=MOST_LOG, allow_inf_nan=False)]


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)


class Stage(_Section):
    """Calls that were timed together: mean seconds, and errors on steps that no factor was taken from."""

    calls: tuple[str, ...]
    measured_s: Seconds
    error_before: float
    error_after: float
    steps: Annotated[int, Field(ge=1)]


class MemoryPeak(_Section):
    """What trainers allocated at the peak beside what was priced, GiB, and the factor on what passes need."""

    allocated_gib: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    priced_gib: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    factor: Annotated[float, Field(ge=1, le=MOST_MEMORY)]


class LearnedLengths(_Section):
    """Tokens of the samples, means over the steps.

    ``drift`` is the change of the mean response from the first to the last third of the steps, relative.
    """

    response_mean: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    response_max: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    response_p99: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    clipped: Annotated[float, Field(ge=0, le=1)] | None = None
    prompt_mean: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    drift: float = 0.0


class CalibrationFile(_Section):
    """``calibration.yaml``: logarithms of ``FACTORS`` with their covariance, and what they were learned from.

    ``seconds_per_sample`` are those of the controller's calls, with ``seconds_deviations``, the standard deviation of
    what is known of them, and what other calls take beside their price; ``left_out`` are steps by why; ``prior_scale``
    is how much wider than usual prices were taken to be uncertain before.
    ``of_calls`` is the covariance of how far whole calls are off, where such seconds were learned with the factors.
    ``computed_from`` hashes the steps, the plan and the prices that it was learned from, ``digest`` what it says; both
    are empty in a file from before they were written, ``digest`` in one that somebody wrote as their own.
    ``dispatch`` multiplies what comes before a call, of which runs of our own executor tell.
    """

    schema_version: Literal[2] = 2
    provenance: Literal["measured here"] = "measured here"
    device: str
    training: str
    generation: str
    system: str
    source: str
    date: str
    steps: Annotated[int, Field(ge=1)]
    left_out: dict[str, tuple[int, ...]] = {}
    factors: tuple[str, ...] = FACTORS
    log_factors: tuple[Log, ...]
    covariance: tuple[tuple[float, ...], ...]
    of_calls: tuple[tuple[float, ...], ...] | None = None
    prior_scale: Annotated[float, Field(ge=0.01, le=100)] = 1.0
    seconds_per_sample: dict[str, Seconds] = {}
    seconds_deviations: dict[str, Seconds] = {}
    dispatch: Annotated[float, Field(ge=0.01, le=100)] = UNMOVED
    stages: tuple[Stage, ...] = ()
    lengths: LearnedLengths | None = None
    memory_gib: Seconds | None = None
    peak: MemoryPeak | None = None
    computed_from: str = ""
    digest: str = ""

    @model_validator(mode="after")
    def _square(self) -> CalibrationFile:
        num = len(FACTORS)
        if self.factors != FACTORS:
            raise ValueError(f"factors are {', '.join(FACTORS)}")
        if len(self.log_factors) != num or [len(row) for row in self.covariance] != [num] * num:
            raise ValueError(f"expected {num} log_factors, and as many rows and columns of covariance")
        for name, rows in (("covariance", self.covariance), ("of_calls", self.of_calls or self.covariance)):
            if [len(row) for row in rows] != [num] * num or not _is_covariance(rows):
                raise ValueError(f"{name}: expected a symmetric matrix of finite numbers, all variances positive")
        return self


def _is_covariance(rows: tuple[tuple[float, ...], ...]) -> bool:
    import numpy as np

    matrix = np.asarray(rows)
    if not np.isfinite(matrix).all() or np.abs(matrix).max() > MOST_LOG**2 or not np.allclose(matrix, matrix.T):
        return False
    return bool(np.linalg.eigvalsh(matrix).min() > LEAST_VARIANCE)


@dataclass(frozen=True)
class Calibration:
    """Factors on whole calls, factors on the host times of ``generation`` and ``training``, and seconds per sample.

    The seconds are those of the controller's calls by key, and by API what other calls take beside their price.

    ``dispatch`` multiplies what comes before calls.
    ``source`` says what it was learned from, ``learned`` which factors, and ``apart`` in which its runs contradict each
    other; ``memory`` multiplies what passes need.
    ``covariance`` is that of the logarithms of ``FACTORS``, from which intervals are computed; ``digest`` is that of
    the files it came from, empty where there are none.
    """

    factors: Mapping[str, float] = field(default_factory=dict, hash=False)
    digest: str = ""
    host: Mapping[str, float] = field(default_factory=dict, hash=False)
    seconds_per_sample: Mapping[str, float] = field(default_factory=dict, hash=False)
    covariance: tuple[tuple[float, ...], ...] = ()
    source: str = ""
    apart: tuple[str, ...] = ()
    learned: tuple[str, ...] = ()
    memory: float = 1.0
    dispatch: float = UNMOVED

    @property
    def hashed(self) -> tuple[str, ...]:
        """What a hash of all facts takes in."""
        return (self.digest,) if self.digest else ()


UNCALIBRATED = Calibration()


def read_calibration(path: Path) -> CalibrationFile:
    """A layer's file. ``FileFormatError`` names the file and the field; ``OSError`` where it cannot be opened."""
    try:
        file = CalibrationFile.model_validate(parse_yaml(path.read_bytes(), str(path)))
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"]) or "file"
        raise FileFormatError(f"{path}: {place}: {first['msg']}") from error
    if file.digest and file.digest != digest_of(file):
        raise FileFormatError(
            f"{path}: was edited after it was learned (its digest is not that of what it says); learn it again or take "
            "its 'digest' out to have it read as your own"
        )
    return file


def text_of(file: CalibrationFile) -> str:
    """A layer as it is written, with the digest of what it says."""
    return yaml_of(file.model_copy(update={"digest": digest_of(file)}).model_dump(mode="json"))


def factors_of_calls(factors: Mapping[str, float]) -> dict[str, float]:
    """What each call's time is multiplied by, given a value of each factor."""
    out: dict[str, float] = {}
    for name, calls in CALLS.items():
        for call in calls:
            out[call] = out.get(call, 1.0) * factors[name]
    return out


def digest_of(file: CalibrationFile) -> str:
    """Hash of what a layer says; where it is from does not count, nor a later field that is at its default."""
    unsaid = {"computed_from", "digest"} | ({"dispatch"} if file.dispatch == UNMOVED else set())
    return hashlib.sha256(file.model_dump_json(exclude=unsaid).encode()).hexdigest()
