"""Protects that exports lose nothing: the files of any plan, read back as their system reads them, are the plan that
was said to be written, field by field, and take its time."""

import pytest

from benchmarks.exports.drawn import round_trips
from simulator.feasibility import check_plan
from simulator.systems.targets import TARGETS


def laid_out(plan):
    """Roles and layouts, with the roles of a pool in place of its letter."""
    return [
        entry.model_copy(
            update={"pool": ", ".join(plan.pool_of(entry.role).roles), "generation_pool": entry.separate_generation}
        )
        for entry in plan.roles
    ]


def require_lossless(trip):
    ours, back = trip.written, trip.read
    assert laid_out(back.plan) == laid_out(ours.plan)
    assert {pool.roles: pool.num_gpus for pool in back.plan.pools} == {
        pool.roles: pool.num_gpus for pool in ours.plan.pools
    }
    for name in ("schedule", "steps_in_flight", "in_flight_updates"):
        assert getattr(back.plan, name) == getattr(ours.plan, name), name
    assert back.facts.workload == ours.facts.workload
    assert check_plan(back.plan, back.facts) == []
    assert trip.off < 1e-3


@pytest.mark.parametrize("target", TARGETS)
def test_drawn_plans_come_back_from_every_system(target):
    trips = list(round_trips(target, 4))
    assert len(trips) == 4
    for trip in trips:
        require_lossless(trip)


@pytest.mark.long
@pytest.mark.parametrize("target", TARGETS)
def test_two_hundred_drawn_plans_come_back_from_every_system(target):
    trips = list(round_trips(target, 200))
    assert len(trips) == 200
    for trip in trips:
        require_lossless(trip)
