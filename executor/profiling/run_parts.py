"""Parts of a profile that run engines or start ranks: calls, collectives, what lies between calls, ranks at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from executor.profiling.collectives import GLOO_KINDS, KINDS, measure_collectives
from executor.profiling.probes import host_contention_probes, parallel_probes, probes_for
from profiles.errors import HybridmapError
from profiles.tables.write import PARTS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from executor.profiling.cases import Key
    from executor.profiling.run_profile import Profiler

MOST_COLLECTIVE_BYTES = {"cpu": 4**12, "cuda": 4**14}
"""So many that their time is bytes, and not what a call costs."""
LEAST_PROBES, LEAST_GPU_PROBES = 18, 3
FAILURES = (RuntimeError, ImportError, HybridmapError)
"""Of a run: out of memory, a package that is missing, what we refuse. They are rows, and the profile goes on."""


def collective_bytes(device: str, quick: bool) -> list[int]:
    """Sizes of collectives in the order they are measured: first the ends, between which all else is interpolated."""
    largest = MOST_COLLECTIVE_BYTES[device]
    between = [4**i for i in range(2, 15, 2 if quick else 1) if 16 < 4**i < largest]
    return [largest, 16, *reversed(between)]


def collective_part(profiler: Profiler) -> None:
    """Each kind over each group size; the ends of the first group in any case."""
    kinds = KINDS if profiler.device.type == "cuda" else GLOO_KINDS
    for group in profiler.request.groups:
        keys: list[Key] = [
            {"dtype": profiler.request.dtype, "kind": kind, "gpus": group, "num_bytes": num_bytes}
            for num_bytes in collective_bytes(profiler.device.type, profiler.request.quick)
            for kind in kinds
        ]
        missing: Sequence[Key] = [key for key in keys if not profiler.journal.has("collective", key)]
        if not missing or (profiler.is_late() and group != profiler.request.groups[0]):
            continue
        found = measure_collectives(
            missing, group, profiler.device.type, profiler.request.precision, profiler.request.threads
        )
        for key, result in found:
            if isinstance(result, str):
                profiler.journal.add_failure("collective", key, result)
            else:
                profiler.journal.add("collective", key, result)
            profiler.report(profiler.part, f"{key['kind']} of {key['num_bytes']:,} bytes over {group} ranks")
            if profiler.is_late() and all(profiler.journal.has("collective", k) for k in keys[: 2 * len(kinds)]):
                break  # each kind has the largest and the smallest size


def dispatch_part(profiler: Profiler) -> None:
    """Iterations of engines that compute nothing, at two batch sizes."""
    from executor.profiling.dispatch import ROWS, dispatch_keys, measure_dispatch

    samples, iterations = (32, 256), 10 if profiler.request.quick else 30
    shared = profiler.request.has_neighbours
    for key in dispatch_keys(profiler.request.launchers, samples, cores_are_shared=shared):
        known = all(profiler.journal.has(ROWS, {**key, "part": part}) for part in PARTS)
        if known or not profiler.has(int(key["ranks"])) or (profiler.is_late() and key["ranks"] != 1):
            continue  # one rank of each launcher in any case: 0 s between calls is no price
        try:
            found, memory = measure_dispatch(key, iterations)
            for part, summary in found.items():
                profiler.journal.add(ROWS, {**key, "part": part}, summary, memory_bytes=memory)
        except FAILURES as error:
            profiler.failed(ROWS, [{**key, "part": part} for part in PARTS], error)
        profiler.report(profiler.part, f"an empty iteration, {', '.join(f'{n} {v}' for n, v in key.items())}")


def parallel_part(profiler: Profiler) -> None:
    """Two ranks at once, on GPUs where there are two; of ranks that share cores ``host_contention_part`` says it."""
    from executor.profiling.parallel_step import CALLS, measure_parallel

    if "ray" not in profiler.request.launchers or profiler.request.has_neighbours or not profiler.has(2):
        return
    for i, probe in enumerate(parallel_probes(profiler.request)):
        keys = [{**probe.key(profiler.request.dtype, call), "ranks": 2} for call in CALLS]
        if all(profiler.journal.has("parallel_step", key) for key in keys) or (i and profiler.is_late()):
            continue
        try:
            for key, found in measure_parallel(probe, profiler.request.dtype, 2, 20):
                profiler.journal.add("parallel_step", key, found)
        except FAILURES as error:
            profiler.failed("parallel_step", keys, error)
        profiler.report(profiler.part, f"{probe.samples} samples on two ranks")


def host_contention_part(profiler: Profiler) -> None:
    """A rank with one of another pool on its host; GPUs share nothing that calls would wait for."""
    from executor.profiling.host_contention import ROWS, calls_with, measure_host_contention, neighbours_of

    if not profiler.request.has_neighbours:
        return
    for i, probe in enumerate(host_contention_probes(profiler.request)):
        numbers, crowded = neighbours_of(crowded=profiler.request.is_crowded), profiler.request.is_crowded
        keys = [{**probe.key(profiler.request.dtype, call), "neighbours": n} for n in numbers for call in calls_with(n)]
        if all(profiler.journal.has(ROWS, key) for key in keys) or (i and profiler.is_late()):
            continue
        try:
            for table, key, found in measure_host_contention(
                probe, profiler.request.dtype, 20, profiler.pace_s, crowded=crowded
            ):
                profiler.journal.add(table, key, found)
        except FAILURES as error:
            profiler.failed(ROWS, keys, error)
        profiler.report(profiler.part, f"calls of {probe.samples} samples with another rank on the host")


def engine_part(profiler: Profiler) -> None:
    """Calls of the training and generation engine alone."""
    from executor.profiling.engine_step import CALLS, measure_probe

    for i, probe in enumerate(probes_for(profiler.request)):
        keys = [probe.key(profiler.request.dtype, call) for call in CALLS]
        least = LEAST_PROBES if profiler.device.type == "cpu" else LEAST_GPU_PROBES
        late = profiler.is_late() and i >= least  # fewer would not tell the constants apart
        if late or all(profiler.journal.has("engine_step", key) for key in keys):
            continue
        try:
            for key, found in measure_probe(
                probe, profiler.request.dtype, profiler.device, profiler.request.precision, profiler.slowness
            ):
                profiler.journal.add("engine_step", key, found)
        except FAILURES as error:
            profiler.failed("engine_step", keys, error)
        profiler.report(profiler.part, f"calls of {probe.samples} samples, {probe.config['num_hidden_layers']} layers")


RUN_PARTS = {
    "engine": engine_part,
    "collective": collective_part,
    "dispatch": dispatch_part,
    "parallel": parallel_part,
    "host_contention": host_contention_part,
}
