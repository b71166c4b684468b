"""The best choice of one instance: of one pool price or two pools' transfers, on GPUs or on ranks that share a host."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mapper.search.disaggregated import best_with_transfers
from mapper.search.host_contention import best_beside_neighbours
from mapper.search.proof import best_as_priced

if TYPE_CHECKING:
    from mapper.model.instance import Instance
    from mapper.model.solver import Solution
    from mapper.model.variables import Choice


def best_choice(
    instance: Instance,
    seed: int,
    time_limit_s: float,
    known: Choice | None = None,
    cutoff: int | None = None,
    workers: int = 1,
) -> tuple[Choice | None, Solution]:
    """The best choice of an instance and its proof.

    ``known`` is a choice to start from if it beats the quick one. With ``cutoff`` only choices of at most so many
    ticks are of interest: where there are none, the answer may be none (status ``infeasible``) or any other choice,
    with a bound of ``cutoff + 1``. ``workers``: threads of the solver. Raises ``InputError`` if time runs out with
    nothing known.
    """
    if instance.neighbours is not None:
        return best_beside_neighbours(instance, seed, time_limit_s, known, cutoff, workers, best_alone)
    return best_alone(instance, seed, time_limit_s, known, cutoff, workers)


def best_alone(
    instance: Instance, seed: int, time_limit_s: float, known: Choice | None, cutoff: int | None, workers: int
) -> tuple[Choice | None, Solution]:
    """As ``best_choice``, with calls that take as long as they do alone."""
    if instance.sync is not None:
        return best_with_transfers(instance, seed, time_limit_s, known, cutoff, workers)
    return best_as_priced(instance, seed, time_limit_s, known, cutoff, workers)
