"""What became of one input: accepted, refused with a message, or a find."""

from __future__ import annotations

import signal
import time
import traceback
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from profiles.errors import HybridmapError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LIMIT_S = 5.0
"""Longest time that an input may take."""

ROOMS = ("profiles", "simulator", "mapper", "executor", "hybridmap")


class TookTooLong(BaseException):
    """Raised inside the product when an input's time is over; no ``except Exception`` catches it."""


@dataclass(frozen=True)
class Outcome:
    """``kind`` is accepted, refused, crash or slow; ``where`` tells finds apart, ``detail`` is for a person."""

    kind: str
    seconds: float
    where: str = ""
    detail: str = ""

    @property
    def is_find(self) -> bool:
        return self.kind in ("crash", "slow")


def outcome_of(read: Callable[[Path], object], path: Path, limit_s: float = LIMIT_S) -> Outcome:
    """Let ``read`` have a file. Needs the main thread, for its alarm."""
    began = time.monotonic()
    try:
        with _alarm(limit_s):
            read(path)
        kind, where, detail = "accepted", "", ""
    except HybridmapError as error:
        kind, where, detail = "refused", type(error).__name__, str(error)
        if not detail.strip():
            kind, where = "crash", f"{where} without a message"
    except TookTooLong as error:
        kind, where, detail = "slow", _place(error), traceback.format_exc(limit=-12)
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        kind, where, detail = "crash", f"{type(error).__name__} {_place(error)}", traceback.format_exc(limit=-12)
    seconds = time.monotonic() - began
    if seconds > limit_s and kind != "crash":
        kind, where = "slow", where or "no Python code"
    return Outcome(kind, seconds, where, detail)


def _place(error: BaseException) -> str:
    """The innermost line of ours that the error came through."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [f for f in frames if any(f"/{room}/" in f.filename for room in ROOMS) and "site-packages" not in f.filename]
    last = ours[-1] if ours else frames[-1]
    return f"{Path(last.filename).parent.name}/{Path(last.filename).name}:{last.lineno}"


@contextmanager
def _alarm(limit_s: float) -> Iterator[None]:
    def ring(number: int, frame: object) -> None:
        raise TookTooLong

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, limit_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
