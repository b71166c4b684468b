"""Protects the bound over degrees that are not listed: with every degree listed, nothing beats it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from mapper.candidates import layouts
from mapper.candidates.relaxation import Credit, last_degrees
from mapper.model.instance import make_instance
from mapper.objective import Objective
from mapper.pins import Pin
from mapper.problem import make_problem
from mapper.request import SearchRequest
from mapper.search.find_plan import find_plan
from tests.builders import TINY, make_facts, workload
from tests.mapper.tables import bounding_table, role_table

if TYPE_CHECKING:
    from profiles.workload import Workload
    from simulator.facts import Facts


def wide(work: Workload | None = None, memory_gib: float = 80.0) -> Facts:
    """Tiny models on 48 GPUs: as many data-parallel ranks are worth trying."""
    return make_facts(
        "grpo",
        nodes=6,
        roles={"actor": TINY, "reference": TINY},
        memory_bytes=int(memory_gib * 2**30),
        work=work or workload(96, 512, 512, minibatches=2),
        reserve_bytes=1e9,
    )


def test_the_last_degree_before_the_next_listed_one() -> None:
    listed = [(1, 1, 1, 1, 1), (4, 1, 1, 1, 1), (4, 1, 1, 1, 2), (9, 1, 1, 1, 1), (2, 2, 1, 1, 1)]
    assert last_degrees(listed).tolist() == [3, 8, 8, 9, 2]


def test_up_to_every_all_degrees_stand_for_themselves() -> None:
    x = make_instance(make_problem(wide()))
    assert x.relaxed() is None


@pytest.mark.parametrize(
    ("memory_gib", "objective"),
    [
        (80.0, Objective()),
        (4.4, Objective()),
        (4.4, Objective("throughput_per_gpu")),
        pytest.param(80.0, Objective("throughput_per_gpu"), marks=pytest.mark.long),
    ],
)
def test_the_bound_covers_what_is_left_out(
    monkeypatch: pytest.MonkeyPatch, memory_gib: float, objective: Objective
) -> None:
    """Coarse from 4 ranks on: the best of all degrees is between the coarse bound and the coarse plan."""
    facts = wide(memory_gib=memory_gib)
    whole = find_plan(SearchRequest(facts, objective=objective, runners_up=False))
    monkeypatch.setattr(layouts, "EVERY", 4)
    coarse = find_plan(SearchRequest(facts, objective=objective, runners_up=False))
    assert len(role_table(make_problem(facts), "actor", prune=False)) > 0
    assert make_instance(make_problem(facts)).relaxed() is not None
    assert coarse.value_bound <= whole.value * (1 + 1e-9) <= coarse.value * (1 + 2e-9)
    assert coarse.gap < 0.05


WIDE_ENGINE = (Pin("actor", training={"tp": 1, "pp": 1}, generation={"tp": 8, "pp": 2}),)


def lacking() -> Facts:
    """Replicas of 16 GPUs beside ranks of one: of 40 to 56 ranks only 48 hold whole replicas, and 48 is not listed."""
    facts = wide(workload(80, 512, 512, minibatches=1))
    return replace(facts, group=replace(facts.group, nodes=7))


def test_an_engine_that_no_listed_degree_has_the_gpus_for_is_in_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = lacking()
    whole = find_plan(SearchRequest(facts, runners_up=False, pins=WIDE_ENGINE, placement="colocate"))
    monkeypatch.setattr(layouts, "EVERY", 4)
    coarse = find_plan(SearchRequest(facts, runners_up=False, pins=WIDE_ENGINE, placement="colocate"))
    degrees = [found.plan.role("actor").training for found in (whole, coarse)]
    assert [layout.dp for layout in degrees if layout is not None] == [48, 32]
    assert coarse.bound_s <= whole.iteration_s < coarse.iteration_s
    assert coarse.bound_s == pytest.approx(whole.iteration_s, rel=1e-3)
    assert coarse.status == "feasible"


def test_rows_of_unlisted_degrees_are_in_no_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layouts, "EVERY", 4)
    problem = make_problem(lacking(), pins=WIDE_ENGINE)
    x = make_instance(problem)
    whole, listed = bounding_table(problem, "actor"), role_table(problem, "actor")
    assert 0 < len(listed) < len(whole)
    assert not np.any(listed.credit.unlisted)
    assert np.all(whole.credit.unlisted[len(listed) :])
    relaxed = x.relaxed()
    assert relaxed is not None
    assert len(x.tables["actor"]) == len(listed)
    assert len(relaxed.tables["actor"]) == len(whole)
    assert np.array_equal(relaxed.tables["actor"].num_gpus[: len(listed)], listed.num_gpus), "the same rows first"


def test_every_listed_row_is_relaxed_to_no_less_than_the_rows_it_stands_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Row by row against the full listing: same layouts but for the degree, time and memory no better than granted."""
    facts = replace(wide(), algorithm="grpo")
    every = role_table(make_problem(facts), "reference", prune=False)
    monkeypatch.setattr(layouts, "EVERY", 4)
    table = role_table(make_problem(facts), "reference", prune=False)
    granted, weights, others = table.relaxed(), table.layouts.weights, every.layouts.weights
    seen = 0
    for row in range(0, len(table), 7):
        last = int(table.credit.last_dp[row])
        same = (others.tp == weights.tp[row]) & (others.pp == weights.pp[row]) & (others.dp > weights.dp[row])
        same &= (others.dp <= last) & (others.micro_batch == weights.micro_batch[row])
        for other in np.flatnonzero(same):
            seen += 1
            assert every.resident_bytes[other] >= granted.resident_bytes[row] - 1
            assert every.durations_s["compute_ref_log_prob"][other] >= (
                granted.durations_s["compute_ref_log_prob"][row] * (1 - 1e-9)
            )
    assert seen > 5


def test_slack_of_several_tables_keeps_its_rows() -> None:
    one = Credit(np.asarray([3]), np.asarray([2.0]), {"a": np.asarray([1.0])})
    both = Credit.joined([one, Credit.none(2)])
    assert both.num_bytes.tolist() == [2.0, 0.0, 0.0]
    assert both.seconds["a"].tolist() == [1.0, 0.0, 0.0]
    assert both.any
    assert not both.take(np.asarray([1, 2])).any
