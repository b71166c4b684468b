"""Protects the search for generation on a dedicated pool: brute force over the rows of both ends of the transfer."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mapper.candidates.table import RoleTable
from mapper.candidates.weight_sync import WeightSync
from mapper.execution_mode import GENERATOR, ExecutionMode
from mapper.model.instance import Instance
from mapper.search.disaggregated import best_with_transfers
from tests.builders import OTHER, TOY, toy_instance
from tests.draws import draws
from tests.mapper.enumeration import allowed, call_ticks, end_ticks, every_choice, least_ticks
from tests.work import HANGS_S

MODES = [
    ExecutionMode(dedicated_rollout=True),
    ExecutionMode("one-step-off", dedicated_rollout=True),
    ExecutionMode("async", dedicated_rollout=True, steps_in_flight=2, in_flight_updates=True),
]


class AnyPrice(WeightSync):
    """Transfers at prices drawn for each number of senders, kind and row: more senders may be cheaper or dearer."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def ticks(self, table: RoleTable, device_type: str, senders: int) -> np.ndarray:
        drawn = np.random.default_rng([self.seed, senders, device_type == OTHER]).integers(0, 40, 101)
        return drawn[table.durations_s["transition"].astype(np.int64)]

    def least(self, table: RoleTable, device_type: str, senders: np.ndarray) -> np.ndarray:
        return np.min([self.ticks(table, device_type, int(n)) for n in np.unique(senders)], axis=0)


def apart(seed: int, mode: ExecutionMode, gpus: int, other: int = 0, capacity: int = 40) -> Instance:
    roles = ("actor",) if other else ("actor", "reference")
    x = toy_instance(
        "grpo",
        roles,
        seed,
        num_gpus=gpus,
        second_kind=other,
        sizes=(1, 2, 4),
        most_rows=1,
        capacity_mib=capacity,
        mode=mode,
    )
    return replace(x, sync=AnyPrice(seed))


@settings(max_examples=draws(40))
@given(
    st.integers(0, 10_000),
    st.sampled_from(MODES),
    st.integers(2, 6),
    st.sampled_from([0, 0, 2, 4]),
    st.integers(10, 40),
)
def test_the_best_pair_of_ends_is_that_of_an_enumeration(
    seed: int, mode: ExecutionMode, gpus: int, other: int, capacity: int
) -> None:
    x = apart(seed, mode, gpus, other, capacity)
    least = least_ticks(x)
    choice, solution = best_with_transfers(x, 0, HANGS_S, None, None, 1)
    if least is None:
        assert (choice, solution.status) == (None, "infeasible")
        return
    assert choice is not None
    assert allowed(x, choice)
    assert end_ticks(x, choice) == solution.objective_ticks == solution.bound_ticks == least
    assert solution.status == "optimal"


@settings(max_examples=draws(25))
@given(st.integers(0, 10_000), st.sampled_from(MODES), st.integers(2, 6), st.integers(-4, 6), st.integers(0, 10_000))
def test_a_cutoff_is_kept_or_proven_out_of_reach_whatever_is_known(
    seed: int, mode: ExecutionMode, gpus: int, more: int, at: int
) -> None:
    """Where none is within, a known choice that is slower may be the answer; the bound says so."""
    x = apart(seed, mode, gpus)
    there = every_choice(x)
    if not there:
        return
    least, known = min(end_ticks(x, c) for c in there), there[at % len(there)]
    cutoff = least + more
    choice, solution = best_with_transfers(x, 0, HANGS_S, known, cutoff, 1)
    if least > cutoff:
        assert choice is None or end_ticks(x, choice) > cutoff
        assert solution.bound_ticks > cutoff
        return
    assert choice is not None
    assert end_ticks(x, choice) == solution.objective_ticks == solution.bound_ticks == least


@settings(max_examples=draws(15))
@given(st.integers(0, 10_000), st.sampled_from(MODES), st.integers(2, 6), st.integers(1, 9))
def test_out_of_reach_of_a_cutoff_the_bound_is_just_above_it(
    seed: int, mode: ExecutionMode, gpus: int, less: int
) -> None:
    x = apart(seed, mode, gpus)
    least = least_ticks(x)
    if least is None:
        return
    choice, solution = best_with_transfers(x, 0, HANGS_S, None, least - less, 1)
    assert (choice, solution.status, solution.bound_ticks) == (None, "infeasible", least - less + 1)


def test_a_known_choice_above_the_cutoff_is_not_called_the_best() -> None:
    x = apart(0, MODES[1], 2)
    there = sorted(every_choice(x), key=lambda choice: end_ticks(x, choice))
    least, worst = end_ticks(x, there[0]), there[-1]
    assert least < end_ticks(x, worst)
    _, solution = best_with_transfers(x, 0, HANGS_S, worst, least - 1, 1)
    assert solution.bound_ticks <= least


def test_by_hand_the_price_of_the_pair_decides() -> None:
    """Two trainers equally fast, on 1 and on 2 GPUs; only from 2 senders is the transfer to the faster engine cheap."""
    x = toy_instance("grpo", ("actor",), 0, num_gpus=4, sizes=(1, 2), most_rows=1, mode=MODES[0])
    rows = np.asarray([0, 1])
    tables = {role: table.take(rows) for role, table in x.tables.items()}
    ticks = {
        "actor": {"update_actor": np.asarray([10, 10])},
        GENERATOR: {"generate_sequences": np.asarray([9, 6]), "transition": np.asarray([0, 0])},
        "controller": {"compute_reward": np.asarray([0]), "compute_advantage": np.asarray([0])},
    }
    none = np.asarray([0, 0])
    need = dict.fromkeys(("actor", GENERATOR), none)
    x = replace(x, tables=tables, ticks=ticks, resident_mib=need, transient_mib=need, sync=TwoPrices())
    choice, solution = best_with_transfers(x, 0, HANGS_S, None, None, 1)
    assert choice is not None
    assert choice.rows == {"actor": 1, GENERATOR: 1}
    assert call_ticks(x, choice, "transition") == 1
    assert solution.objective_ticks == 1 + 6 + 10
    only_one = replace(x, gpus={TOY: 3}, budget=3)
    choice, solution = best_with_transfers(only_one, 0, HANGS_S, None, None, 1)
    assert choice is not None
    assert (choice.rows, solution.objective_ticks) == ({"actor": 1, GENERATOR: 0}, 2 + 9 + 10)


class TwoPrices(WeightSync):
    """From one sender 8 ticks to either engine; from two, 2 to the first and 1 to the second."""

    def __init__(self) -> None:
        pass

    def ticks(self, table: RoleTable, device_type: str, senders: int) -> np.ndarray:
        return np.full(len(table), 8) if senders == 1 else np.where(table.num_gpus == 1, 2, 1)

    def least(self, table: RoleTable, device_type: str, senders: np.ndarray) -> np.ndarray:
        return self.ticks(table, device_type, int(senders.max()))


@pytest.mark.parametrize("workers", [1, 2])
def test_a_row_of_the_answer_is_a_row_of_the_instance(workers: int) -> None:
    """Ranges search parts of the actor's table; what comes back is numbered as in the whole."""
    x = apart(5, MODES[1], 6)
    choice, solution = best_with_transfers(x, 3, HANGS_S, None, None, workers)
    assert choice is not None
    assert {role for role, row in choice.rows.items() if row < len(x.tables[role])} == set(x.tables)
    assert end_ticks(x, choice) == solution.objective_ticks
