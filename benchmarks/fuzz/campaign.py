"""Many inputs, in a process of its own that may die or hang: counts by outcome, and every find once."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import resource
import tempfile
import warnings
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

from benchmarks.fuzz.outcome import Outcome, outcome_of
from benchmarks.fuzz.targets import TARGETS
from benchmarks.fuzz.workplace import prepare

if TYPE_CHECKING:
    from collections.abc import Iterable
    from multiprocessing.connection import Connection

COMMANDS = "commands"
"""The target that is no file: changed command lines. See ``benchmarks.fuzz.commands``."""

COMMAND_LIMIT_S = 60.0
"""A command may search; searches are told to stop after a second for each placement."""

PATIENCE_S = 60.0
"""Silence after which a worker counts as hanging where no alarm reaches, beyond the input's own limit."""

MEMORY_BYTES = 8 << 30
"""Address space of a worker: an input that wants more is a find, not the end of the machine."""


GROWN_BYTES = 1 << 30
"""An input after which a worker has held so much more than before counts as a find, too."""


@dataclass(frozen=True)
class Find:
    """One way to break, with the first input that did: for a command line ``data`` is its words, one a line."""

    target: str
    index: int
    outcome: Outcome
    data: bytes


@dataclass
class Tally:
    """What became of the inputs of one target."""

    counts: Counter[str] = field(default_factory=Counter)
    slowest_s: float = 0.0
    finds: dict[str, Find] = field(default_factory=dict)

    def add(self, target: str, index: int, outcome: Outcome, data: bytes) -> None:
        """Count one input; the first of each kind of find is kept."""
        self.counts[outcome.kind] += 1
        self.slowest_s = max(self.slowest_s, outcome.seconds)
        if outcome.is_find:
            self.finds.setdefault(f"{outcome.kind} {outcome.where}", Find(target, index, outcome, data))


def campaign(target: str, indices: Iterable[int], seed: int) -> Tally:
    """Try the inputs of ``target`` with these numbers; the same seed and number give the same input."""
    tally = Tally()
    left = list(indices)
    while left:
        done = _one_worker(target, left, seed, tally)
        left = left[done:]
    return tally


def input_of(target: str, index: int, seed: int) -> bytes:
    """The input with a number (not of ``commands``, whose files depend on the folder)."""
    return TARGETS[target].make(Random(f"{seed}:{target}:{index}"))


def _one_worker(target: str, indices: list[int], seed: int, tally: Tally) -> int:
    """Run a worker until it is through, dies or hangs; how many inputs are done with."""
    here, there = multiprocessing.Pipe()
    worker = multiprocessing.get_context("fork").Process(target=_work, args=(there, target, indices, seed), daemon=True)
    worker.start()
    there.close()
    limit_s = PATIENCE_S + (COMMAND_LIMIT_S if target == COMMANDS else TARGETS[target].limit_s)
    for done, index in enumerate(indices):
        try:
            if not here.poll(limit_s):
                outcome, data = Outcome("slow", limit_s, "hangs outside Python"), b""
            else:
                outcome, data = here.recv()
                if isinstance(outcome, Exception):
                    raise outcome  # of ours, while it made an input
                tally.add(target, index, outcome, data)
                continue
        except EOFError:
            outcome, data = Outcome("crash", 0.0, "the process died"), b""
        worker.kill()
        worker.join()
        with contextlib.suppress(Exception):
            data = input_of(target, index, seed)
        tally.add(target, index, outcome, data)
        return done + 1
    worker.join()
    return len(indices)


def _work(pipe: Connection, target: str, indices: list[int], seed: int) -> None:
    """In the worker: an outcome for every number, in order; the input itself only with a find."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    warnings.simplefilter("ignore")  # of NumPy: overflow in a price that is then refused
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        prepare(folder)
        os.chdir(folder)
        outcome_of(
            lambda path: _tried(target, indices[0], seed, path), folder, PATIENCE_S / 2
        )  # imports are no input's
        held = _held_bytes()
        for index in indices:
            try:
                outcome, data = _tried(target, index, seed, folder)
            except Exception as error:
                pipe.send((error, b""))
                return
            grown, held = _held_bytes() - held, _held_bytes()
            if grown > GROWN_BYTES:
                outcome = replace(outcome, kind="crash", where=f"{outcome.where} held {grown >> 20} MiB more")
            pipe.send((outcome, data if outcome.is_find else b""))


def _held_bytes() -> int:
    """The most memory that this process has held so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _tried(target: str, index: int, seed: int, folder: Path) -> tuple[Outcome, bytes]:
    if target == COMMANDS:
        return _tried_command(Random(f"{seed}:{target}:{index}"), folder)
    data = input_of(target, index, seed)
    path = folder / TARGETS[target].file_name
    path.write_bytes(data)
    return outcome_of(TARGETS[target].read, path, TARGETS[target].limit_s), data


def _tried_command(random: Random, folder: Path) -> tuple[Outcome, bytes]:
    from benchmarks.fuzz.commands import changed_command, run_command

    words: Any = changed_command(random, folder)
    outcome = outcome_of(lambda path: run_command(words, path), folder, COMMAND_LIMIT_S)
    return outcome, "\n".join(words).encode("utf-8", "surrogatepass")
