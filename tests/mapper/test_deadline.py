"""Protects the time limit: it covers listing and pricing, what is left then is a plan, and the bound stays a bound.

A clock that moves on whenever it is asked stands in for the machine's: work is counted, not timed.
"""

from dataclasses import replace

import numpy as np
import pytest

from mapper import deadline as deadlines
from mapper.analysis.frontier import frontier
from mapper.candidates import engine as engine_rows
from mapper.candidates import listing, stepwise
from mapper.candidates.floors import least_seconds
from mapper.candidates.listing import bounding_tables
from mapper.candidates.stepwise import price_in_turn, steps_of
from mapper.candidates.table import RoleTable
from mapper.deadline import NEVER, Deadline, TimeUpError
from mapper.execution_mode import GENERATOR, SYNC, ExecutionMode
from mapper.model.instance import make_instance
from mapper.objective import Objective
from mapper.problem import Problem, make_problem
from mapper.request import SearchRequest
from mapper.search.find_plan import NOT_PRICED, find_plan
from mapper.search.infeasible import explain_infeasible
from mapper.search_options import SearchOptions
from profiles.workload import LengthDistribution
from simulator.facts import Facts
from simulator.feasibility import check_plan
from tests.builders import MOE, make_facts, tiny_facts, workload
from tests.mapper.tables import role_table
from tests.work import Clock

ASYNC = ExecutionMode("async", dedicated_rollout=True, steps_in_flight=2)
LONG_TAIL = LengthDistribution("lognormal", 500.0, 2048)


def grpo(nodes: int = 3, model: str = "llama-2-7b") -> Facts:
    return make_facts("grpo", model, nodes=nodes, work=workload(192, 512, LONG_TAIL, minibatches=2))


