"""Which of a calibration a job may use: what ran on its device, with its engines."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING

from profiles.calibration import CALLS, FACTORS, Calibration
from simulator.calibration.factors import belief_of, contradictions, layer_of, prior

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from profiles.calibration import CalibrationFile
    from simulator.calibration.factors import Belief
    from simulator.facts import Facts

OF_TRAINING = ("training", "training_host", "scoring", "reference", "transition")
OF_GENERATION = ("generation", "generation_host", "transition")
"""Factors that are an engine's own; the transition is between both."""


def layer_for(files: Sequence[CalibrationFile], facts: Facts) -> Calibration:
    """One layer of several files for a job: a file says nothing of an engine or a device that it was not learned with.

    Where each file leaves something out, the interval is that of errors against published runs.
    """
    lacking = [_not_of(file, facts) for file in files]
    told = [_without(file, names) if names else file for file, names in zip(files, lacking, strict=True)]
    layer = layer_of(told)
    if any(lacking):
        layer = replace(layer, apart=_apart([belief_of(file) for file in told], lacking))
    return replace(layer, covariance=()) if all(lacking) else layer


def _apart(beliefs: Sequence[Belief], lacking: Sequence[Collection[str]]) -> tuple[str, ...]:
    """Factors in which two runs contradict each other that both say something of."""
    found = {
        name
        for i, j in combinations(range(len(beliefs)), 2)
        for name in contradictions(beliefs[i], beliefs[j])
        if name not in lacking[i] and name not in lacking[j]
    }
    return tuple(name for name in FACTORS if name in found)


def _not_of(file: CalibrationFile, facts: Facts) -> tuple[str, ...]:
    """Factors of a file that are of another device's or another engine's prices than the job's."""
    if file.device not in facts.device_types:
        return FACTORS
    sides = ((file.training, facts.training.name, OF_TRAINING), (file.generation, facts.generation.name, OF_GENERATION))
    names = {name for learned, runs, own in sides if _family(learned) != _family(runs) for name in own}
    return tuple(name for name in FACTORS if name in names)


def _family(engine: str) -> str:
    return Path(engine).name.partition("@")[0]


def _without(file: CalibrationFile, names: Collection[str]) -> CalibrationFile:
    """A file that says of ``names`` what was believed before, and where it was learned."""
    start = prior(file.prior_scale).covariance.tolist()
    left = [name not in names for name in FACTORS]

    def kept(rows: tuple[tuple[float, ...], ...]) -> tuple[tuple[float, ...], ...]:
        return tuple(
            tuple(value if left[i] and left[j] else start[i][j] for j, value in enumerate(row))
            for i, row in enumerate(rows)
        )

    calls = {call for name in names for call in CALLS.get(name, ())}
    elsewhere = len(names) == len(FACTORS)
    update = {
        "system": f"{file.system} on {file.device} with {file.training} and {file.generation}",
        "log_factors": tuple(v if keep else 0.0 for v, keep in zip(file.log_factors, left, strict=True)),
        "covariance": kept(file.covariance),
        "of_calls": None if file.of_calls is None else kept(file.of_calls),
        "seconds_per_sample": {
            key: s for key, s in file.seconds_per_sample.items() if not elsewhere and key not in calls
        },
        "peak": None if "training" in names else file.peak,
        "dispatch": 1.0 if elsewhere else file.dispatch,
    }
    return file.model_copy(update=update)
