"""A calibration layer: what runs on a machine say of the prices there, as one factor for each call.

It lies beside the tables of a device folder and is measured like them; no constant of it is in the code. It is a
correction of the sum: it says nothing of which part of the price is wrong, and holds for jobs like those it was
measured on.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from profiles.errors import FileFormatError
from profiles.yaml_text import parse_yaml

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

CALIBRATION_FILE = "calibration.yaml"

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Correction(BaseModel):
    """One call: the factor on its predicted time, and what it rests on.

    ``spread`` is the half-width of the middle half of the measured times over their median.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    call: str
    factor: Positive
    measured_s: Positive
    predicted_s: Positive
    iterations: Annotated[int, Field(ge=1)]
    spread: Annotated[float, Field(ge=0)]
    error_before: float
    error_after: float


class CalibrationFile(BaseModel):
    """``calibration.yaml``. Errors before and after are those of iterations that no factor was taken from."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_version: Literal[1] = 1
    provenance: Literal["measured here"] = "measured here"
    device: str
    job: str
    command: str
    date: str
    corrections: tuple[Correction, ...]


@dataclass(frozen=True)
class Calibration:
    """Factors by call; ``digest`` is that of the file they came from, empty where there is none."""

    factors: Mapping[str, float] = field(default_factory=dict, hash=False)
    digest: str = ""

    @property
    def hashed(self) -> tuple[str, ...]:
        """What a hash of all facts takes in."""
        return (self.digest,) if self.digest else ()


UNCALIBRATED = Calibration()


def load_calibration(folder: Path) -> Calibration:
    """The layer of a device folder; nothing where it has none. ``FileFormatError`` names the file and the field."""
    path = folder / CALIBRATION_FILE
    if not path.is_file():
        return UNCALIBRATED
    raw = path.read_bytes()
    try:
        file = CalibrationFile.model_validate(parse_yaml(raw, str(path)))
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"]) or "file"
        raise FileFormatError(f"{path}: {place}: {first['msg']}") from error
    return Calibration({c.call: c.factor for c in file.corrections}, hashlib.sha256(raw).hexdigest())
