"""Protects what is measured a second time: the rows that were asked for, all of them, and nothing else."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from executor.profiling import again, dispatch, engine_step, host_contention
from executor.profiling.again import measure_again
from executor.profiling.cases import Key
from executor.profiling.core_pace import ONE_CORE, PACE
from executor.profiling.dispatch import dispatch_key
from executor.profiling.engine_step import CALLS, Probe
from executor.profiling.journal import Journal
from executor.profiling.probes import host_contention_probes, probes_for
from executor.profiling.request import Request
from executor.profiling.run_profile import Profiler
from executor.profiling.statistics import Summary, summarise
from executor.profiling.timing import Precision
from profiles.models.hf_config import shape_from_hf_config
from profiles.models.probe_models import tiny_config
from profiles.tables.write import AROUND, BETWEEN, PARTS

CONFIG = tiny_config(layers=1, hidden=32)
FAST = Precision(half_width=0.5, min_repeats=3, max_repeats=5, min_s=0.0, max_s=0.05)
SECOND = summarise([2.0])


def never() -> bool:
    return False


@pytest.fixture
def profiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    """Looks at how fast the core is now take most of a profile, and are the matter of other tests."""
    monkeypatch.setattr(Profiler, "is_calm", lambda self: True)
    shape = shape_from_hf_config(CONFIG, "t", "t")
    request = Request("cpu", "fp32", (shape,), (CONFIG,), budget_s=0.0, parts=("copy",), precision=FAST)
    with Journal(tmp_path / "j", {}) as journal:
        found = Profiler(request, journal, lambda part, what: None)
        found.run()
        yield found


def test_operators_are_measured_again_and_what_was_first_stays(profiler: Profiler) -> None:
    first = profiler.journal.of("copy")
    measure_again(profiler, {"copy": first[1:3]}, 1, never)
    rows = profiler.journal.of("copy")
    assert rows[: len(first)] == first
    assert [(each["num_bytes"], each["round"]) for each in rows[len(first) :]] == [
        (each["num_bytes"], 1) for each in first[1:3]
    ]


def test_a_second_time_has_the_threads_of_the_first(profiler: Profiler, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small operations on all cores take a hundred times as long as on one."""
    seen: list[int] = []

    def measured(*given: object) -> Summary:
        seen.append(torch.get_num_threads())
        return SECOND

    monkeypatch.setattr(again, "measured_case", measured)
    before = torch.get_num_threads()
    torch.set_num_threads(before + 1)
    try:
        measure_again(profiler, {"copy": profiler.journal.of("copy")[:1]}, 1, never)
        assert (seen, torch.get_num_threads()) == ([profiler.request.threads], before + 1)
    finally:
        torch.set_num_threads(before)


def test_parts_take_turns(profiler: Profiler, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "measure_dispatch", lambda *given: ({BETWEEN: SECOND}, 1))
    between = [{**dispatch_key("ray", number, 1, 1), "part": BETWEEN} for number in (1, 2)]
    measure_again(profiler, {"copy": profiler.journal.of("copy"), "dispatch": between}, 1, never)
    tables = [row["table"] for row in profiler.journal.rows if row["result"].get("round")]
    assert tables[:4] == ["copy", "dispatch", "copy", "dispatch"] and set(tables[4:]) == {"copy"}


def test_nothing_is_begun_when_time_is_over(profiler: Profiler) -> None:
    first = profiler.journal.of("copy")
    measure_again(profiler, {"copy": first}, 1, lambda: True)
    assert profiler.journal.of("copy") == first


def test_a_probe_is_repeated_with_all_its_calls_and_a_failure_leaves_what_there_was(
    profiler: Profiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    probe, broken = probes_for(profiler.request)[:2]
    rows = [{**each.key("fp32", "update_actor"), "latency_s": 1.0} for each in (probe, broken)]

    def measured(given: engine_step.Probe, dtype: str, device: object, precision: Precision, slowness: object):  # type: ignore[no-untyped-def]
        if given is not probe and given == broken:
            raise RuntimeError("out of memory")
        assert precision.max_repeats > FAST.max_repeats
        yield from ((given.key(dtype, call), SECOND) for call in CALLS)

    monkeypatch.setattr(engine_step, "measure_probe", measured)
    measure_again(profiler, {"engine_step": rows}, 2, never)
    found = profiler.journal.of("engine_step")
    assert [(each["call"], each["round"], each["samples"]) for each in found] == [
        (call, 2, probe.samples) for call in CALLS
    ]


def test_time_between_calls_is_measured_again(profiler: Profiler, monkeypatch: pytest.MonkeyPatch) -> None:
    def measured(key: Key, iterations: int) -> tuple[dict[str, Summary], int]:
        assert iterations == again.ITERATIONS
        return dict.fromkeys(PARTS, SECOND), 1

    monkeypatch.setattr(dispatch, "measure_dispatch", measured)
    key = dispatch_key("ray", 128, 4, 4)
    measure_again(profiler, {"dispatch": [{**key, "part": part, "latency_s": 1.0} for part in PARTS]}, 1, never)
    rows = profiler.journal.of("dispatch")
    assert [row["part"] for row in rows] == list(PARTS), "one run says both"
    assert all(row.items() >= key.items() and row["round"] == 1 for row in rows)


def test_what_lies_between_calls_of_ranks_on_one_host_is_measured_by_their_own_runs(
    profiler: Profiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def measured(probe: Probe, dtype: str, iterations: int, pace_s: float, *, crowded: bool):  # type: ignore[no-untyped-def]
        seen.append(probe)
        assert pace_s == 0.02
        yield "dispatch", {**key, "part": AROUND}, SECOND

    monkeypatch.setattr(host_contention, "measure_host_contention", measured)
    profiler.journal.add(PACE, ONE_CORE, replace(SECOND, median_s=0.02))
    (probe,) = host_contention_probes(profiler.request)
    key = dispatch_key("ray", probe.samples, 2, 1, host_contention.ENGINE)
    measure_again(profiler, {"dispatch": [{**key, "part": AROUND, "latency_s": 1.0}]}, 1, never)
    of_two = {**probe.key("fp32", "update_actor"), "ranks": 2, "latency_s": 1.0}
    measure_again(profiler, {"parallel_step": [of_two]}, 1, never)
    assert seen == [probe, probe]
    assert profiler.journal.of("dispatch")[0]["round"] == 1
