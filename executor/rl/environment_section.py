"""``run.environment``: what answers the policy between its turns. Imports no torch."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from executor.section import Section


class EnvironmentSection(Section):
    """``run.environment``: what answers the policy between its turns.

    ``name`` is ``module:class``, see ``Environment``. A sample has at most ``turns`` of the policy, each of at most
    ``turn_tokens`` tokens (as many as are left, unless given); turns and answers share the response length.
    """

    name: str
    turns: Annotated[int, Field(ge=1)]
    turn_tokens: Annotated[int, Field(ge=1)] | None = None
