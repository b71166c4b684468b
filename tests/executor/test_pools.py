"""Protects what is refused before anything starts, and the degrees that a plan gives its ranks."""

import pytest

from executor.pools import CONTROLLER_POOL, ResourcePool, degrees_of, require_devices, require_supported, resource_pools
from profiles.errors import InfeasibleError, InputError, NotYetError
from simulator.groups import Degrees
from tests.executor.plans import colocated, plan


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
        ResourcePool("A", 4), ResourcePool("B", 2), ResourcePool(CONTROLLER_POOL, 1, on_device=False),
    )  # fmt: skip


def test_too_few_devices_is_one_error_that_offers_scale_down():
    require_devices(colocated("ppo", (1, 2, 2)), 4)
    with pytest.raises(InfeasibleError, match="asks for 4 devices, there are 3; --scale-down runs") as caught:
        require_devices(colocated("ppo", (1, 2, 2)), 3)
    assert caught.value.fewest_gpus == 4


def test_degrees_of_training_and_generation():
    entry = colocated("ppo", (2, 2, 1), generation=(1, 2)).role("actor")
    assert degrees_of(entry, 4) == Degrees(2, 2, 1, 1, 2)
    assert degrees_of(colocated("ppo", (2, 2, 1)).role("critic"), 4) == Degrees(2, 2, 1, 2, 2)


def test_a_layout_must_fill_its_pool():
    with pytest.raises(InputError, match=r"actor: dp 2 x tp 2 x pp 1 does not fill pool A of 8 devices"):
        degrees_of(colocated("ppo", (1, 2, 2)).role("actor"), 8)


@pytest.mark.parametrize(("changes", "message"), [
    ({"offload": ("optimizer",)}, "actor: offload of optimizer"),
    ({"generation_pool": "B"}, "generation on a pool of its own"),
])  # fmt: skip
def test_what_cannot_run_yet_is_named(changes, message):
    with pytest.raises(NotYetError, match=message):
        require_supported(changed(**changes))


def test_only_synchronous_schedules_run():
    with pytest.raises(NotYetError, match="schedule 'async'"):
        require_supported(colocated("ppo").model_copy(update={"schedule": "async"}))
