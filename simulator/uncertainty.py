"""How far a predicted time may be off: a 90 % interval from its provenance and how predictions fared.

Two parts are combined as independent: the *systematic* part of a kind of prediction, read off the errors against
published measurements that nothing was fitted on; and the *provenance* part, a declared half-width for each kind of
evidence, weighted by its share. Both stand in ``profiles/uncertainty.yaml``, the first written by
``python -m benchmarks.validation --calibrate``.
"""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

import profiles
from profiles.errors import FileFormatError
from profiles.yaml_text import read_yaml_file

if TYPE_CHECKING:
    from collections.abc import Mapping

FILE = Path(profiles.__file__).parent / "uncertainty.yaml"
COVERAGE = 0.9

_Factor = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class ErrorRange(BaseModel):
    """Range of measured over predicted time that held nine tenths of ``rows`` published rows of ``systems`` systems."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    low: _Factor
    high: _Factor
    rows: int
    systems: int


class Calibration(BaseModel):
    """The content of ``profiles/uncertainty.yaml``: half-width by basis, and error range by kind of prediction."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    half_width: dict[str, Annotated[float, Field(ge=0, lt=1)]]
    kinds: dict[str, ErrorRange]


def interval(basis: Mapping[str, float], kind: str = "rl") -> tuple[float, float]:
    """Factors on a predicted time between which the measured time lies nine times in ten.

    Parameters
    ----------
    basis
        Share of the time by kind of evidence (``Priced.share()`` or ``Timeline.basis``).
    kind
        What is predicted, a key of the calibration: ``rl`` (a whole iteration), ``training``, ``generation``,
        ``paper``. A kind without rows takes the widest range of all.

    Returns
    -------
    low, high
        ``low <= 1 <= high``.
    """
    calibration = load_calibration()
    found = calibration.kinds.get(kind)
    ranges = [found] if found is not None else list(calibration.kinds.values())
    # Shares of one basis go wrong together, different kinds of evidence independently.
    own = math.hypot(*(share * calibration.half_width.get(name, 0.0) for name, share in basis.items()))
    down = max((max(0.0, -math.log(s.low)) for s in ranges), default=0.0)
    up = max((max(0.0, math.log(s.high)) for s in ranges), default=0.0)
    return math.exp(-math.hypot(down, own)), math.exp(math.hypot(up, own))


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
