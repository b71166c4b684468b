"""``run.optimizer``: constants of AdamW, and how the learning rate moves. Imports no torch."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from executor.section import NotNegative, Positive, Section

Beta = Annotated[float, Field(ge=0, lt=1)]
VERL_OPTIMIZER: dict[str, Any] = {"betas": (0.9, 0.999), "weight_decay": 0.01}
"""Where verl 0.9's optimizer starts from other constants than ours."""


class OptimizerSection(Section):
    """Constants of AdamW, and how the learning rate moves over the run's iterations, for the actor and the critic.

    The rate grows in a straight line from 0 over ``warmup`` iterations, then it is ``constant``, or falls by half a
    ``cosine`` to ``floor`` times itself in iteration ``iterations`` (the run section's, unless given). It moves once
    an iteration, before its first step, as verl's does: with ``warmup`` the first iteration learns nothing.
    ``defaults: verl`` is set by that of ``learning``.
    """

    defaults: Literal["hybridmap", "verl"] = "hybridmap"
    betas: tuple[Beta, Beta] = (0.9, 0.95)
    eps: Positive = 1e-8
    weight_decay: NotNegative = 0.0
    schedule: Literal["constant", "cosine"] = "constant"
    warmup: Annotated[int, Field(ge=0)] = 0
    floor: Annotated[float, Field(ge=0, le=1)] = 0.0
    iterations: Annotated[int, Field(ge=1)] | None = None

    @model_validator(mode="before")
    @classmethod
    def _take_defaults(cls, given: Any) -> Any:
        if isinstance(given, dict) and given.get("defaults") == "verl":
            return {**VERL_OPTIMIZER, **given}
        return given
