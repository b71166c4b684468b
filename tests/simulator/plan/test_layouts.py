"""Protects layouts as arrays: record to column to record is the identity, so a plan is priced as what it says."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from simulator.plan.layouts import GenerationLayouts, Layouts
from simulator.plan.plan import RECOMPUTE_LEVELS, GenerationLayout, ParallelLayout

degree = st.integers(1, 64)
records = st.lists(
    st.builds(
        ParallelLayout,
        dp=degree,
        tp=degree,
        pp=degree,
        cp=degree,
        ep=degree,
        zero_stage=st.integers(0, 3),
        micro_batch=degree,
        recompute=st.sampled_from(RECOMPUTE_LEVELS),
    ),
    min_size=1,
    max_size=6,
)


@given(records)
def test_records_to_columns_and_back(layouts: list[ParallelLayout]) -> None:
    columns = Layouts.of(layouts)
    assert len(columns) == len(layouts)
    assert [columns.record(i) for i in range(len(layouts))] == layouts
    assert columns.num_gpus.tolist() == [x.num_gpus for x in layouts]
    turned = columns.take(np.arange(len(layouts))[::-1])
    assert [turned.record(i) for i in range(len(layouts))] == layouts[::-1]


def test_generation_layouts() -> None:
    layouts = [
        GenerationLayout(dp=2, tp=4, pp=1, max_num_seqs=7, kv_cache_bytes=5),
        GenerationLayout(dp=1, tp=1, pp=3, max_num_seqs=9, kv_cache_bytes=6),
    ]
    columns = GenerationLayouts.of(layouts)
    assert columns.num_gpus.tolist() == [8, 3]
    assert columns.take(np.asarray([1])).max_num_seqs.tolist() == [9]
    assert len(columns) == 2


def test_none_at_all() -> None:
    assert len(Layouts.of([])) == 0
    assert len(GenerationLayouts.of([])) == 0