@pytest.fixture
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every number of GPUs is a step of its own."""
    monkeypatch.setattr(stepwise, "STEP_ENTRIES", 1)


def hurry(monkeypatch: pytest.MonkeyPatch, asked_s: float = 100.0) -> None:
    """Whoever asks for the time is told that so much of it has passed."""
    monkeypatch.setattr(deadlines, "time", Clock(asked_s).module)


class CountedSteps:
    """Counts its steps."""

    def __init__(self, num_early: int, num_steps: int) -> None:
        self.num_early, self.num_left, self.taken = num_early, num_steps, 0

    def price_next(self, deadline: Deadline) -> None:
        self.num_left, self.taken = self.num_left - 1, self.taken + 1


@pytest.mark.parametrize(
    ("looks", "taken"),
    [
        (0, [2, 2]),  # two steps of each, whatever the time
        (1, [3, 2]),  # early steps of each in turn
        (3, [4, 3]),
        (4, [5, 3]),  # then all others in turn
        (5, [5, 4]),
        (99, [9, 5]),
    ],
)
def test_steps_are_taken_in_turn_until_time_is_up(
    monkeypatch: pytest.MonkeyPatch, looks: int, taken: list[int]
) -> None:
    monkeypatch.setattr(deadlines, "time", Clock(1.0).module)
    monkeypatch.setattr(stepwise, "EARLY_S", 0.0)
    steps = [CountedSteps(4, 9), CountedSteps(3, 5)]
    price_in_turn(steps, Deadline.after(looks + 0.5))
    assert [one.taken for one in steps] == taken


def test_early_steps_may_begin_a_little_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deadlines, "time", Clock(1.0).module)
    monkeypatch.setattr(stepwise, "EARLY_S", 4.0)
    steps = CountedSteps(20, 30)
    price_in_turn([steps], Deadline.after(0.5))
    assert steps.taken == 2 + 4


def test_steps_hold_each_entry_once_and_each_number_of_gpus_whole() -> None:
    num_gpus = np.random.default_rng(0).integers(1, 60, 500)
    steps, num_early = steps_of(num_gpus)
    assert sorted(np.concatenate(steps).tolist()) == list(range(500))
    assert all(np.all(np.diff(step) > 0) for step in steps)
    numbers = [set(num_gpus[step].tolist()) for step in steps]
    assert sum(map(len, numbers)) == len(set(num_gpus.tolist()))
    assert set.union(*numbers[:num_early]) == {1, 2, 4, 8, 16, 32, 59}
    many = np.repeat([1, 2, 4, 8, 16, 24], 300)
    assert [int(many[step][0]) for step in steps_of(many)[0]] == [24, 8, 4, 2, 1, 16]
    assert steps_of(np.zeros(0, dtype=np.int64))[1] == 1  # nothing is listed: one step of nothing


def scoring_apart() -> Facts:
    """The critic may score in another layout than it trains in."""
    facts = tiny_facts("ppo", 4, 6.0)
    return replace(facts, training=replace(facts.training, scoring_layouts=True))


JOBS = {
    "grpo": lambda: make_problem(grpo()),
    "offload": lambda: make_problem(tiny_facts("ppo", 4, 6.0), options=SearchOptions(offload=True)),
    "copies": lambda: make_problem(scoring_apart(), options=SearchOptions(scoring_layouts=True)),
    "own pool": lambda: make_problem(grpo(2), mode=ASYNC),
    "coarse": lambda: make_problem(make_facts("grpo", nodes=17, work=workload(512, 512, 512, minibatches=2))),
}


def same(one: RoleTable, other: RoleTable) -> bool:
    columns = ("device_type", "num_gpus", "resident_bytes", "transient_bytes", "offload")
    records = all(one.records(row) == other.records(row) for row in range(0, len(one), 7))
    return records and all(
        np.array_equal(a, b)
        for a, b in [
            *((getattr(one, name), getattr(other, name)) for name in columns),
            *((one.durations_s[key], other.durations_s[key]) for key in other.durations_s),
            (one.credit.unlisted, other.credit.unlisted),
        ]
    )


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.long] * (n == "coarse")) for n in JOBS])
def test_how_the_steps_are_cut_changes_nothing(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """To the bit, in the same order."""
    problem = JOBS[name]()
    monkeypatch.setattr(stepwise, "STEP_ENTRIES", 10**9)
    monkeypatch.setattr(engine_rows, "AT_ONCE", 10**9)
    monkeypatch.setattr(listing, "PAIRS_AT_ONCE", 10**9)
    whole = bounding_tables(problem, problem.roles)
    monkeypatch.setattr(stepwise, "STEP_ENTRIES", 2)
    monkeypatch.setattr(engine_rows, "AT_ONCE", 61)
    monkeypatch.setattr(listing, "PAIRS_AT_ONCE", 2000)
    stepped = bounding_tables(problem, problem.roles)
    for role, table in whole.items():
        assert len(stepped[role]) == len(table) > 0
        assert stepped[role].num_priced == table.num_priced
        assert same(stepped[role], table), role


def test_an_engine_is_priced_once_however_often_it_is_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    priced: list[tuple[int, ...]] = []
    whole = engine_rows.priced_engine

    def counted(*arguments: object) -> object:
        x = arguments[2]
        priced.extend(zip(x.dp.tolist(), x.tp.tolist(), x.pp.tolist(), x.max_num_seqs.tolist(), strict=True))
        return whole(*arguments)

    monkeypatch.setattr(engine_rows, "priced_engine", counted)
    table = role_table(make_problem(make_facts("grpo", nodes=24)), "actor")
    assert len(priced) == len(set(priced))
    assert 0 < len(priced) < table.num_priced / 10


CUT = {
    "grpo": lambda: SearchRequest(grpo()),
    "ppo": lambda: SearchRequest(tiny_facts("ppo", 8, 24.0)),
    "moe": lambda: SearchRequest(grpo(2, MOE)),
    "async": lambda: SearchRequest(grpo(2), modes=(ASYNC,)),
    "modes": lambda: SearchRequest(grpo(2), modes=(SYNC, ASYNC)),
    "gpu time": lambda: SearchRequest(tiny_facts("ppo", 8, 24.0), objective=Objective("throughput_per_gpu")),
    "fewest": lambda: SearchRequest(tiny_facts("ppo", 8, 24.0), objective=Objective("gpus", (), 1e5)),
}


@pytest.mark.usefixtures("small_steps")
@pytest.mark.parametrize("name", CUT)
def test_a_limit_that_passes_while_pricing_leaves_a_plan_and_a_bound(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    request = replace(CUT[name](), runners_up=False)
    best = find_plan(request)
    assert best.status == "optimal"
    hurry(monkeypatch)
    cut = find_plan(request)
    assert cut.num_priced < best.num_priced
    assert not check_plan(cut.plan, request.facts)
    assert cut.status == "feasible"
    assert 0 <= cut.value_bound <= best.value * (1 + 1e-9) <= cut.value * (1 + 2e-9)
    assert NOT_PRICED in cut.open_because
    if request.objective.goal == "time":
        assert 0 < cut.bound_s <= best.iteration_s <= cut.iteration_s
        assert cut.gap == pytest.approx((cut.iteration_s - cut.bound_s) / cut.iteration_s)


def test_a_step_of_very_many_pairs_is_cut_short_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stepwise, "STEP_ENTRIES", 10**9)
    monkeypatch.setattr(listing, "PAIRS_AT_ONCE", 200)
    request = SearchRequest(grpo(), runners_up=False)
    best = find_plan(request)
    hurry(monkeypatch)
    cut = find_plan(request)
    assert cut.num_priced < best.num_priced
    assert cut.status == "feasible"
    assert NOT_PRICED in cut.open_because
    assert 0 < cut.bound_s <= best.iteration_s <= cut.iteration_s


@pytest.mark.usefixtures("small_steps")
def test_runners_up_take_no_more_time_when_it_is_up(monkeypatch: pytest.MonkeyPatch) -> None:
    request = SearchRequest(grpo())
    best = find_plan(request)
    hurry(monkeypatch)
    cut = find_plan(request)
    fastest = {other.placement: other.iteration_s for other in best.runners_up}
    for other in cut.runners_up:
        assert not check_plan(other.plan, request.facts)
        assert other.iteration_s >= fastest.get(other.placement, 0.0)


@pytest.mark.usefixtures("small_steps")
def test_time_that_is_up_before_a_plan_is_found_is_said_and_not_called_infeasible(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Four pools, and only what takes half of the cluster or all was priced."""
    request = SearchRequest(tiny_facts("ppo", 8, 24.0), placement="standalone", time_limit_s=90.0)
    assert find_plan(request).status == "optimal"
    hurry(monkeypatch)
    with pytest.raises(TimeUpError, match=r"time limit of 90 s was up before a plan .* give a longer time limit"):
        find_plan(request)


