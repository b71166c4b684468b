"""Micro-batches counted in tokens: as plans say them, what they need, how many there are, and who can run them."""

from dataclasses import replace

import numpy as np
import pytest

from mapper.request import SearchRequest
from mapper.search.find_plan import find_plan
from profiles.workload import LengthDistribution, Workload
from simulator.cost import memory
from simulator.cost.micro_batches import num_micro_batches
from simulator.cost.token_quantiles import ALWAYS
from simulator.facts import Facts
from simulator.feasibility import check_plan
from simulator.plan.layouts import Layouts
from simulator.plan.plan import ParallelLayout, Plan, TokenBudget
from simulator.play.simulate import simulate
from tests.builders import TINY, make_facts, make_plan, replace_role, workload

TAIL = LengthDistribution("lognormal", 400.0, 4096)


def _facts(training: str = "megatron-core@0.16", response: int | LengthDistribution = TAIL, **changes: object) -> Facts:
    work = workload(64, 512, response, minibatches=2)
    facts = make_facts("grpo", TINY, gpus_per_node=4, work=work, training=training, generation="vllm@0.32")
    return replace(facts, **changes)


def _plan(facts: Facts, **changes: object) -> Plan:
    plan = make_plan(facts, (("actor",),), (4,))
    training = plan.role("actor").training
    assert training is not None
    return replace_role(plan, "actor", training=training.model_copy(update=changes))


def test_a_plan_says_its_unit_and_reads_back() -> None:
    layout = ParallelLayout(dp=4, micro_batch=TokenBudget(tokens=16384))
    assert layout.model_dump()["micro_batch"] == {"tokens": 16384}
    assert ParallelLayout.model_validate_json(layout.model_dump_json()) == layout
    assert Layouts.of([layout, ParallelLayout(dp=2, micro_batch=3)]).record(0) == layout
    assert (layout.token_budget, ParallelLayout(dp=1, micro_batch=3).token_budget) == (16384, None)
    with pytest.raises(ValueError, match="16384 tokens"):
        _ = layout.micro_samples


@pytest.mark.parametrize(("budget", "num"), [(1024, 8), (2048, 4), (3000, 3), (10**6, 1), (512, 8)])
def test_equal_lengths_need_as_many_as_hold_their_tokens(budget: int, num: int) -> None:
    """Eight samples of 1,024 tokens; a budget below one sample has each alone."""
    work = Workload(32, 1, 512, LengthDistribution.fixed(512))
    layouts = Layouts.of([ParallelLayout(dp=4, micro_batch=TokenBudget(tokens=budget))])
    assert num_micro_batches(work, layouts, np.asarray([8.0])).tolist() == [num]


def test_the_number_of_budgets_is_that_of_drawn_steps() -> None:
    work = Workload(256, 1, 512, TAIL)
    layouts = Layouts.of([ParallelLayout(dp=4, micro_batch=TokenBudget(tokens=n)) for n in (4608, 9216)])
    lengths = 512 + TAIL.quantile(np.random.default_rng(0).random((4000, 4, 16)))
    tokens = np.repeat(lengths.sum(axis=(1, 2))[:, None] / 4, 4, axis=1)  # ranks are dealt equally many
    for budget, found in zip((4608, 9216), num_micro_batches(work, layouts, np.full(2, 16.0)), strict=True):
        assert found == pytest.approx(np.ceil(tokens / budget).mean(), rel=0.02)


def test_memory_is_bounded_by_the_budget_and_the_longest_sample() -> None:
    facts = _facts()
    shape = facts.roles["actor"].shape

    def need(unit: int | TokenBudget, level: float = ALWAYS) -> float:
        layouts = Layouts.of([ParallelLayout(dp=4, micro_batch=unit)])
        return float(memory.total(memory.training_bytes(facts, shape, layouts, True, level))[0])

    longest = facts.workload.padded_length
    assert need(TokenBudget(tokens=2 * longest)) == pytest.approx(need(2))
    assert need(TokenBudget(tokens=100)) == pytest.approx(need(1))
    assert need(TokenBudget(tokens=10**7)) == pytest.approx(need(8))  # all that a rank has
    assert need(TokenBudget(tokens=2 * longest), 0.95) == pytest.approx(need(TokenBudget(tokens=2 * longest)))


@pytest.mark.parametrize(
    ("training", "changes", "message"),
    [
        ("megatron-core@0.6", {}, "counts the samples of a micro-batch"),
        ("megatron-core@0.16", {"pp": 2, "dp": 2, "vpp": 2}, "a budget of tokens has not"),
    ],
)
def test_who_cannot_fill_a_budget(training: str, changes: dict[str, int], message: str) -> None:
    facts = _facts(training)
    plan = _plan(facts, micro_batch=TokenBudget(tokens=8192), **changes)
    assert any(message in violation.message for violation in check_plan(plan, facts))


def test_packs_are_no_budgets() -> None:
    facts = _facts()
    packed = replace(facts, implementation=replace(facts.implementation, packed_tokens=8192))
    plan = _plan(packed, micro_batch=TokenBudget(tokens=8192))
    assert any("a micro-batch is a number of packs" in v.message for v in check_plan(plan, packed))


def test_lengths_that_vary_are_dealt_to_budgets_and_equal_ones_are_counted() -> None:
    result = find_plan(SearchRequest(_facts(), runners_up=False))
    training = result.plan.role("actor").training
    assert training is not None and training.token_budget is not None
    assert check_plan(result.plan, _facts()) == []
    assert simulate(result.plan, _facts()).iteration_s == pytest.approx(result.iteration_s, rel=1e-4)
    counted = find_plan(SearchRequest(_facts(response=512), runners_up=False)).plan.role("actor").training
    assert counted is not None and counted.token_budget is None
