"""Protects the bound of a search cut short: no plan with a layout that was not priced is below it."""

from dataclasses import replace

import numpy as np
import pytest

from mapper.candidates.floors import Unpriced
from mapper.model.instance import Instance, make_instance
from mapper.model.unpriced import in_other_ticks, unpriced_ticks
from mapper.problem import make_problem
from mapper.search.prune import restricted
from tests.builders import TINY, tiny_facts
from tests.mapper.enumeration import end_ticks, every_choice


def small() -> Instance:
    """An actor that trains and generates, and a reference."""
    return make_instance(make_problem(tiny_facts("grpo", 4, 12.0, roles={"actor": TINY, "reference": TINY})))


def used(x: Instance, role: str) -> np.ndarray:
    return np.asarray(x.tables[role].layouts.weights.num_gpus)


def hidden(x: Instance, role: str, numbers: tuple[int, ...]) -> tuple[Instance, Unpriced]:
    """The instance without a role's rows on these numbers of GPUs, and the least that is known of them."""
    table, gpus = x.tables[role], used(x, role)
    least = {key: np.asarray([s[gpus == n].min() for n in numbers]) for key, s in table.durations_s.items()}
    unpriced = Unpriced(np.zeros(len(numbers), dtype=np.int64), np.asarray(numbers), least)
    left = restricted(x, {role: np.flatnonzero(~np.isin(gpus, numbers))})
    return replace(left, tables=left.tables | {role: replace(left.tables[role], unpriced=unpriced)}), unpriced


@pytest.mark.parametrize(
    ("role", "numbers"), [("actor", (1,)), ("actor", (2,)), ("reference", (1, 2)), ("actor", (4,))]
)
def test_no_choice_with_a_hidden_row_is_below_the_bound(role: str, numbers: tuple[int, ...]) -> None:
    x = small()
    with_hidden = [c for c in every_choice(x) if used(x, role)[c.rows[role]] in numbers]
    least = min(end_ticks(x, choice) for choice in with_hidden)
    left, _ = hidden(x, role, numbers)
    bound = unpriced_ticks(left, left.tables)
    assert bound is not None
    assert x.floor_ticks - len(x.flow.calls) <= bound <= least  # what is known is rounded down


def test_the_fewer_gpus_they_use_the_higher_the_bound() -> None:
    """Layouts on few GPUs take long, however fast others are: calls of the same role on more GPUs are not theirs."""
    x = small()
    few, most = (unpriced_ticks(y, y.tables) for y, _ in (hidden(x, "actor", (n,)) for n in (1, 4)))
    assert few is not None
    assert most is not None
    assert few > most > 0


def test_without_anything_left_there_is_no_bound() -> None:
    x = small()
    assert unpriced_ticks(x, x.tables) is None
    assert in_other_ticks(None, 1e-6, 1e-5) is None
    assert in_other_ticks(1005, 1e-6, 1e-5) == 100
