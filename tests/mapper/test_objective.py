"""Protects what a plan is worth under each objective, and that whole weights stand for prices exactly."""

import math
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mapper.objective import GOALS, PRICE_DIGITS, Objective
from mapper.pins import Pin
from mapper.request import SearchRequest
from mapper.search.find_plan import find_plan
from profiles.hardware import ClusterGroup
from profiles.store import load_device
from simulator.facts import DeviceGroup
from tests.builders import TINY, tiny_facts

GPUS = {"a": 4, "b": 2}
PRICES = (("a", 2.0), ("b", 3.5))


@pytest.mark.parametrize(
    ("goal", "value"),
    [
        ("time", 90.0),  # s
        ("throughput_per_gpu", 90.0 * 6),  # GPU-s
        ("cost", 90.0 / 3600 * 15),  # 4 GPUs at 2 an hour and 2 at 3.5 are 15 an hour
        ("gpus", 6.0),
    ],
)
def test_by_hand(goal, value) -> None:  # type: ignore[no-untyped-def]
    assert goal in GOALS
    assert Objective(goal, PRICES, 100.0).value(90.0, GPUS) == pytest.approx(value, rel=1e-15)


def test_every_plan_has_a_cost_where_prices_are_given() -> None:
    assert Objective("time", PRICES).cost(3600.0, {"b": 2}) == 7.0
    with pytest.raises(KeyError, match="b"):
        Objective("cost", (("a", 2.0),)).cost(1.0, {"b": 1})


@pytest.mark.parametrize("goal", ["time", "throughput_per_gpu", "gpus"])
def test_where_prices_do_not_count_every_gpu_counts_one(goal) -> None:  # type: ignore[no-untyped-def]
    assert Objective(goal, PRICES).weights(("a", "b")) == ({"a": 1, "b": 1}, 1.0)


@pytest.mark.parametrize(
    ("prices", "weights", "unit"),
    [
        ((("a", 2.0), ("b", 3.5)), {"a": 4, "b": 7}, 0.5),
        ((("a", 1.1), ("b", 3.3)), {"a": 1, "b": 3}, 1.1),  # exact, though 3.3 / 1.1 is not in floats
        ((("a", 0.0), ("b", 2.0)), {"a": 0, "b": 1}, 2.0),
        ((("a", 2.4999), ("b", 0.0001)), {"a": 24999, "b": 1}, 0.0001),
    ],
)
def test_the_unit_is_the_largest_that_divides_all_prices(prices, weights, unit) -> None:  # type: ignore[no-untyped-def]
    found, worth = Objective("cost", prices).weights(("a", "b"))
    assert found == weights
    assert worth == pytest.approx(unit / 3600, rel=1e-12)


@given(st.lists(st.integers(1, 10**6), min_size=1, max_size=4), st.lists(st.integers(0, 64), min_size=4, max_size=4))
def test_what_gpus_count_times_the_unit_is_their_cost(ten_thousandths: list[int], numbers: list[int]) -> None:
    """So the search, which only counts whole weights, minimises what ``value`` says."""
    device_types = tuple("abcd"[: len(ten_thousandths)])
    prices = tuple(
        (device_type, n / 10**PRICE_DIGITS) for device_type, n in zip(device_types, ten_thousandths, strict=True)
    )
    objective, gpus = Objective("cost", prices), dict(zip(device_types, numbers, strict=False))
    weights, unit = objective.weights(device_types)
    assert math.gcd(*weights.values()) == 1
    assert unit * sum(weights[device_type] * n for device_type, n in gpus.items()) == pytest.approx(
        objective.value(1.0, gpus)
    )
    first = Fraction(weights[device_types[0]], ten_thousandths[0])
    assert all(Fraction(weights[k], n) == first for k, n in zip(device_types, ten_thousandths, strict=True))


def test_only_the_kinds_of_the_cluster_count() -> None:
    assert Objective("cost", (("a", 2.0), ("b", 3.0))).weights(("b",))[0] == {"b": 1}


A100, H100 = "a100-80gb-sxm", "h100-80gb-sxm"


def test_a_job_may_be_priced_in_a_currency_of_which_a_gpu_hour_takes_little() -> None:
    assert Objective("cost", ((A100, 1e-5),)).weights((A100,))[0] == {A100: 1}


def test_no_plan_is_below_the_bound_whatever_the_currency() -> None:
    """One A100 or one H100 at a third of the price or less: both count as 0.0001, so the faster one is taken."""
    device = load_device(H100)
    both = replace(
        tiny_facts("grpo", 1, 20.0, roles={"actor": TINY}),
        others=(DeviceGroup(ClusterGroup(H100, 1, 1, 50e9, 1), device),),
    )
    little = Objective("cost", ((A100, 0.00005001), (H100, 0.00014)))
    found = find_plan(SearchRequest(both, objective=little, runners_up=False))
    cheap = find_plan(SearchRequest(both, objective=little, pins=(Pin("actor", device=A100),), runners_up=False))
    assert found.value_bound <= cheap.value
    assert found.plan == cheap.plan
