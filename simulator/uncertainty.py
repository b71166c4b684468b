"""How far a predicted time may be off: a 90 % interval from how predictions of published runs fared.

A run belongs to a cluster: what is predicted, dense or mixture of experts, schedule, family of devices. The range of a
cluster is read off the errors of published rows whose family (model, device, engine release) no constant had seen, and
stands in ``profiles/uncertainty.yaml``, written by ``python -m benchmarks.validation --calibrate``.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

import profiles
from profiles.errors import FileFormatError
from profiles.yaml_text import read_yaml_file

if TYPE_CHECKING:
    from simulator.facts import Facts
    from simulator.plan.plan import Schedule

FILE = Path(profiles.__file__).parent / "uncertainty.yaml"
COVERAGE = 0.9
NINETY = 1.6449
"""Standard deviations to either end of a 90 % interval."""

_FAMILIES = {
    r"h100|h200|h800|h20\b|h20-|gh200": "hopper",
    r"g?b[23]00": "blackwell",
    r"a100|a800|a30\b|a30-": "ampere",
    r"l40|l20\b|l20-|rtx-pro": "pcie",
}
UNTABLED = "other"
"""Family of the parts without tables. The GA102 of an A6000, A40 or A10 is another die than the A100's: it is one."""
DEVICE_FAMILIES = (*_FAMILIES.values(), UNTABLED)

_Factor = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class ErrorRange(BaseModel):
    """Range of measured over predicted time for nine tenths of runs like the ``rows`` published ones of a cluster."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    low: _Factor
    high: _Factor
    rows: int
    families: int


class Calibration(BaseModel):
    """The content of ``profiles/uncertainty.yaml``: half-width by basis, and error range by cluster."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    half_width: dict[str, Annotated[float, Field(ge=0, lt=1)]]
    clusters: dict[str, ErrorRange]


def device_family(device: str) -> str:
    """``hopper``, ``blackwell``, ``ampere``, ``pcie`` (cards with tables) or ``other`` by a device's name.

    Parameters
    ----------
    device
        Name of a profile or of a part.

    Returns
    -------
    str
        The family.
    """
    return next((family for words, family in _FAMILIES.items() if re.search(words, device.lower())), UNTABLED)


def cluster_of(facts: Facts, schedule: Schedule) -> str:
    """The cluster of an iteration, from the general to the special: ``rl/moe/sync/blackwell``.

    Parameters
    ----------
    facts
        What is known of job, device and engines.
    schedule
        Of the plan.

    Returns
    -------
    str
        Path of the cluster.
    """
    kind = "moe" if any(role.shape.moe for role in facts.roles.values()) else "dense"
    overlapped = "sync" if schedule == "sync" else "overlapped"
    return f"rl/{kind}/{overlapped}/{device_family(facts.group.device)}"


def interval(cluster: str = "rl") -> tuple[float, float]:
    """Factors on a predicted time between which the measured time lies nine times in ten.

    Parameters
    ----------
    cluster
        Path of what is predicted; where it is not calibrated, the longest beginning that is. One that begins like none
        takes the widest range of all.

    Returns
    -------
    low, high
        ``low <= 1 <= high``.
    """
    found = range_of(cluster)
    return min(found.low, 1.0), max(found.high, 1.0)


def range_of(cluster: str) -> ErrorRange:
    """The calibrated range of a cluster, or of the longest beginning of its path.

    Parameters
    ----------
    cluster
        Path of what is predicted.

    Returns
    -------
    ErrorRange
        The range, with how many rows it rests on.
    """
    known = load_calibration().clusters
    parts = cluster.split("/")
    for length in range(len(parts), 0, -1):
        if (path := "/".join(parts[:length])) in known:
            return known[path]
    return max(known.values(), key=lambda found: found.high / found.low)


@cache
def load_calibration(path: Path = FILE) -> Calibration:
    """Read the calibration.

    Raises
    ------
    FileFormatError
        The file cannot be read as one.
    """
    try:
        return Calibration.model_validate(read_yaml_file(path))
    except ValidationError as error:
        raise FileFormatError(f"{path}: no calibration of intervals ({str(error).splitlines()[0]})") from error
