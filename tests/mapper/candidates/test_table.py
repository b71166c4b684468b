"""Protects a role's candidates as a table: rows stay whole in every cut, and are relaxed by what they are granted."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mapper.candidates.floors import Unpriced
from mapper.candidates.relaxation import Credit
from mapper.candidates.table import RoleTable, joined, to_mib
from profiles.units import MIB
from simulator.cost.pricing import RoleLayouts
from simulator.plan.layouts import GenerationLayouts, Layouts
from simulator.plan.plan import GenerationLayout, ParallelLayout

DEGREES = ((4, 1), (2, 2), (1, 4))


def three_rows(first: int = 0) -> RoleTable:
    """Rows of 4 GPUs in three degrees; every column tells the row, counted from ``first``."""
    at = np.arange(first, first + 3)
    training = [
        ParallelLayout(dp=dp, tp=tp, micro_batch=1 + i) for i, (dp, tp) in zip(at.tolist(), DEGREES, strict=True)
    ]
    engines = [
        GenerationLayout(dp=dp, tp=tp, max_num_seqs=8, kv_cache_bytes=int(i))
        for i, (dp, tp) in zip(at, DEGREES, strict=True)
    ]
    return RoleTable(
        role="actor",
        device_type=np.zeros(3, dtype=np.int64),
        num_gpus=np.asarray([4, 4, 4]),
        durations_s={"update_actor": 10.0 + at, "generate_sequences": 20.0 + at},
        resident_bytes=100.0 + at,
        transient_bytes=200.0 + at,
        layouts=RoleLayouts(training=Layouts.of(training), generation=GenerationLayouts.of(engines)),
        num_priced=50,
        offload=np.asarray([0, 1, 2]),
        credit=Credit(at, 1000.0 * at, {"update_actor": 0.5 * at}, np.asarray([False, True, False])),
    )


def whole_rows(table: RoleTable) -> list[tuple[object, ...]]:
    """Everything that the table says of each row."""
    return [
        (
            int(table.device_type[i]),
            int(table.num_gpus[i]),
            {key: float(s[i]) for key, s in table.durations_s.items()},
            float(table.resident_bytes[i]),
            float(table.transient_bytes[i]),
            table.records(i),
            int(table.offload[i]),
            int(table.credit.last_dp[i]),
            float(table.credit.num_bytes[i]),
            {key: float(s[i]) for key, s in table.credit.seconds.items()},
            bool(table.credit.unlisted[i]),
        )
        for i in range(len(table))
    ]


def test_a_rows_layouts_are_those_of_a_plan() -> None:
    training, inference, generation = three_rows().records(1)
    assert training == ParallelLayout(dp=2, tp=2, micro_batch=2)
    assert inference is None
    assert generation == GenerationLayout(dp=2, tp=2, max_num_seqs=8, kv_cache_bytes=1)


@given(st.lists(st.integers(0, 2), max_size=5))
def test_rows_are_taken_whole_and_in_order(index: list[int]) -> None:
    table = three_rows()
    taken, rows = table.take(np.asarray(index, dtype=np.int64)), whole_rows(table)
    assert len(taken) == len(index)
    assert whole_rows(taken) == [rows[i] for i in index]
    assert (taken.role, taken.num_priced) == ("actor", 50)


def test_tables_of_several_kinds_keep_their_rows_in_order() -> None:
    first, second = three_rows(), replace(three_rows(first=3), device_type=np.ones(3, dtype=np.int64), num_priced=7)
    both = joined([first, second])
    assert whole_rows(both) == whole_rows(first) + whole_rows(second)
    assert both.num_priced == 57
    assert joined([first]) is first


def test_what_was_not_priced_of_several_kinds_is_known_of_each() -> None:
    """A kind that was priced in full has no say; where all were, nothing is left."""
    whole = three_rows()
    slow, fast = (
        replace(whole, unpriced=Unpriced(np.asarray([kind]), np.asarray([n]), {"update_actor": np.asarray([seconds])}))
        for kind, n, seconds in ((0, 8, 9.0), (1, 24, 4.0))
    )
    both = joined([slow, whole, fast]).unpriced
    assert both is not None
    assert (both.device_type.tolist(), both.num_gpus.tolist()) == ([0, 1], [8, 24])
    assert both.least_s["update_actor"].tolist() == [9.0, 4.0]
    alone = joined([whole, slow]).unpriced
    assert alone is not None
    assert (alone.num_gpus.tolist(), alone.least_s["update_actor"].tolist()) == ([8], [9.0])
    assert joined([whole, whole]).unpriced is None


def test_only_listed_rows_are_in_a_plan() -> None:
    table = three_rows()
    assert whole_rows(table.listed()) == [whole_rows(table)[i] for i in (0, 2)]
    assert table.listed().listed().num_gpus.tolist() == [4, 4]


def test_a_row_is_relaxed_by_what_it_is_granted_and_no_more() -> None:
    """Bytes come off what is resident, off a call's need only where states wait in host memory; never below nothing."""
    relaxed = three_rows().relaxed()
    assert relaxed.durations_s["update_actor"].tolist() == [10.0, 10.5, 11.0]
    assert relaxed.durations_s["generate_sequences"].tolist() == [20.0, 21.0, 22.0]
    assert relaxed.resident_bytes.tolist() == [100.0, 0.0, 0.0]
    assert relaxed.transient_bytes.tolist() == [200.0, 0.0, 0.0]
    table = three_rows()
    little = replace(table, credit=replace(table.credit, num_bytes=np.asarray([5.0, 5.0, 5.0]))).relaxed()
    assert little.resident_bytes.tolist() == [95.0, 96.0, 97.0]
    assert little.transient_bytes.tolist() == [200.0, 196.0, 197.0]


def test_rows_that_stand_for_themselves_are_relaxed_to_themselves() -> None:
    table = replace(three_rows(), credit=Credit.none(3))
    assert whole_rows(table.relaxed()) == whole_rows(table)
    assert table.listed() is table


@pytest.mark.parametrize(("num_bytes", "mib"), [(0, 0), (1, 1), (MIB, 1), (MIB + 1, 2), (10 * MIB - 1, 10)])
def test_bytes_are_rounded_up_to_mib(num_bytes: int, mib: int) -> None:
    assert to_mib(np.asarray([float(num_bytes)])).tolist() == [mib]
