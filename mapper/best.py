"""The best choice of one instance: a quick one, what cannot beat it pruned away, then CP-SAT to the proof."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from mapper.bounds import prune_beyond
from mapper.greedy import greedy
from mapper.makespan import makespan
from mapper.solver import Solution, solve
from mapper.variables import Choice

if TYPE_CHECKING:
    from mapper.instance import Instance


def best_choice(
    x: Instance, seed: int, time_limit_s: float, known: Choice | None = None, cutoff: int | None = None
) -> tuple[Choice | None, Solution]:
    """The best choice of an instance and its proof.

    ``known`` is a choice to start from if it beats the quick one. With ``cutoff`` only choices of at most so many
    ticks are of interest: where there are none, the answer may be none (status ``infeasible``) or any other choice,
    with a bound of ``cutoff + 1``. Raises ``InputError`` if time runs out with nothing known.
    """
    start, limit = _start(x, known)
    if cutoff is not None and (start is None or limit > cutoff):
        return _within(x, seed, time_limit_s, cutoff)
    if start is None:
        solution = solve(x, seed=seed, time_limit_s=time_limit_s)
        return solution.choice, solution
    pruned, kept = prune_beyond(x, limit)
    back = {role: {int(row): i for i, row in enumerate(rows)} for role, rows in kept.items()}
    inside = Choice(start.pools, {role: back[role][row] for role, row in start.rows.items()})
    solution = solve(pruned, seed=seed, time_limit_s=time_limit_s, start=inside, start_ticks=limit)
    assert solution.choice is not None, "the quick choice survives its own pruning"
    return Choice(solution.choice.pools, {r: int(kept[r][i]) for r, i in solution.choice.rows.items()}), solution


def ticks_of(x: Instance, choice: Choice) -> int:
    """Ticks of an iteration of ``choice``."""
    durations = {
        key: np.asarray(t[choice.rows.get(role, 0)], dtype=np.float64)
        for role, calls in x.ticks.items()
        for key, t in calls.items()
    }
    return int(makespan(x, tuple(roles for roles, _ in choice.pools), durations))


def fits(x: Instance, choice: Choice) -> bool:
    """Whether the pools of ``choice`` are there, and hold their rows and their memory."""
    if {roles for roles, _ in choice.pools} not in [set(p) for p in x.partitions]:
        return False
    if sum(n for _, n in choice.pools) > x.num_gpus or (x.equal_sizes and len({n for _, n in choice.pools}) > 1):
        return False
    return all(n in x.sizes[roles] and _pool_holds(x, roles, n, choice) for roles, n in choice.pools)


def _pool_holds(x: Instance, roles: tuple[str, ...], num_gpus: int, choice: Choice) -> bool:
    rows = {role: choice.rows[role] for role in roles}
    need = sum(int(x.resident_mib[r][i]) for r, i in rows.items()) + max(
        int(x.transient_mib[r][i]) for r, i in rows.items()
    )
    return need <= x.capacity_mib and all(int(x.tables[r].num_gpus[i]) <= num_gpus for r, i in rows.items())


def with_budget(x: Instance, num_gpus: int) -> Instance:
    """The same priced tables on at most ``num_gpus`` GPUs."""
    return replace(x, num_gpus=num_gpus, sizes={s: tuple(n for n in z if n <= num_gpus) for s, z in x.sizes.items()})


def gpus_of(choice: Choice) -> int:
    """GPUs of all pools of a choice."""
    return sum(n for _, n in choice.pools)


def _start(x: Instance, known: Choice | None) -> tuple[Choice | None, int]:
    """The better of the quick choice and the known one, if that fits, and its ticks."""
    start, limit = greedy(x)
    if known is None or not fits(x, known):
        return start, limit
    ticks = ticks_of(x, known)
    return (known, ticks) if start is None or ticks < limit else (start, limit)


def _within(x: Instance, seed: int, time_limit_s: float, cutoff: int) -> tuple[Choice | None, Solution]:
    """The best choice of at most ``cutoff`` ticks, with no known one to start from."""
    pruned, kept = prune_beyond(x, cutoff)
    solution = solve(pruned, seed=seed, time_limit_s=time_limit_s)
    if solution.choice is None:
        return None, replace(solution, bound_ticks=cutoff + 1)
    choice = Choice(solution.choice.pools, {r: int(kept[r][i]) for r, i in solution.choice.rows.items()})
    return choice, replace(solution, bound_ticks=min(solution.bound_ticks, cutoff + 1))
