"""Protects the engine's candidates: each costs and needs what ``simulate`` says of its plan, and none is missing."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING

import numpy as np
import pytest

from mapper.candidates.engine import (
    EngineCandidates,
    EnginePrices,
    bytes_apart,
    engine_rows,
    priced_engine,
    same_shards,
)
from mapper.pins import Pin
from mapper.search_options import USUAL
from profiles.workload import LengthDistribution
from simulator.feasibility import check_plan
from simulator.plan.layouts import GenerationLayouts
from simulator.play.simulate import simulate
from simulator.pool_memory import pool_memory
from simulator.speculation import Speculation
from tests.builders import TINY, make_plan, replace_role, tiny_facts, with_engine_pool, workload

if TYPE_CHECKING:
    from mapper.candidates.engine import KeptPrices
    from simulator.facts import Facts
    from simulator.plan.plan import Plan

FACTS = tiny_facts("grpo", 4, 20.0)
DRAFTING = replace(FACTS, speculation=Speculation((0.8, 0.6), draft=TINY))


def listed(facts: Facts, gpus: tuple[int, ...], prune: bool = False, pin: Pin | None = None) -> EngineCandidates:
    """Engines of the actor on each of these numbers of GPUs, that drain between two iterations."""
    used = np.asarray(gpus, dtype=np.int64)
    return engine_rows(EnginePrices(facts, "actor", None), used, used, pin or Pin("actor"), USUAL, prune)


def plan_with(facts: Facts, rows: EngineCandidates, row: int) -> Plan:
    """The trainer on four GPUs of one rank each, and the engine of a row on the same."""
    plan = make_plan(facts, (facts.dataflow.roles,), (4,))
    return replace_role(plan, "actor", generation=rows.engine.record(row))


def test_a_row_costs_what_the_plan_with_it_takes() -> None:
    rows = listed(FACTS, (1, 2, 4))
    assert len(rows.seconds) > 20
    for row in range(0, len(rows.seconds), 5):
        spans = {span.call: span.duration_s for span in simulate(plan_with(FACTS, rows, row), FACTS).spans}
        assert rows.seconds[row] == pytest.approx(spans["generate_sequences"], rel=1e-12)


@pytest.mark.parametrize("facts", [FACTS, DRAFTING], ids=["plain", "with a draft model"])
def test_a_row_needs_what_the_plan_with_it_has_on_its_fullest_gpu(facts: Facts) -> None:
    """On a dedicated pool an engine runs or receives new weights, beside the reserve and nothing else."""
    rows = listed(facts, (2,))
    apart = bytes_apart(facts, "actor", rows)
    for row in range(0, len(rows.seconds), 3):
        plan = with_engine_pool(make_plan(facts, (facts.dataflow.roles,), (2,)), 2)
        plan = replace_role(plan, "actor", generation=rows.engine.record(row))
        used = pool_memory(plan, plan.pool("G"), facts).used_bytes
        assert used == pytest.approx(apart[row] + facts.training.memory_reserve_bytes, abs=8)  # classes round up


def test_a_running_engine_holds_its_cache_and_its_working_memory() -> None:
    rows = listed(FACTS, (4,))
    assert np.array_equal(rows.running_bytes, rows.engine.kv_cache_bytes + rows.working_bytes)
    for row in range(0, len(rows.seconds), 5):
        plan = plan_with(FACTS, rows, row)
        assert check_plan(plan, FACTS) == [], "the cache that it is given holds the longest sequence"


def test_every_degree_that_uses_all_gpus_is_there() -> None:
    """Four KV heads and eight layers split into any power of two up to four."""
    rows = listed(FACTS, (4,))
    found = {(int(d), int(t), int(p)) for d, t, p in zip(rows.engine.dp, rows.engine.tp, rows.engine.pp, strict=True)}
    assert found == {d for d in product((1, 2, 4), repeat=3) if d[0] * d[1] * d[2] == 4}
    one = {int(n) for n in rows.engine.max_num_seqs[(rows.engine.tp == 4) & (rows.engine.pp == 1)]}
    assert {1, 16} <= one, "a replica of all GPUs has the 16 samples at once, or one after the other"
    assert max(one) == 16


def test_each_row_knows_which_number_of_gpus_it_was_asked_for() -> None:
    rows = listed(FACTS, (1, 4, 2))
    assert rows.engine.num_gpus.tolist() == [(1, 4, 2)[i] for i in rows.asked.tolist()]
    assert set(rows.asked.tolist()) == {0, 1, 2}


def test_pruned_are_exactly_the_rows_that_another_of_the_same_shards_beats() -> None:
    """Long tails: some numbers of sequences in flight need as much cache as more of them, and take longer."""
    facts = replace(FACTS, workload=workload(26, 512, LengthDistribution("lognormal", 100.0, 2048), minibatches=2))
    whole, kept = listed(facts, (2, 4)), listed(facts, (2, 4), prune=True)
    key = list(zip(whole.engine.num_gpus, whole.engine.tp, whole.engine.pp, strict=True))
    value = list(zip(whole.seconds, whole.running_bytes, strict=True))
    best = {
        (*key[i], *value[i])
        for i in range(len(key))
        if not any(
            key[i] == key[j] and value[j] != value[i] and value[j][0] <= value[i][0] and value[j][1] <= value[i][1]
            for j in range(len(key))
        )
    }
    engine = kept.engine
    found = list(zip(engine.num_gpus, engine.tp, engine.pp, kept.seconds, kept.running_bytes, strict=True))
    assert sorted(found) == sorted(best)
    assert len(found) < len(key)
    assert kept.num_priced == whole.num_priced


def test_what_does_not_fit_beside_nothing_is_no_candidate() -> None:
    room = FACTS.memory_room_bytes
    roomy = listed(FACTS, (1, 2, 4))
    least, most = roomy.running_bytes.min(), roomy.running_bytes.max()
    assert most < room
    short = tiny_facts("grpo", 4, (float(least + most) / 2 + FACTS.training.memory_reserve_bytes) / 2**30)
    rows = listed(short, (1, 2, 4))
    assert len(rows.seconds) == np.count_nonzero(roomy.running_bytes <= (least + most) / 2)
    assert rows.num_priced == roomy.num_priced


def test_a_pin_leaves_its_rows_alone() -> None:
    rows, pinned = listed(FACTS, (4,)), listed(FACTS, (4,), pin=Pin("actor", generation={"tp": 2}))
    two = rows.take(np.flatnonzero(rows.engine.tp == 2))
    assert np.array_equal(pinned.seconds, two.seconds)
    assert set(pinned.engine.tp.tolist()) == {2}


def test_engines_that_never_drain_are_priced_as_their_plan_is() -> None:
    """Two iterations of samples in the engines, on two GPUs beside the trainer's."""
    engine = GenerationLayouts(*np.asarray([[1, 1], [2, 1], [1, 2], [4, 16]]))
    rows = priced_engine(FACTS, "actor", engine, 2)
    for row in (0, 1):
        plan = with_engine_pool(make_plan(FACTS, (FACTS.dataflow.roles,), (2,)), 2, schedule="async", steps_in_flight=2)
        plan = replace_role(plan, "actor", generation=rows.engine.record(row))
        assert check_plan(plan, FACTS) == []
        spans = {span.call: span.duration_s for span in simulate(plan, FACTS).spans}
        assert rows.seconds[row] == pytest.approx(spans["generate_sequences"], rel=1e-12)