@pytest.mark.usefixtures("small_steps")
def test_a_frontier_cut_short_bounds_what_was_not_priced(monkeypatch: pytest.MonkeyPatch) -> None:
    request = SearchRequest(tiny_facts("ppo", 8, 24.0))
    whole = frontier(request)
    assert all(point.proven for point in whole)
    hurry(monkeypatch)
    for point in frontier(request):
        assert not point.proven
        least = min(p.iteration_s for p in whole if p.num_gpus <= point.up_to_gpus)
        assert point.bound_s <= least <= point.iteration_s * (1 + 1e-9)


@pytest.mark.usefixtures("small_steps")
def test_why_nothing_fits_is_left_out_when_time_is_up() -> None:
    problem = make_problem(make_facts("grpo", "llama-2-70b", nodes=2, work=workload(64)))
    assert "the fewest GPUs that would do" in str(explain_infeasible(problem))
    told = str(explain_infeasible(problem, Deadline(0.0)))
    assert told.startswith("no plan fits on 16 x a100-80gb-sxm; time was up before it was known why")
    assert "--time-limit" in told


def test_without_a_limit_nothing_is_left_unpriced() -> None:
    x = make_instance(make_problem(grpo()), deadline=NEVER)
    assert x.unpriced_ticks is None
    assert Deadline.after(1e9).share(0.5).left_s == pytest.approx(5e8, rel=1e-3)
    assert NEVER.share(0.5) is NEVER
    assert NEVER.left_s == float("inf")
    assert not NEVER.is_over()


def with_implementation(facts: Facts, **changes: object) -> Facts:
    return replace(facts, implementation=replace(facts.implementation, **changes))


FLOORS = {
    "ppo": lambda: make_problem(make_facts("ppo")),
    "fixed": lambda: make_problem(make_facts("grpo", nodes=2)),
    "long tail": lambda: make_problem(grpo()),
    "moe": lambda: make_problem(grpo(2, MOE)),
    "async": lambda: make_problem(grpo(2), mode=ASYNC),
    "lora": lambda: make_problem(with_implementation(grpo(2), lora_rank=16)),
    "newer engines": lambda: make_problem(
        make_facts(
            "grpo",
            "qwen2.5-7b",
            nodes=2,
            device="h100-80gb-sxm",
            training="fsdp@2.13",
            generation="vllm@0.32",
            work=workload(256, 512, LONG_TAIL, minibatches=2),
        )
    ),
    "tiny": lambda: make_problem(tiny_facts("remax", 4, 8.0)),
}


@pytest.mark.parametrize("name", FLOORS)
def test_no_layout_is_below_the_floor(name: str) -> None:
    """What bounds the layouts that were not priced bounds all that can be."""
    problem: Problem = FLOORS[name]()
    facts = problem.facts
    for role in problem.roles:
        table = role_table(problem, role, prune=False)
        least = least_seconds(facts, problem.flow, role, problem.mode, int(table.num_gpus.max()))
        assert set(least) == set(table.durations_s)
        for key, seconds in table.durations_s.items():
            assert 0.0 <= least[key] <= seconds.min(), (role, key)
        assert any(s > 0 for s in least.values()) or role == GENERATOR
