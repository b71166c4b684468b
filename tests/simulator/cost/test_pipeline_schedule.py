"""Protects the order of a pipeline's passes, 1F1B and interleaved: beside a play event by event, written down apart."""

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.cost import pipeline_schedule


def one_f_one_b(stage: int, stages: int, n: int) -> Iterator[tuple[str, int]]:
    """The order of a stage as Megatron-Core has it (``forward_backward_pipelining_without_interleaving``)."""
    ahead = min(stages - stage - 1, n)
    yield from (("F", i) for i in range(ahead))
    for i in range(n - ahead):
        yield from (("F", ahead + i), ("B", i))
    yield from (("B", i) for i in range(n - ahead, n))


def interleaved(stage: int, stages: int, n: int, chunks: int) -> Iterator[tuple[str, int, int]]:
    """The same with several chunks a stage (``..._with_interleaving``); ``stages`` divides ``n``."""

    def virtual(kind: str, k: int) -> tuple[str, int, int]:
        within = k % (stages * chunks)
        chunk = within // stages if kind == "F" else chunks - 1 - within // stages
        return kind, chunk, k // (stages * chunks) * stages + within % stages

    total = n * chunks
    ahead = total if n == stages else min((stages - stage - 1) * 2 + (chunks - 1) * stages, total)
    yield from (virtual("F", k) for k in range(ahead))
    for k in range(total - ahead):
        yield from (virtual("F", ahead + k), virtual("B", k))
    yield from (virtual("B", k) for k in range(total - ahead, total))


def by_event(times: np.ndarray, stages: int, chunks: int = 1) -> float:
    """When the last pass ends: each stage takes its passes in order, each as soon as what it needs is there."""
    n = len(times)
    if chunks == 1:
        orders = [[(kind, 0, i) for kind, i in one_f_one_b(s, stages, n)] for s in range(stages)]
    else:
        orders = [list(interleaved(s, stages, n, chunks)) for s in range(stages)]
    ends: dict[tuple[str, int, int], float] = {}  # by kind, place among all chunks, micro-batch
    at, now = [0] * stages, [0.0] * stages
    while any(at[s] < len(orders[s]) for s in range(stages)):
        before = list(at)
        for s in range(stages):
            while at[s] < len(orders[s]):
                kind, chunk, i = orders[s][at[s]]
                place = chunk * stages + s
                if kind == "F":
                    needs = ("F", place - 1, i) if place else None
                else:
                    needs = ("F", place, i) if place == stages * chunks - 1 else ("B", place + 1, i)
                if needs is not None and needs not in ends:
                    break
                start = max(now[s], ends[needs] if needs else 0.0)
                now[s] = ends[kind, place, i] = start + times[i] * (1 if kind == "F" else 2) / 3 / chunks
                at[s] += 1
        assert at != before, "nobody can go on"
    return max(now)


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 9), st.integers(1, 20), st.integers(0, 1000))
def test_the_play_is_1f1b(stages: int, n: int, seed: int) -> None:
    times = np.random.default_rng(seed).lognormal(0.0, 0.9, (n, 2))
    ends = pipeline_schedule.played(pipeline_schedule.schedule(stages, n), times)
    assert ends == pytest.approx([by_event(column, stages) for column in times.T])


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 6), st.integers(2, 4), st.integers(2, 4), st.integers(0, 1000))
def test_the_play_is_interleaved_1f1b(stages: int, chunks: int, groups: int, seed: int) -> None:
    times = np.random.default_rng(seed).lognormal(0.0, 0.9, (groups * stages, 2))
    ends = pipeline_schedule.played(pipeline_schedule.schedule(stages, len(times), chunks), times)
    assert ends == pytest.approx([by_event(column, stages, chunks) for column in times.T])