def test_a_layout_has_one_price_however_often_and_in_whatever_order_it_is_listed() -> None:
    """Prices that are kept are those of pricing anew, row by row; each listing counts all of its rows."""
    kept, rows = EnginePrices(FACTS, "actor", None), listed(FACTS, (1, 2, 4)).engine
    rng = np.random.default_rng(0)
    for _ in range(4):
        some = rows.take(rng.integers(0, len(rows), 30))
        found, anew = kept.rows(some), priced_engine(FACTS, "actor", some, None)
        assert np.array_equal(found.seconds, anew.seconds)
        assert np.array_equal(found.running_bytes, anew.running_bytes)
        assert [found.engine.record(i) for i in range(30)] == [anew.engine.record(i) for i in range(30)]
        assert found.num_priced == 30


def test_shards_are_the_same_where_gpus_and_degrees_are() -> None:
    degrees = list(product((1, 2, 4), repeat=3))
    engine = GenerationLayouts(*np.asarray([(*d, b) for d in degrees for b in (1, 8)], dtype=np.int64).T)
    of = {}
    for number, dp, tp, pp in zip(same_shards(engine), engine.dp, engine.tp, engine.pp, strict=True):
        of.setdefault(int(number), set()).add((int(dp * tp * pp), int(tp), int(pp)))
    assert all(len(alike) == 1 for alike in of.values())
    assert len(of) == len({(d * t * p, t, p) for d, t, p in degrees})


@pytest.mark.parametrize("steady_steps", [None, 2])
def test_prices_kept_from_another_number_of_nodes_are_those_asked_for_anew(steady_steps: int | None) -> None:
    small, large = (replace(FACTS, group=replace(FACTS.group, nodes=nodes)) for nodes in (2, 8))
    kept: KeptPrices = {}
    for facts, gpus in ((large, (2, 8)), (small, (1, 2, 4)), (large, (1, 2, 4, 8, 16))):
        engine = listed(facts, gpus).engine
        mine = EnginePrices(facts, "actor", steady_steps, kept).rows(engine)
        anew = EnginePrices(facts, "actor", steady_steps).rows(engine)
        assert len(engine) > 5
        for name in ("seconds", "weight_bytes", "working_bytes", "running_bytes"):
            assert getattr(mine, name) == pytest.approx(getattr(anew, name), rel=1e-12)
        assert mine.engine.record(0) == anew.engine.record(0)
        assert mine.num_priced == anew.num_priced == len(engine)
