"""Speculative decoding as a job states it: who drafts, how many tokens a step, and how many of them are kept."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

from profiles.errors import InputError

if TYPE_CHECKING:
    from profiles.models.shape import ModelShape

MOST_DRAFTED = 16
"""Tokens of a draft; engines check a handful."""


@dataclass(frozen=True)
class Speculation:
    """A step drafts tokens one after the other, checks all of them at once, and keeps those up to the first miss.

    Parameters
    ----------
    accepted
        Share of steps in which the token at each position is kept, as vLLM prints it ("per-position acceptance rate"):
        one for each drafted token, none above the one before it.
    draft
        Model that drafts; ``None`` for the prediction layers of the model itself (MTP).
    lengths
        Numbers of tokens that a plan may choose to draft, ascending, 0 for none; empty where it drafts all of them.

    Raises
    ------
    InputError
        Shares are none, or no shares, or rise.
    """

    accepted: tuple[float, ...]
    draft: ModelShape | None = None
    lengths: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not 1 <= len(self.accepted) <= MOST_DRAFTED:
            raise InputError(f"speculation drafts {len(self.accepted)} tokens a step; from 1 to {MOST_DRAFTED} can be")
        if not all(0.0 <= share <= 1.0 for share in self.accepted):
            raise InputError(f"speculation.acceptance holds shares from 0 to 1, got {list(self.accepted)}")
        if any(later > before for before, later in pairwise(self.accepted)):
            raise InputError(
                f"speculation.acceptance rises ({list(self.accepted)}): a token is kept only with those before it"
            )

    @property
    def drafted(self) -> int:
        """Tokens that a step drafts."""
        return len(self.accepted)

    @property
    def tokens_per_step(self) -> float:
        """Tokens that a step gives on the mean: the kept ones, and the one that the model draws after them."""
        return 1.0 + sum(self.accepted)

    def of(self, tokens: int) -> Speculation | None:
        """The same drafts cut to so many tokens a step.

        Parameters
        ----------
        tokens
            Of a draft; 0 for none.

        Returns
        -------
        Speculation or None
            With nothing left to choose; ``None`` without drafts.

        Raises
        ------
        InputError
            Nobody says how many of so many tokens are kept.
        """
        if not 0 <= tokens <= self.drafted:
            raise InputError(
                f"the plan drafts {tokens} tokens a step, and speculation.acceptance says what is kept of "
                f"{self.drafted}"
            )
        return replace(self, accepted=self.accepted[:tokens], lengths=()) if tokens else None

    def require_drafts_for(self, shape: ModelShape) -> None:
        """Whether it can draft for a model.

        Parameters
        ----------
        shape
            The model that generates.

        Raises
        ------
        InputError
            The model has no prediction layers and no draft is named, or the draft has another vocabulary.
        """
        if self.draft is None and not shape.num_mtp_layers:
            raise InputError(
                f"{shape.name} has no prediction layers (MTP) to draft with; name a small model of its vocabulary as "
                "speculation.draft"
            )
        if self.draft is not None and self.draft.vocab != shape.vocab:
            raise InputError(
                f"speculation.draft: {self.draft.name} has a vocabulary of {self.draft.vocab:,}, {shape.name} one of "
                f"{shape.vocab:,}; a draft's tokens are checked one by one, so they must be the same"
            )
