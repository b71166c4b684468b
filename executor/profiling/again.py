"""Measures rows of a profile again, later than the first time and for longer: another row of the same key each.

What was measured first stays in the journal; who reads it takes the calmer of the rounds.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from executor.profiling.probes import host_contention_probes, parallel_probes, probes_for
from executor.profiling.run_profile import measured_case
from profiles.errors import HybridmapError
from profiles.tables.write import FAKE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from executor.profiling.cases import Key
    from executor.profiling.engine_step import Probe
    from executor.profiling.run_profile import Profiler
    from executor.profiling.statistics import Summary
    from executor.profiling.timing import Precision

    Row = Mapping[str, Any]
    Measured = Iterator[tuple[str, Key, Summary]]

REPEATS, SECONDS = 4, 2
"""Times as many repeats as the first time, in so much more time at most."""
KNOWN = 0.05
"""Half-width of an interval at which a row is known well enough to be no doubt."""
ITERATIONS = 40
"""Of runs behind a controller, whose calls are a row each; twice those of the first time."""


def measure_again(profiler: Profiler, rows: Mapping[str, Sequence[Row]], number: int, late: Callable[[], bool]) -> None:
    """Add rows of round ``number`` for ``rows`` by table, until ``late()``; a failure leaves what there was.

    Parts take turns, so that a long one does not take the time of all.
    """
    parts = [part(profiler, rows) for part in (_operators, _collectives, _engine, _behind_a_controller, _dispatch)]
    with profiler.threads_of_a_rank():
        for turn in itertools.zip_longest(*parts):
            for measured in filter(None, turn):
                if late():
                    return
                _kept(profiler, measured, number)


def _kept(profiler: Profiler, measured: Measured, number: int) -> None:
    try:
        for table, key, found in measured:
            profiler.journal.add(table, key, found, round=number)
            profiler.report("again", f"{table} {', '.join(str(value) for value in key.values())}")
    except (RuntimeError, NotImplementedError, ImportError, HybridmapError):
        return  # what was measured before stands


def _operators(profiler: Profiler, rows: Mapping[str, Sequence[Row]]) -> Iterator[Measured]:
    for case in profiler.cases.values():
        if any(_is(row, case.key) for row in rows.get(case.table, ())):
            yield _once(
                case.table, case.key, partial(measured_case, case, profiler.device, _longer(profiler), profiler.is_calm)
            )


def _is(row: Row, key: Key) -> bool:
    return all(row.get(name) == value for name, value in key.items())


def _longer(profiler: Profiler) -> Precision:
    first = profiler.request.precision
    known = max(KNOWN, first.half_width)
    return replace(first, half_width=known, max_repeats=REPEATS * first.max_repeats, max_s=SECONDS * first.max_s)


def _collectives(profiler: Profiler, rows: Mapping[str, Sequence[Row]]) -> Iterator[Measured]:
    """One start of the ranks for each size of the group."""
    from executor.profiling.collectives import measure_collectives

    names = ("dtype", "kind", "gpus", "num_bytes")
    request = profiler.request
    for group in request.groups:
        keys = [{name: row[name] for name in names} for row in rows.get("collective", ()) if row["gpus"] == group]
        if keys:
            found = measure_collectives(keys, group, request.device, _longer(profiler), request.threads)
            yield (("collective", key, result) for key, result in found if not isinstance(result, str))


def _engine(profiler: Profiler, rows: Mapping[str, Sequence[Row]]) -> Iterator[Measured]:
    """Probes of which a call is wanted, with all their calls: each finds the caches as the others leave them."""
    from executor.profiling.engine_step import CALLS, measure_probe

    for probe in _probes(profiler, probes_for(profiler.request), rows.get("engine_step", ()), CALLS):
        found = measure_probe(probe, profiler.request.dtype, profiler.device, _longer(profiler), profiler.slowness)
        yield _of("engine_step", found)


def _probes(profiler: Profiler, probes: Sequence[Probe], rows: Sequence[Row], calls: Sequence[str]) -> Iterator[Probe]:
    for probe in probes:
        keys = [probe.key(profiler.request.dtype, call) for call in calls]
        if any(_is(row, key) for row in rows for key in keys):
            yield probe


def _behind_a_controller(profiler: Profiler, rows: Mapping[str, Sequence[Row]]) -> Iterator[Measured]:
    from executor.profiling import host_contention, parallel_step

    request, of_ranks = profiler.request, rows.get(parallel_step.ROWS, ())
    if not request.has_neighbours:
        for probe in _probes(profiler, parallel_probes(request), of_ranks, parallel_step.CALLS):
            yield _of(parallel_step.ROWS, parallel_step.measure_parallel(probe, request.dtype, 2, ITERATIONS))
        return
    of_hosts, calls = (*rows.get(host_contention.ROWS, ()), *of_ranks), host_contention.calls_with(0)
    probes = host_contention_probes(request)
    wanted = list(_probes(profiler, probes, of_hosts, calls))
    if not wanted and any(row["engine"] != FAKE for row in rows.get("dispatch", ())):
        wanted = probes[:1]  # what lies between calls is the same for any model
    for probe in wanted:
        yield host_contention.measure_host_contention(
            probe, request.dtype, ITERATIONS, profiler.pace_s, crowded=request.is_crowded
        )


def _dispatch(profiler: Profiler, rows: Mapping[str, Sequence[Row]]) -> Iterator[Measured]:
    from executor.profiling.dispatch import ROWS

    names = ("launcher", "engine", "samples", "ranks", "pools")
    mine = [{name: row[name] for name in names} for row in rows.get(ROWS, ()) if row["engine"] == FAKE]
    for values in dict.fromkeys(tuple(key.values()) for key in mine):
        yield _between_calls(dict(zip(names, values, strict=True)))


def _between_calls(key: Key) -> Measured:
    from executor.profiling.dispatch import ROWS, measure_dispatch

    for part, summary in measure_dispatch(key, ITERATIONS)[0].items():
        yield ROWS, {**key, "part": part}, summary


def _once(table: str, key: Key, measure: Callable[[], Summary]) -> Measured:
    yield table, key, measure()


def _of(table: str, measured: Iterable[tuple[Key, Summary]]) -> Measured:
    return ((table, key, summary) for key, summary in measured)
