"""Protects what is kept between calls: nobody gets another's result, no price depends on who asked before."""

from dataclasses import replace

import numpy as np
import pytest

from profiles.models.catalogue import load_model
from simulator.cost import trainer_layer
from simulator.cost.call_cost import Cost
from simulator.cost.compute import Batch
from simulator.kept import Kept
from simulator.plan.layouts import Layouts
from simulator.plan.plan import ParallelLayout
from tests.builders import make_facts

DENSE, MIXTURE = load_model("llama-3.1-8b"), load_model("qwen3-30b-a3b")


def test_the_oldest_goes_first() -> None:
    kept, asked = Kept(most=2), list[str]()

    def ask(key: str) -> str:
        return kept.of(key, lambda: asked.append(key) or key.upper())  # type: ignore[func-returns-value]

    assert [ask(key) for key in "aabac"] == ["A", "A", "B", "A", "C"]
    assert asked == ["a", "b", "c"]
    assert ask("a") == "A" and asked[-1] == "a"  # it made room for the third


def _batch(tokens: float = 4096.0, sequences: float = 2.0, length: float = 2048.0, sustained: bool = True) -> Batch:
    return Batch(*(np.asarray([value]) for value in (tokens, sequences, length)), sustained=sustained)


def _layouts(**degrees: int) -> Layouts:
    return Layouts.of([ParallelLayout(dp=8, **degrees)])


ASKED = [
    (MIXTURE, _layouts(), _batch(), "bf16"),
    (DENSE, _layouts(), _batch(), "bf16"),
    (MIXTURE, _layouts(tp=2), _batch(), "bf16"),
    (MIXTURE, _layouts(cp=2), _batch(), "bf16"),
    (MIXTURE, _layouts(ep=8), _batch(), "bf16"),
    (MIXTURE, _layouts(), _batch(tokens=4000.0), "bf16"),
    (MIXTURE, _layouts(), _batch(sequences=3.0), "bf16"),
    (MIXTURE, _layouts(), _batch(length=1024.0), "bf16"),
    (MIXTURE, _layouts(), _batch(sustained=False), "bf16"),
    (MIXTURE, _layouts(), _batch(), "fp8_block"),
]


def _seconds(costs: tuple[Cost, Cost]) -> list[list[float]]:
    return [part.by_basis_s.ravel().tolist() for cost in costs for part in (cost.compute, cost.comm, cost.exposed)]


@pytest.mark.parametrize("order", [1, -1])
def test_a_layer_has_its_own_price_after_any_other(order: int) -> None:
    """Each differs from the first in one thing that a layer's price depends on; facts that priced nothing agree."""
    facts = make_facts(nodes=2, device="h200-sxm")
    first = [_seconds(trainer_layer.layer_costs(facts, *asked)) for asked in ASKED[::order]]
    again = [_seconds(trainer_layer.layer_costs(facts, *asked)) for asked in ASKED[::order]]
    fresh = [_seconds(trainer_layer.layer_costs(replace(facts), *asked)) for asked in ASKED[::order]]
    assert first == again == fresh


def test_many_candidates_are_priced_as_one_is() -> None:
    """A list that is too long to be kept has the prices that each of its members has alone."""
    facts = make_facts(nodes=2, device="h200-sxm")
    tps = [1, 2, 4, 8] * (trainer_layer.MOST_KEPT // 2)
    many = Layouts.of([ParallelLayout(dp=1, tp=tp) for tp in tps])
    whole, _ = trainer_layer.layer_costs(facts, DENSE, many, _batch())
    for i in range(4):
        one, _ = trainer_layer.layer_costs(facts, DENSE, _layouts(tp=tps[i]), _batch())
        np.testing.assert_array_equal(whole.time.by_basis_s[:, i], one.time.by_basis_s[:, 0])
