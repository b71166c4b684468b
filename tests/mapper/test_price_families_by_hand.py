"""Protects which prices each family scales: by hand on one GPU and one node, exactly, and memory not at all."""

import pytest

from mapper.price_families import RESOURCES, Family, scaled
from simulator.facts import Facts
from simulator.plan.plan import Plan
from simulator.play.simulate import simulate
from tests.builders import make_facts, make_plan, tiny_facts

ROLES = ("actor", "critic", "reference", "reward")
ONE_GPU = tiny_facts("ppo", 1, 40.0)
NOTHING_S = 1e-9
"""Starts of calls are sums, so their differences are off by their last bits."""
NODES = make_facts(nodes=2, gpus_per_node=4)


def later(facts: Facts, plan: Plan, family: Family, factor: float) -> dict[str, float]:
    """Seconds that each call takes longer where the family's times are ``factor`` times as long, those that do."""
    before, after = simulate(plan, facts), simulate(plan, scaled(facts, {family: factor}))
    assert after.memory == before.memory
    more = {b.call: a.duration_s - b.duration_s for b, a in zip(before.spans, after.spans, strict=True)}
    return {call: s for call, s in more.items() if abs(s) > NOTHING_S}


def test_on_one_gpu_nothing_goes_over_a_link_but_what_the_controller_sends() -> None:
    """Sixteen samples of 1,024 tokens, 40 bytes a token, at 25 GB/s."""
    plan = make_plan(ONE_GPU, (ROLES,), (1,))
    assert later(ONE_GPU, plan, "nvlink", 2.0) == {}
    network = later(ONE_GPU, plan, "network", 2.0)
    assert network == {"compute_advantage": pytest.approx(16 * 1024 * 40 / 25e9, rel=1e-6)}


def test_host_time_is_the_engines_steps_and_launches() -> None:
    """Two waves of 512 steps: eight layers at 0.75 ms and eight sequences at 45 us each; the trainer has none."""
    plan = make_plan(ONE_GPU, (ROLES,), (1,), slots=8)
    per_step = 8 * 0.75e-3 + 8 * 45e-6
    assert later(ONE_GPU, plan, "host", 2.0) == {"generate_sequences": pytest.approx(2 * 512 * per_step)}
    assert later(ONE_GPU, plan, "host", 3.0) == {"generate_sequences": pytest.approx(2 * 2 * 512 * per_step)}


def test_arithmetic_and_memory_stretch_every_pass_over_a_model() -> None:
    plan = make_plan(ONE_GPU, (ROLES,), (1,))
    passes = {call.key for call in ONE_GPU.dataflow.calls if call.kind in ("generate", "forward", "train")}
    for family in ("compute", "memory"):
        assert set(later(ONE_GPU, plan, family, 2.0)) == passes


@pytest.mark.parametrize("family", ["nvlink", "network", "host"])
def test_what_nothing_hides_is_longer_in_proportion(family: Family) -> None:
    """Of this trainer nothing runs beside communication, so three times as long is twice as much more."""
    plan = make_plan(NODES, (ROLES,), (8,), tp=4)
    twice, thrice = (later(NODES, plan, family, factor) for factor in (2.0, 3.0))
    assert twice
    assert thrice == pytest.approx({call: 2 * s for call, s in twice.items()}, rel=1e-6)


@pytest.mark.parametrize("family", RESOURCES)
def test_no_call_gets_shorter(family: Family) -> None:
    plan = make_plan(NODES, (ROLES,), (8,), tp=4)
    assert min(later(NODES, plan, family, 2.0).values()) > 0
