"""Mappings of the ``run:`` section of a job file, and the numbers in them. Imports no torch."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Section(BaseModel):
    """A mapping of the job file; unknown keys fail."""

    model_config = ConfigDict(frozen=True, extra="forbid")
