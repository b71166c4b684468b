"""Protects the prices of candidates: a row costs what ``simulate`` says of a whole plan with it, transfers included."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from mapper.candidates.weight_sync import WeightSync
from mapper.execution_mode import GENERATOR, ExecutionMode
from mapper.problem import make_problem
from profiles.hardware import ClusterGroup
from profiles.store import load_device
from simulator.cost.role_layouts import layouts_of
from simulator.facts import DeviceGroup
from simulator.play.simulate import build_timeline, price_calls
from tests.builders import make_facts, make_plan, replace_role, with_engine_pool
from tests.mapper.tables import role_table

if TYPE_CHECKING:
    from simulator.facts import Facts
    from simulator.plan.plan import Plan

A100, H100 = "a100-80gb-sxm", "h100-80gb-sxm"
ROLES = ("actor", "critic", "reference", "reward")


def seconds(plan: Plan, facts: Facts) -> dict[str, float]:
    """How long each call of a plan runs, whether its other roles fit beside it or not."""
    return {span.call: span.duration_s for span in build_timeline(plan, facts, price_calls(plan, facts)).spans}


@pytest.mark.parametrize("role", ROLES)
def test_every_call_of_a_row_takes_what_it_takes_in_a_plan(role: str) -> None:
    facts = make_facts(nodes=2)
    table = role_table(make_problem(facts), role)
    plan = make_plan(facts, (ROLES,), (16,), tp=4)
    for row in np.random.default_rng(0).permutation(len(table))[:12].tolist():
        training, inference, generation = table.records(row)
        other = replace_role(plan, role, training=training, inference=inference, generation=generation)
        spans = seconds(other, facts)
        for key, prices in table.durations_s.items():
            assert prices[row] == pytest.approx(spans[key], rel=1e-12), key
        used = int(layouts_of(other.role(role)).weights.num_gpus[0])
        assert table.num_gpus[row] == min(n for n in (1, 2, 4, 8, 16) if n >= used)


@pytest.fixture(params=["vllm@0.3.1", "vllm@0.32"])
def mixed(request: pytest.FixtureRequest) -> Facts:
    device = load_device(H100)
    other = DeviceGroup(ClusterGroup.of(device.spec, 2), device)
    return replace(make_facts("grpo", nodes=3, generation=request.param), others=(other,))


@pytest.mark.parametrize("home", [A100, H100])
@pytest.mark.parametrize("senders", [1, 6, 16])
def test_a_transfer_takes_what_it_takes_between_the_pools_of_a_plan(mixed: Facts, home: str, senders: int) -> None:
    """From so many GPUs of either kind to engines of either kind."""
    table = role_table(make_problem(mixed, mode=ExecutionMode(dedicated_rollout=True)), GENERATOR)
    ticks = WeightSync(mixed, 1e-6).ticks(table, home, senders)
    assert set(table.device_type.tolist()) == {0, 1}
    plan = with_engine_pool(make_plan(mixed, (mixed.dataflow.roles,), (senders,)), 8)
    for row in np.linspace(0, len(table) - 1, 8).astype(int).tolist():
        engine, there = table.records(row)[2], mixed.device_types[int(table.device_type[row])]
        assert engine is not None
        pools = tuple(p.model_copy(update={"device": there if p.name == "G" else home}) for p in plan.pools)
        other = replace_role(plan.model_copy(update={"pools": pools}), "actor", generation=engine)
        assert ticks[row] * 1e-6 == pytest.approx(seconds(other, mixed)["transition"], abs=1e-6)
