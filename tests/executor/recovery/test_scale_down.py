"""Protects scale-down: the same structure, never more devices than asked for, layouts that fill their pools."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from executor.controller.pools import Devices, degrees_of, generator_degrees_of
from executor.recovery.scale_down import scale_down
from profiles.errors import InfeasibleError, InputError
from simulator.plan.groups import Degrees
from tests.executor.plans import colocated, generating_apart, plan

SIZES = st.tuples(*[st.sampled_from([1, 2, 4])] * 3)


@given(first=SIZES, second=SIZES, devices=st.integers(2, 64))
def test_structure_stays_and_pools_are_filled(first, second, devices):
    big = plan("ppo", {"A": (("actor", "reference"), first), "B": (("critic", "reward"), second)})
    small = scale_down(big, Devices(devices))
    assert small.num_gpus <= devices
    assert small.placement == big.placement
    assert [pool.roles for pool in small.pools] == [pool.roles for pool in big.pools]
    assert small.pools[0].first_gpu == 0
    assert small.pools[1].first_gpu == small.pools[0].num_gpus
    for entry in small.roles:
        x = degrees_of(entry, small.pool_of(entry.role).num_gpus)  # raises unless the layout fills the pool
        before = degrees_of(big.role(entry.role), big.pool_of(entry.role).num_gpus)
        assert before.p % x.p == before.t % x.t == before.d % x.d == 0


@given(first=SIZES, second=SIZES)
def test_a_plan_that_fits_stays_as_it_is(first, second):
    big = plan("ppo", {"A": (("actor", "reference"), first), "B": (("critic", "reward"), second)})
    assert scale_down(big, Devices(big.num_gpus)) is big


def test_data_parallelism_goes_first_then_tensor_then_pipeline():
    big = colocated("ppo", (2, 2, 4))
    degrees = [degrees_of(scale_down(big, Devices(n)).role("actor"), n) for n in (16, 8, 4, 2, 1)]
    assert [(x.p, x.t, x.d) for x in degrees] == [(2, 2, 4), (2, 2, 2), (2, 2, 1), (2, 1, 1), (1, 1, 1)]


def test_what_overlays_other_degrees_goes():
    big = colocated("grpo", (2, 2, 4))
    wide = big.role("actor").training.model_copy(update={"ep": 4, "vpp": 2, "cp": 2})
    engine = big.role("actor").generation.model_copy(update={"ep": 2, "attention_dp": 2})
    roles = (big.role("actor").model_copy(update={"training": wide, "inference": None, "generation": engine}),)
    pools = (big.pools[0].model_copy(update={"num_gpus": 32}),)
    engine = engine.model_copy(update={"dp": 8})
    big = big.model_copy(update={"roles": (roles[0].model_copy(update={"generation": engine}),), "pools": pools})
    actor = scale_down(big, Devices(4)).role("actor")
    assert (actor.training.cp, actor.training.dp, actor.training.tp, actor.training.pp) == (1, 1, 2, 2)
    assert (actor.training.ep, actor.training.vpp) == (1, 2)
    assert (actor.generation.num_gpus, actor.generation.ep, actor.generation.attention_dp) == (4, 1, 1)
    assert scale_down(big, Devices(1)).role("actor").training.vpp == 1


def test_generation_shrinks_with_its_pool():
    small = scale_down(colocated("ppo", (1, 4, 2), generation=(1, 2)), Devices(2))
    x = degrees_of(small.role("actor"), 2)
    assert (x.p, x.t, x.d, x.pg, x.tg) == (1, 2, 1, 1, 2)


def test_a_generation_pool_shrinks_by_itself():
    apart = generating_apart(colocated("ppo", (1, 1, 2)), (1, 2, 4))
    small = scale_down(apart, Devices(4))
    assert [pool.num_gpus for pool in small.pools] == [2, 2]
    assert generator_degrees_of(small.role("actor"), 2) == Degrees(1, 2, 1, 1, 2)
    assert degrees_of(small.role("actor"), 2).d == 2


def test_more_pools_than_devices_cannot_run():
    split = plan("ppo", {"A": (("actor", "reference"), (1, 1, 2)), "B": (("critic", "reward"), (1, 1, 2))})
    with pytest.raises(InfeasibleError, match="has 2 pools and needs a device for each, there are 1"):
        scale_down(split, Devices(1))
    with pytest.raises(InputError, match="at least one device"):
        scale_down(split, Devices(0))


def test_pools_keep_to_their_kind_where_devices_have_kinds():
    split = plan("ppo", {"A": (("actor", "reference"), (1, 1, 4)), "B": (("critic", "reward"), (1, 1, 4))})
    kinds = ("h100-80gb-sxm", "a100-80gb-sxm")
    pools = tuple(p.model_copy(update={"device": kind}) for p, kind in zip(split.pools, kinds, strict=True))
    split = split.model_copy(update={"pools": pools})
    small = scale_down(split, Devices(9, {"h100-80gb-sxm": 8, "a100-80gb-sxm": 1}))
    assert [(pool.num_gpus, pool.first_gpu) for pool in small.pools] == [(4, 0), (1, 0)]
    assert degrees_of(small.role("critic"), 1).d == 1
    with pytest.raises(InfeasibleError, match=r"has 1 pools of kind a100-80gb-sxm and needs .* there are 0"):
        scale_down(split, Devices(8, {"h100-80gb-sxm": 8}))
