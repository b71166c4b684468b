"""Errors of a run that are nobody's input: a rank that failed, with the place and that rank's own traceback.

Part of the one tree in ``profiles.errors``; kept here because only the executor can raise them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from profiles.errors import HybridmapError, InputError

CONNECTION_LOST = ("Connection closed by peer", "Connection reset by peer", "Connection refused", "Broken pipe")
"""What the surviving ranks of a collective say when another one is gone: a symptom, never the reason."""


@dataclass(frozen=True)
class Failure:
    """What one rank reports. ``symptom`` marks a rank that only noticed another one's failure."""

    number: int
    call: str
    pool: str
    rank: int
    summary: str
    traceback: str
    symptom: bool = False
    expected: bool = False

    def because(self, error: BaseException | None) -> Failure:
        """The same with the error that told of it."""
        return replace(self, summary=f"{self.summary} ({type(error).__name__})", traceback=str(error))


def lost_rank(number: int, call: str, pool: str, rank: int) -> Failure:
    """What to say of a rank that ended without a word."""
    return Failure(number, call, pool, rank, "its process ended", "")


class UpstreamError(HybridmapError):
    """The input of a rank never came to be, since the call that makes it failed."""


class RankFailedError(HybridmapError):
    """A rank failed; carries the failure that explains the others, and its rank's traceback in the message."""

    exit_status = 1

    def __init__(self, failure: Failure) -> None:
        self.failure = failure
        super().__init__(
            f"{failure.call} failed on rank {failure.rank} of pool {failure.pool}: {failure.summary}\n"
            f"{failure.traceback.rstrip()}"
        )


class WorkerInputError(InputError):
    """A rank says that what it was given cannot work (a missing weight file, a layout that does not divide)."""

    def __init__(self, failure: Failure) -> None:
        self.failure = failure
        super().__init__(f"{failure.call}, rank {failure.rank} of pool {failure.pool}: {failure.summary}")


def first_cause(failures: list[Failure]) -> Failure:
    """The failure that explains the rest: a reason before a symptom, then the earliest call, then the lowest rank."""
    return min(failures, key=lambda f: (f.symptom, f.number, f.rank))


def error_of(failures: list[Failure]) -> HybridmapError:
    """The error to raise for what a set of ranks report."""
    cause = first_cause(failures)
    return WorkerInputError(cause) if cause.expected else RankFailedError(cause)
