"""Errors of a run that are nobody's input: a rank that failed, with the place and that rank's own traceback.

Part of the one tree in ``profiles.errors``; kept here because only the executor can raise them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from profiles.errors import FileFormatError, HybridmapError, InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

SECONDARY_FAILURES = (
    "Connection closed by peer",
    "Connection reset by peer",
    "Connection refused",
    "Broken pipe",
    "Timed out waiting",
    "collective operation timeout",
)
"""What the other ranks of a collective say when one is gone or hangs: a secondary failure, never the cause."""


@dataclass(frozen=True)
class Failure:
    """What one rank reports, or what is said of one that reports nothing.

    ``call`` is ``role.method``. ``is_secondary`` marks a rank that only noticed another one's failure, ``expected`` an
    input that cannot work. ``node`` is where the rank ran, as far as that is known.
    """

    number: int
    call: str
    pool: str
    rank: int
    summary: str
    traceback: str
    is_secondary: bool = False
    expected: bool = False
    node: str = ""

    def because(self, error: BaseException | None) -> Failure:
        """The same with the error that told of it."""
        return replace(self, summary=f"{self.summary} ({type(error).__name__})", traceback=str(error))


def lost_rank(number: int, call: str, pool: str, rank: int) -> Failure:
    """What to say of a rank that ended without a word."""
    return Failure(number, call, pool, rank, "its process ended", "")


def silent_rank(number: int, call: str, pool: str, rank: int, why: str) -> Failure:
    """What to say of a rank that runs, as far as anybody knows, and does not answer."""
    return Failure(number, call, pool, rank, f"it did not answer, {why}", "")


class UpstreamError(HybridmapError):
    """The input of a rank never came to be, since the call that makes it failed."""


class RankFailedError(HybridmapError):
    """A rank failed; carries the failure that explains the others, and its rank's traceback in the message."""

    exit_status = 1

    def __init__(self, failure: Failure) -> None:
        self.failure = failure
        super().__init__(
            f"{failure.call} failed on rank {failure.rank} of pool {failure.pool}: {failure.summary}"
            f"{f' [node {failure.node}]' if failure.node else ''}\n{failure.traceback.rstrip()}"
        )


class WorkerInputError(InputError):
    """A rank says that what it was given cannot work (a missing weight file, a layout that does not divide)."""

    def __init__(self, failure: Failure) -> None:
        self.failure = failure
        super().__init__(f"{failure.call}, rank {failure.rank} of pool {failure.pool}: {failure.summary}")


class DamagedCheckpointError(FileFormatError):
    """A checkpoint whose files are not those that were written; an older one of the run may be whole."""


def first_cause(failures: list[Failure], silent: Sequence[Failure] = ()) -> Failure:
    """The failure that explains the rest: a cause before a secondary one, then the earliest call, then the lowest rank.

    Where all failures are secondary, the cause is a rank that is ``silent`` in that call or before, if there is one.
    """
    cause = min(failures, key=lambda f: (f.is_secondary, f.number, f.rank))
    if not cause.is_secondary:
        return cause
    return min((f for f in silent if f.number <= cause.number), key=lambda f: (f.number, f.rank), default=cause)


def error_of(failures: list[Failure], silent: Sequence[Failure] = ()) -> HybridmapError:
    """The error to raise for what a set of ranks report, and others do not."""
    cause = first_cause(failures, silent)
    return WorkerInputError(cause) if cause.expected else RankFailedError(cause)
