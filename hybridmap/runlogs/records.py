"""A run's log: seconds by call, lengths and memory of each step, whatever system wrote it."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from statistics import fmean
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

STEP, VALIDATION, CHECKPOINT = "step", "validation", "checkpoint"
BESIDE = (VALIDATION, CHECKPOINT)
"""What some steps do besides the iteration that a plan predicts."""

SUM = 1e-6
"""Relative: a sum that was written with its digits is so near to what its parts add up to; no clock is."""

BOTH_LOG_PROBS = "compute_log_prob+compute_ref_log_prob"
"""NeMo-RL times the old log-probs and the reference's together."""

ALL_SCORES = "compute_log_prob+compute_ref_log_prob+compute_values+compute_reward"
BOTH_UPDATES = "update_actor+update_critic"
"""OpenRLHF times what makes a sample an experience together, and the trained models."""


@dataclass(frozen=True)
class Lengths:
    """Tokens of a step's samples; ``None`` where the log does not say.

    ``clipped`` is the share of responses that ended at the limit.
    """

    response_mean: float | None = None
    response_max: float | None = None
    clipped: float | None = None
    prompt_mean: float | None = None


@dataclass(frozen=True)
class LoggedStep:
    """One step. ``seconds`` by call (names of ``simulator.plan.dataflow``), and of ``step``, ``validation``, ...

    ``memory_gib`` is the most that PyTorch had reserved on a GPU, ``allocated_gib`` what of it was in use, GiB.
    ``between_s`` are the seconds in which no call of the critical path ran, where the log says when calls began and
    ended.
    """

    number: int
    seconds: Mapping[str, float]
    lengths: Lengths = field(default_factory=Lengths)
    memory_gib: float | None = None
    allocated_gib: float | None = None
    between_s: float | None = None

    @property
    def iteration_s(self) -> float | None:
        """The step without validation and checkpoints.

        Releases differ in whether they count them (verl 0.9.1 does for checkpoints, not for validation): what does not
        fit beside the calls was not counted.
        """
        if STEP not in self.seconds:
            return None
        whole, rest_s = self.seconds[STEP], self.seconds[STEP] - sum(self.calls.values())
        for name in BESIDE:
            beside_s = self.seconds.get(name, 0.0)
            if beside_s <= rest_s:
                whole, rest_s = whole - beside_s, rest_s - beside_s
        return whole

    @property
    def calls(self) -> dict[str, float]:
        """Seconds of the calls of an iteration alone."""
        return {name: s for name, s in self.seconds.items() if name not in (STEP, *BESIDE)}

    @property
    def unnamed_s(self) -> float | None:
        """What of the iteration no call accounts for. Calls that overlap leave nothing.

        ``None`` where the step is no more than the sum of its calls, as OpenRLHF writes it: nothing else was timed.
        """
        whole, named_s = self.iteration_s, sum(self.calls.values())
        if whole is None or (self.calls and abs(whole - named_s) <= SUM * whole):
            return None
        return max(0.0, whole - named_s)


@dataclass(frozen=True)
class RunLog:
    """A log as it was read.

    Parameters
    ----------
    system
        Who wrote it: ``verl``, ``nemo-rl``, ``slime``, ``openrlhf`` or ``hybridmap``.
    source
        The file or folder.
    steps
        In order of their number, each once.
    damaged
        Lines that began as a record of the system and could not be read to their end.
    model
        The actor's, as a console prints it with the run's configuration; empty where it does not.
    """

    system: str
    source: str
    steps: tuple[LoggedStep, ...]
    damaged: int = 0
    model: str = ""

    def mean_lengths(self) -> Lengths:
        """The mean over the steps of each, of what they say."""
        return Lengths(**{f.name: _mean(getattr(step.lengths, f.name) for step in self.steps) for f in fields(Lengths)})


def _mean(values: object) -> float | None:
    known = [value for value in values if value is not None]  # type: ignore[attr-defined]
    return fmean(known) if known else None
