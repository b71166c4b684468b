"""Protects the arithmetic of overlap: a call never takes less than its larger part nor more than both, and sums,
multiples and choices keep that.
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiles.records import Basis, Priced
from simulator.cost.call_cost import Cost, choose

seconds = st.lists(st.floats(0, 1e3), min_size=3, max_size=3)


def priced(values: list[float]) -> Priced:
    return Priced.of(values, [Basis.MEASURED, Basis.ANALYTIC, Basis.INTERPOLATED])


def bounded(cost: Cost) -> bool:
    longer, both = np.maximum(cost.compute.s, cost.comm.s), cost.compute.s + cost.comm.s
    return bool(np.all(longer <= cost.time.s * (1 + 1e-9) + 1e-9) and np.all(cost.time.s <= both * (1 + 1e-9) + 1e-9))


@given(seconds, seconds)
def test_serial_adds_and_overlapped_takes_the_longer(compute: list[float], comm: list[float]) -> None:
    serial, beside = Cost.serial(priced(compute), priced(comm)), Cost.overlapped(priced(compute), priced(comm))
    assert serial.time.s == pytest.approx(np.add(compute, comm))
    assert beside.time.s == pytest.approx(np.maximum(compute, comm))
    assert bounded(serial)
    assert bounded(beside)


@settings(max_examples=200)
@given(seconds, seconds, seconds, seconds, seconds, st.floats(0, 50))
def test_everything_built_from_costs_stays_between_its_parts(
    a: list[float], b: list[float], c: list[float], d: list[float], more: list[float], factor: float
) -> None:
    first, second = Cost.overlapped(priced(a), priced(b)), Cost.serial(priced(c), priced(d))
    for cost in (
        first + second,
        first * factor,
        choose([True, False, True], first, second),
        (first + second).hide(priced(more)),
        first.hide(priced(more)).hide(priced(d)),
    ):
        assert bounded(cost)


@given(seconds, seconds, seconds)
def test_hiding_uses_only_compute_that_nothing_hides_behind_yet(a: list[float], b: list[float], m: list[float]) -> None:
    cost = Cost.overlapped(priced(a), priced(b)).hide(priced(m))
    assert cost.time.s == pytest.approx(np.maximum(a, np.add(b, m)))
    assert cost.comm.s == pytest.approx(np.add(b, m))


def test_compute_alone_and_indexing() -> None:
    cost = Cost.of_compute(priced([1.0, 2.0, 3.0]))
    assert cost.comm.s.tolist() == [0.0, 0.0, 0.0]
    assert float(cost[1].time.s) == 2.0
    assert float(cost.time[2].weakest) == Basis.INTERPOLATED


def test_beside_slows_compute_while_communication_runs() -> None:
    compute, comm = (Priced.of(np.asarray(times), Basis.MEASURED) for times in ([4.0, 1.0, 4.0], [2.0, 2.0, 0.0]))
    assert Cost.beside(compute, comm, 0.75).time.s == pytest.approx([4.5, 2.0, 4.0])
    assert Cost.beside(compute, comm, 1.0).time.s.tolist() == Cost.overlapped(compute, comm).time.s.tolist()
    assert Cost.beside(compute, comm, 0.0).time.s.tolist() == Cost.serial(compute, comm).time.s.tolist()
