"""Protects mixed clusters: what runs on a pool is priced, and must fit, on that pool's kind of GPU and no other."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from profiles.errors import InputError
from profiles.hardware import ClusterGroup
from profiles.store import load_device
from simulator.cost.weight_sync import weight_sync_cost
from simulator.facts import DeviceGroup, Facts
from simulator.feasibility import check_plan
from simulator.plan.layouts import GenerationLayouts
from simulator.play.simulate import simulate
from simulator.pool_memory import pool_memory
from tests.builders import make_facts, make_plan, with_engine_pool

if TYPE_CHECKING:
    from simulator.plan.plan import Plan

A100, H100 = "a100-80gb-sxm", "h100-80gb-sxm"


def kind(name: str, nodes: int) -> DeviceGroup:
    device = load_device(name)
    return DeviceGroup(ClusterGroup.of(device.spec, nodes), device)


@pytest.fixture
def mixed() -> Facts:
    """Eight A100 first, sixteen H100 beside them."""
    return replace(make_facts("ppo", nodes=1), others=(kind(H100, 2),))


def on_kinds(plan: Plan, kinds: tuple[str, ...]) -> Plan:
    """The plan's pools on GPUs of ``kinds``, each from the first GPU of its kind."""
    pools = tuple(p.model_copy(update={"device": k, "first_gpu": 0}) for p, k in zip(plan.pools, kinds, strict=True))
    return plan.model_copy(update={"pools": pools})


def split(facts: Facts, kinds: tuple[str, str]) -> Plan:
    return on_kinds(make_plan(facts, (("actor", "reference"), ("critic", "reward")), (8, 8), tp=8, slots=128), kinds)


def test_the_same_job_seen_from_each_kind(mixed: Facts) -> None:
    there = mixed.on(H100)
    assert (mixed.device_types, there.device_types) == ((A100, H100), (H100, A100))
    assert (there.device.spec.name, there.group.num_gpus, there.num_gpus) == (H100, 16, 24)
    assert there.on(A100).facts_hash == mixed.facts_hash
    assert mixed.facts_hash != make_facts("ppo", nodes=1).facts_hash, "a plan knows which kinds it was made for"
    with pytest.raises(KeyError):
        mixed.on("b200-sxm")


def test_a_kind_is_listed_once() -> None:
    with pytest.raises(InputError, match="give each kind of GPU once"):
        replace(make_facts("ppo", nodes=1), others=(kind(A100, 1),))


def test_every_call_is_priced_on_the_kind_it_runs_on(mixed: Facts) -> None:
    alone = {name: replace(mixed.on(name), others=()) for name in (A100, H100)}
    timeline = simulate(split(mixed, (H100, A100)), mixed)
    for span in timeline.spans:
        if span.role == "controller":
            continue
        name = H100 if span.role in ("actor", "reference") else A100
        sets = (("actor", "reference", "critic", "reward"),)
        single = make_plan(alone[name], sets, (8,), tp=8, slots=128)
        expected = next(s for s in simulate_unchecked(single, alone[name]) if s.call == span.call)
        assert span.duration_s == pytest.approx(expected.duration_s), span.call


def simulate_unchecked(plan: Plan, facts: Facts):  # type: ignore[no-untyped-def]
    """Spans of a plan that need not fit."""
    from simulator.play.simulate import build_timeline, price_calls

    return build_timeline(on_kinds(plan, (facts.group.device,)), facts, price_calls(plan, facts)).spans


def test_the_faster_kind_is_faster(mixed: Facts) -> None:
    """Training by a factor, generation by what is not host time."""
    for call, factor in (("update_actor", 1.8), ("generate_sequences", 1.02)):
        seconds = [
            next(s.duration_s for s in simulate(split(mixed, kinds), mixed).spans if s.call == call)
            for kinds in ((H100, A100), (A100, H100))
        ]
        assert seconds[1] > factor * seconds[0]


def test_pools_of_two_kinds_never_overlap_and_of_one_do(mixed: Facts) -> None:
    assert check_plan(split(mixed, (H100, A100)), mixed) == []
    found = check_plan(split(mixed, (H100, H100)), mixed)
    assert [v.message for v in found] == ["pools A and B both use GPU 0"]


def test_an_unknown_kind_and_too_many_of_one_are_named(mixed: Facts) -> None:
    unknown = check_plan(split(mixed, ("b200-sxm", A100)), mixed)
    assert [v.message for v in unknown] == [f"pool A wants b200-sxm, the cluster has {A100}, {H100}"]
    plan = on_kinds(make_plan(mixed, (("actor", "reference"), ("critic", "reward")), (8, 16), tp=8), (H100, A100))
    assert any("pool B ends at GPU 16, the cluster has 8" in v.message for v in check_plan(plan, mixed))


def test_memory_is_that_of_the_pools_kind(mixed: Facts) -> None:
    spec = load_device(H100).spec
    large = DeviceGroup(ClusterGroup.of(spec, 2), load_device(H100).with_spec(replace(spec, memory_bytes=2**40)))
    facts = replace(mixed, others=(large,))
    plan = split(facts, (H100, A100))
    assert [pool_memory(plan, p, facts).capacity_bytes for p in plan.pools] == [2**40, facts.memory_capacity_bytes]


def test_weights_cross_at_the_slower_sides_rate(mixed: Facts) -> None:
    """A100 nodes have 25 GB/s here, H100 nodes more: either way the A100 side paces, and no NVLink is shared."""
    engine = GenerationLayouts.of([with_engine_pool(make_plan(mixed, (("actor",),), (4,)), 4).roles[0].generation])
    shape, there = mixed.roles["actor"].shape, mixed.on(H100)
    assert there.group.inter_node_bytes_per_s > mixed.group.inter_node_bytes_per_s

    def comm(trainer: Facts, receiver: Facts) -> float:
        return float(weight_sync_cost(trainer, shape, np.asarray([8]), engine, "bf16", receiver).comm.s[0])

    rate = 0.5 * there.group.inter_node_bytes_per_s * there.training.network_efficiency  # half a node receives
    slow = mixed.group.inter_node_bytes_per_s * mixed.training.network_efficiency
    whole, latency = 2.0 * shape.num_params, mixed.device.spec.inter_node_latency_s
    assert comm(mixed, there) == pytest.approx(whole / min(rate, slow) + latency)
    assert comm(mixed, mixed) > comm(mixed, there), "half an A100 node takes in slower still"
