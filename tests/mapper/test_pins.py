"""Protects pins: a pinned search is the free search over fewer rows, and a pin that cannot hold is named."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mapper.candidates.layouts import BUDGETS, cross, token_budgets
from mapper.model.instance import make_instance
from mapper.pins import Pin, matching
from mapper.problem import make_problem
from mapper.request import SearchRequest
from mapper.search.find_plan import find_plan
from profiles.errors import InfeasibleError, InputError, UnknownNameError
from profiles.workload import LengthDistribution
from simulator.plan.plan import TokenBudget
from tests.builders import TINY, make_facts, tiny_facts, workload
from tests.draws import draws
from tests.mapper.exhaustive import exhaustive
from tests.mapper.tables import role_table


def test_every_row_agrees_with_its_pin_and_is_a_row_of_the_free_table() -> None:
    facts = make_facts(nodes=2)
    pin = Pin("actor", training={"tp": 8, "pp": 1, "micro_batch": (1, 2)}, generation={"tp": 2, "pp": 1})
    table = role_table(make_problem(facts, pins=(pin,)), "actor")
    assert len(table)
    assert table.layouts.training is not None
    assert table.layouts.generation is not None
    assert set(table.layouts.training.tp) == {8}
    assert set(table.layouts.training.micro_batch) <= {1, 2}
    assert set(table.layouts.generation.tp) == {2}
    other = role_table(make_problem(facts), "critic")
    assert len(role_table(make_problem(facts, pins=(pin,)), "critic")) == len(other)


def test_a_micro_batch_is_pinned_in_tokens_or_in_samples() -> None:
    tail = workload(64, 512, LengthDistribution("lognormal", 300.0, 2048))
    facts = make_facts("grpo", TINY, gpus_per_node=4, work=tail, training="megatron-core@0.16")

    budgets = token_budgets(facts, ())
    assert budgets == tuple(n * 2560 for n in BUDGETS)
    listed, _ = cross([(2, 1, 1, 1, 1)], (1,), (0,), np.asarray([32]), budgets=(*budgets, 16384))

    def units(*value: int | TokenBudget) -> set[tuple[int, int]]:
        left = listed.take(matching(Pin("actor", training={"micro_batch": value}), "training", listed))
        return set(zip(left.micro_batch.tolist(), left.token_budget.tolist(), strict=True))

    assert units(TokenBudget(tokens=16384)) == {(1, 16384)}
    assert units(1) == {(1, 0)}
    assert units(4, TokenBudget(tokens=2560)) == {(4, 0), (1, 2560)}
    pin = Pin("actor", training={"micro_batch": TokenBudget(tokens=5000)})
    training = role_table(make_problem(facts, pins=(pin,)), "actor").layouts.training
    assert training is not None and set(training.token_budget.tolist()) == {5000}


def test_a_trainer_that_counts_samples_has_no_budgets() -> None:
    tail = workload(64, 512, LengthDistribution("lognormal", 300.0, 2048))
    facts = make_facts("grpo", TINY, gpus_per_node=4, work=tail)  # of Megatron-Core 0.6
    layouts = role_table(make_problem(facts), "actor", prune=False).layouts.training
    assert layouts is not None and not layouts.token_budget.any()
    with pytest.raises(InputError, match=r"megatron-core@0\.6 counts the samples of a micro-batch, not their tokens"):
        make_problem(facts, pins=(Pin("actor", training={"micro_batch": TokenBudget(tokens=4096)}),))


@given(tp=st.sampled_from([1, 2]), slots=st.sampled_from([None, 2]), pool=st.sampled_from([None, 1, 2]))
@settings(max_examples=draws(12), deadline=None)
def test_a_pin_never_makes_an_iteration_shorter(tp: int, slots: int | None, pool: int | None) -> None:
    facts = tiny_facts("grpo", 2, roles={"actor": "llama-3.2-1b"}, memory_gib=60.0)
    pin = Pin("actor", {"tp": tp}, generation={} if slots is None else {"max_num_seqs": slots}, num_gpus=pool)
    free = find_plan(SearchRequest(facts, runners_up=False)).iteration_s
    try:
        pinned = find_plan(SearchRequest(facts, runners_up=False, pins=(pin,)))
    except InfeasibleError as error:
        assert "pin" in str(error)
        return
    assert pinned.iteration_s >= free * (1 - 1e-9)
    entry = pinned.plan.role("actor")
    assert entry.training is not None
    assert entry.training.tp == tp


def test_the_oracle_agrees_with_a_pinned_search() -> None:
    facts = tiny_facts("ppo", 2)
    pins = (Pin("actor", {"recompute": "full"}), Pin("critic", {"tp": 2}))
    x = make_instance(make_problem(facts, pins=pins))
    choice, ticks = exhaustive(x)
    assert choice is not None
    found = find_plan(SearchRequest(facts, pins=pins, runners_up=False))
    assert found.iteration_s == pytest.approx(ticks * x.tick_s, abs=x.rounding_s)


def test_stages_of_at_least_a_machine_is_algorithm_2_s_bound() -> None:
    facts = make_facts(nodes=2)
    table = role_table(make_problem(facts, pins=(Pin("critic", min_gpus_per_stage=8),)), "critic")
    assert table.layouts.training is not None
    assert set(table.layouts.training.pp) <= {1, 2}


@pytest.mark.parametrize(
    ("pin", "message"),
    [
        (Pin("critik"), "unknown pinned role 'critik'"),
        (Pin("actor", {"tpp": 8}), "unknown pinned training field 'tpp'"),
        (Pin("reward", {"tp": 8}), "pin of reward: it has no training stage"),
        (Pin("actor", {"tp": 0}), "training tp must be a whole number"),
        (Pin("actor", {"recompute": "some"}), "unknown recompute level 'some'"),
        (Pin("actor", num_gpus=3), "a pool of 3 GPUs; known sizes: 1, 2, 4, 8"),
    ],
)
def test_a_pin_of_what_is_not_there_is_refused(pin: Pin, message: str) -> None:
    with pytest.raises((InputError, UnknownNameError), match=message):
        make_problem(make_facts(), pins=(pin,))


def test_an_infeasible_pin_is_named_with_its_limit() -> None:
    with pytest.raises(InfeasibleError, match=r"the pin of actor: training tp 3 .* cannot be split 3 ways"):
        find_plan(SearchRequest(make_facts(), pins=(Pin("actor", {"tp": 3}),)))
    with pytest.raises(InfeasibleError, match=r"the pin of actor: training dp 9 .* divides into these degrees"):
        find_plan(SearchRequest(make_facts(), pins=(Pin("actor", {"dp": 9}),)))
    big = make_facts("grpo", "llama-2-13b", nodes=2)
    with pytest.raises(InfeasibleError, match=r"the pin of actor: 2 GPUs .* it needs at least .* GiB per GPU"):
        find_plan(SearchRequest(big, pins=(Pin("actor", num_gpus=2),)))


def test_of_pins_that_do_not_fit_only_the_one_at_fault_is_named() -> None:
    facts = make_facts("ppo", "llama-3.2-1b")
    pins = (Pin("actor", num_gpus=8), Pin("critic", num_gpus=8))
    assert find_plan(SearchRequest(facts, placement="colocate", pins=pins, runners_up=False)).plan.num_gpus == 8
    with pytest.raises(InfeasibleError, match=r"no plan fits the pin of critic: 8 GPUs .* with placement split"):
        find_plan(SearchRequest(facts, placement="split", pins=pins))
    assert replace(pins[0], num_gpus=4).num_gpus == 4
