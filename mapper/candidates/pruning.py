"""Which rows of a role's table are kept: those that no other row dominates, and what else the search has a use for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mapper.candidates.engine import same_shards, spread_of
from mapper.candidates.pareto import non_dominated, non_dominated_by_group
from mapper.candidates.plain import plain_rows, stages
from mapper.candidates.table import degrees_of, to_mib
from mapper.execution_mode import GENERATOR

if TYPE_CHECKING:
    from mapper.candidates.table import RoleTable
    from mapper.problem import Problem
    from profiles.records import Floats, Ints


def pruned_rows(table: RoleTable, problem: Problem, device_type: str, keep_apart: bool = False) -> Ints:
    """Rows that no other row dominates, and what else the search has a use for.

    Where plain plans are looked for, plain rows that no plain one with as many GPUs and stages dominates, since what is
    plain depends on these; where other plans are, rows that none with the same degrees does.
    """
    best = _not_dominated(table, keep_apart)
    if problem.options.prefer_plain is not None:
        plain = np.flatnonzero(plain_rows(problem.facts.on(device_type), table) & ~table.credit.unlisted)
        left = table.take(plain)
        training, engine = stages(left)
        key = _shards_of(left) if keep_apart else (left.num_gpus * 2**12 + training) * 2**12 + engine
        best = np.union1d(best, plain[non_dominated_by_group(key, _compared(left))])
    if problem.every_degree and table.role != GENERATOR:
        listed = np.flatnonzero(~table.credit.unlisted)
        left = table.take(listed)
        _, key = np.unique(degrees_of(left.layouts), axis=0, return_inverse=True)
        best = np.union1d(best, listed[non_dominated_by_group(key.reshape(-1), _compared(left))])
    return np.asarray(best, dtype=np.int64)


def _shards_of(table: RoleTable) -> Ints:
    """A number for each row that is equal where all is that generation and transition depend on."""
    weights = table.layouts.weights
    key = ((weights.num_gpus * 1024 + weights.tp) * 1024 + weights.pp) * 64 + weights.cp * 4 + weights.zero_stage
    return np.asarray(key * 4 + table.offload, dtype=np.int64)  # away, parameters are not there to generate from


def _not_dominated(table: RoleTable, keep_apart: bool) -> Ints:
    """Rows that no other row dominates in GPUs, every call's time and both memory needs.

    A pool fits if for each role what that one keeps and adds, plus what the others keep, fits; so what counts is what
    a role keeps, and that plus what it adds (in the whole MiB that the search adds up).
    ``keep_apart`` compares only rows of the same GPUs, tensor and pipeline degrees and offload, which generation and
    transition depend on.
    """
    values = _compared(table)
    if table.credit.any:  # a row that stands for others must not make way for one that is only better by itself
        values = np.where(table.credit.unlisted[:, None], np.inf, values)  # nor any for one that is in no plan
        values = np.concatenate([values, _compared(table.relaxed())], axis=1)
    if keep_apart:
        return non_dominated_by_group(_shards_of(table), values)
    if table.role == GENERATOR:  # what the transfer of weights depends on
        engine = table.layouts.generation
        assert engine is not None, "the generator generates"
        return non_dominated_by_group(same_shards(engine) * 2**8 + spread_of(engine), values)
    rows = non_dominated_by_group(table.num_gpus, values)
    with_gpus = np.concatenate([table.num_gpus[rows, None].astype(np.float64), values[rows]], axis=1)
    return np.asarray(rows[non_dominated(with_gpus)], dtype=np.int64)


def _compared(table: RoleTable) -> Floats:
    resident = to_mib(table.resident_bytes)
    return np.stack([*_merged_durations(table), resident, resident + to_mib(table.transient_bytes)], axis=1)


def _merged_durations(table: RoleTable) -> list[Floats]:
    """Durations by call, the transition added to the generation that always follows it directly on the same pool."""
    out = dict(table.durations_s)
    if {"transition", "generate_sequences"} <= set(out):
        del out["transition"]
        out["generate_sequences"] = out["generate_sequences"] + table.durations_s["transition"]
    return list(out.values())
