"""Protects what is refused before anything starts, and the degrees that a plan gives its ranks."""

import pytest

from executor.controller.pools import (
    CONTROLLER_POOL,
    ResourcePool,
    degrees_of,
    generate_ahead,
    generator_degrees_of,
    require_devices,
    require_kinds,
    require_supported,
    resource_pools,
    scoring_degrees_of,
)
from profiles.errors import InfeasibleError, InputError, NotYetError
from simulator.plan.groups import Degrees
from tests.executor.plans import colocated, generating_apart, plan


def changed(role="actor", **changes):
    base = colocated("ppo", (1, 2, 2))
    entry = base.role(role)
    for stage in ("training", "inference", "generation"):
        if isinstance(changes.get(stage), dict):
            changes[stage] = getattr(entry, stage).model_copy(update=changes[stage])
    roles = tuple(e.model_copy(update=changes) if e.role == role else e for e in base.roles)
    return base.model_copy(update={"roles": roles})


def test_pools_are_the_plans_and_one_for_the_controller():
    split = plan("ppo", {"A": (("actor", "reference"), (1, 2, 2)), "B": (("critic", "reward"), (1, 1, 2))})
    assert resource_pools(split) == (
        ResourcePool("A", 4, kind="cpu", first_device=0, together=2),
        ResourcePool("B", 2, kind="cpu", first_device=4),
        ResourcePool(CONTROLLER_POOL, 1, on_device=False),
    )


def test_too_few_devices_is_one_error_that_offers_scale_down():
    require_devices(colocated("ppo", (1, 2, 2)), 4)
    with pytest.raises(InfeasibleError, match="asks for 4 devices, there are 3; --scale-down runs") as caught:
        require_devices(colocated("ppo", (1, 2, 2)), 3)
    assert caught.value.fewest_gpus == 4


def two_kinds():
    made = generating_apart(colocated("ppo", (1, 2, 2)), (1, 1, 2))
    kinds = zip(made.pools, ("h100-80gb-sxm", "a100-80gb-sxm"), strict=True)
    return made.model_copy(update={"pools": tuple(pool.model_copy(update={"device": kind}) for pool, kind in kinds)})


def test_a_cluster_that_names_its_devices_must_have_those_of_the_plan():
    plan = two_kinds()
    require_kinds(plan, {"h100-80gb-sxm": 4, "a100-80gb-sxm": 2}, 2)
    require_kinds(plan, {}, 1)  # one machine has one kind, and is asked for no name
    asked = "the plan asks for 2 x a100-80gb-sxm, 4 x h100-80gb-sxm, the nodes of the cluster declare "
    with pytest.raises(
        InfeasibleError, match=asked + r"1 x a100-80gb-sxm, 8 x h100-80gb-sxm; a node that has a100-80gb"
    ):
        require_kinds(plan, {"h100-80gb-sxm": 8, "a100-80gb-sxm": 1}, 2)
    with pytest.raises(InfeasibleError, match=asked + r"8 x a100-80gb-sxm; a node that has h100-80gb-sxm says so"):
        require_kinds(plan, {"a100-80gb-sxm": 8}, 2)
    with pytest.raises(
        InputError, match=r"the 2 nodes of the cluster do not say .* ray start --resources=.*h100-80gb-sxm"
    ):
        require_kinds(plan, {}, 2)
    require_kinds(colocated("ppo"), {}, 2)


def test_degrees_of_training_and_generation():
    entry = colocated("ppo", (2, 2, 1), generation=(1, 2)).role("actor")
    assert degrees_of(entry, 4) == Degrees(2, 2, 1, 1, 2)
    assert degrees_of(colocated("ppo", (2, 2, 1)).role("critic"), 4) == Degrees(2, 2, 1, 2, 2)


def test_context_ranks_fill_a_pool_with_the_others():
    entry = colocated("ppo", (1, 2, 2), generation=(1, 1)).role("actor")
    shared = entry.training.model_copy(update={"dp": 1, "cp": 2})
    scores = entry.model_copy(update={"training": shared, "inference": entry.training})
    assert degrees_of(scores, 4) == Degrees(1, 2, 1, 1, 1, c=2)
    assert scoring_degrees_of(scores) == Degrees(1, 2, 2, 1, 2)
    alone = entry.model_copy(update={"training": None, "generation": None, "inference": shared})
    assert degrees_of(alone, 8) == Degrees(1, 2, 2, 1, 2, c=2)
    with pytest.raises(InputError, match=r"actor: dp 1 x tp 2 x pp 1 x cp 2 does not fill pool A of 8 devices"):
        degrees_of(scores, 8)


def test_a_layout_must_fill_its_pool():
    with pytest.raises(InputError, match=r"actor: dp 2 x tp 2 x pp 1 does not fill pool A of 8 devices"):
        degrees_of(colocated("ppo", (1, 2, 2)).role("actor"), 8)


def test_what_only_scores_has_as_many_replicas_as_fill_its_pool():
    """The mapper may leave devices of a pool idle: a small reference beside an actor of two."""
    entry = colocated("ppo", (1, 2, 1)).role("reference")
    assert degrees_of(entry, 8) == Degrees(1, 2, 4, 1, 2)
    with pytest.raises(InputError, match=r"reference: dp 1 x tp 2 x pp 1 does not fill pool A of 3 devices"):
        degrees_of(entry, 3)


@pytest.mark.parametrize(
    ("changes", "message"), [({"role": "reference", "offload": ("swap",)}, "reference: offload by swap")]
)
def test_what_cannot_run_yet_is_named(changes, message):
    with pytest.raises(NotYetError, match=message):
        require_supported(changed(**changes))


def test_generating_ahead_needs_a_pool_to_do_it():
    with pytest.raises(InputError, match=r"schedule 'async' generates while training runs: it needs a generation pool"):
        require_supported(colocated("ppo").model_copy(update={"schedule": "async"}))
    apart = generating_apart(colocated("ppo"), (1, 1, 2), "async", 3)
    require_supported(apart)
    assert generate_ahead(apart) == 3
    with pytest.raises(NotYetError, match="in_flight_updates cannot run yet"):
        require_supported(apart.model_copy(update={"in_flight_updates": True}))


def test_other_ways_of_resharding_are_named():
    with pytest.raises(NotYetError, match="resharding ds-chat cannot run yet; hybridflow can"):
        require_supported(colocated("ppo").model_copy(update={"resharding": "ds-chat"}))


def test_degrees_of_a_generation_pool():
    entry = generating_apart(colocated("ppo", (2, 1, 1)), (1, 2, 1)).role("actor")
    assert degrees_of(entry, 2) == Degrees(2, 1, 1, 2, 1)
    assert generator_degrees_of(entry, 2) == Degrees(1, 2, 1, 1, 2)
    with pytest.raises(InputError, match="actor: generation has 2 devices, pool G has 4"):
        generator_degrees_of(entry, 4)
