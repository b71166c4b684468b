"""Protects the look at a machine's cores: a process on each, none left behind; when one is calm; a profile's pace."""

import multiprocessing
import os
from pathlib import Path

import pytest

from executor.profiling import core_pace
from executor.profiling.core_pace import LOOKS, PACE, SAMPLES, CorePace, OwnPace, of_pools_s, pace_of
from profiles.tables.write import write_table


def test_it_computes_on_all_cores_and_leaves_nothing_behind() -> None:
    """How long it takes is the machine's matter."""
    with CorePace(64) as cores:
        assert cores.measure_s() > 0 and cores.measure_s([1, 2]) > 0
        assert len(multiprocessing.active_children()) == min(64, os.cpu_count() or 1)
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize(
    ("pools", "pace_s"),
    [([1], 1.0), ([2], 3.0), ([1, 1], 2.0), ([1, 1, 1, 1], 2.0), ([1, 2], 2.0)],
)
def test_a_pool_is_as_fast_as_its_slowest_core(pools: list[int], pace_s: float) -> None:
    """Ranks of a pool wait for each other; pools work in turn or beside each other. The second core is slow."""
    assert of_pools_s([1.0, 3.0][: sum(pools)], pools) == pace_s


def test_a_profile_says_to_which_pace_its_times_are_brought(tmp_path: Path) -> None:
    assert pace_of(tmp_path) is None, "a GPU's says nothing"
    row = {"cores": 1, "latency_s": 0.0101, "low_s": 0.0101, "high_s": 0.0101, "repeats": 1, "outliers": 0, "error": ""}
    write_table(tmp_path, PACE, [row], {"device": "here"})
    assert pace_of(tmp_path) == 0.0101


@pytest.mark.parametrize(
    ("paces", "calm"),
    [
        ((1.0, 1.6, 1.2, 0.9, 1.2, 1.3), (True, False, True, True, True, False)),
        ((1.0, 1.7, 1.7, 1.7, 1.7, 1.7, 1.8), (True, False, False, True, True, True, True)),
    ],
    ids=["now and then slowed", "slowed but for one look"],
)
def test_a_core_is_calm_while_it_is_about_as_fast_as_when_free(
    paces: tuple[float, ...], calm: tuple[bool, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The machine's own times would tell nothing sure."""
    pace = with_paces(paces, monkeypatch)
    assert tuple(pace.is_calm() for _ in paces) == calm


def test_what_a_core_usually_takes_is_the_median_of_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """One lucky look is no pace."""
    monkeypatch.setattr(core_pace, "BETWEEN_LOOKS_S", 0.0)
    found = with_paces((1.0, *[1.7] * (LOOKS - 1)), monkeypatch).usual()
    assert (found.median_s, found.low_s, found.repeats) == (1.7, 1.7, LOOKS)


def with_paces(paces: tuple[float, ...], monkeypatch: pytest.MonkeyPatch) -> OwnPace:
    """A core whose looks take so long."""
    seconds = iter([1.0, *(pace for pace in paces for _ in range(SAMPLES))])
    monkeypatch.setattr(core_pace, "_training_step", lambda: lambda: next(seconds))
    return OwnPace()
