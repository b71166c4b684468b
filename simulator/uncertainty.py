"""How far a predicted time may be off: a 90 % interval from how predictions of published runs fared.

A run belongs to a cluster: what is predicted, dense or mixture of experts, schedule, family of devices. The range of a
cluster is read off the errors of published rows whose family (model, device, engine release) no constant had seen, and
stands in ``profiles/uncertainty.yaml``, written by ``python -m benchmarks.validation --calibrate``.
"""

from __future__ import annotations

import math
import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

import profiles
from profiles.errors import FileFormatError
from profiles.yaml_text import read_yaml_file

if TYPE_CHECKING:
    from profiles.models.shape import ModelShape
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
    """Range of measured over predicted time for nine tenths of runs like the ``rows`` published ones of a cluster.

    ``of`` is that cluster, where it is a wider one because too few families ran in this.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    low: _Factor
    high: _Factor
    rows: int
    families: int
    of: str = ""


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


def by_rule_share(facts: Facts) -> float:
    """Share of the mixers and MLPs of a model whose kernels no table of the device holds; of the role that has most.

    Parameters
    ----------
    facts
        What is known of job, device and engines.

    Returns
    -------
    float
        From 0 to 1: Mamba-2 and Kimi's delta nets, and sparse attention that no modules were measured of.
    """
    return max((_by_rule(role.shape, facts) for role in facts.roles.values()), default=0.0)


def _by_rule(shape: ModelShape, facts: Facts) -> float:
    linear = shape.linear is not None and shape.linear.kind in ("mamba2", "kimi_delta")
    layers = shape.num_linear_layers if linear else 0
    if shape.sparse is not None and (shape.mla is None or not facts.device.has_sparse(shape.hidden)):
        layers += shape.sparse.num_layers
    return layers / (shape.parts_per_layer * shape.num_layers)


def interval(cluster: str = "rl", by_rule: float = 0.0) -> tuple[float, float]:
    """Factors on a predicted time between which the measured time lies nine times in ten.

    Parameters
    ----------
    cluster
        Path of what is predicted; where it is not calibrated, the longest beginning that is. One that begins like none
        takes the widest range of all.
    by_rule
        Share of the model that no table prices (``by_rule_share``).

    Returns
    -------
    low, high
        ``low <= 1 <= high``.

    Notes
    -----
    What is priced by rule is taken to be off as runs are on parts without any table, all of whose kernels are: as much
    of their range as it has of the model, independent of the rest.
    """
    found = range_of(cluster)
    low, high = min(found.low, 1.0), max(found.high, 1.0)
    if not by_rule or cluster.endswith(f"/{UNTABLED}"):
        return low, high  # parts without tables have all of their kernels by rule
    rules = range_of(f"{cluster.rpartition('/')[0]}/{UNTABLED}")
    return (
        math.exp(-math.hypot(math.log(low), by_rule * math.log(min(rules.low, 1.0)))),
        math.exp(math.hypot(math.log(high), by_rule * math.log(max(rules.high, 1.0)))),
    )


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
