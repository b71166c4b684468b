"""Timelines as a Chrome trace, the JSON that Perfetto and ``chrome://tracing`` open.

One process a timeline, one thread a pool; times in microseconds from the start of the iteration. Calls are complete
events (``ph`` X), the critical path is a chain of flow events (s, t, f), peak memory a counter (C) that holds from
the start to the end. The format: "Trace Event Format", Google, public document of the Catapult project.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from simulator.plan.plan import Plan
    from simulator.plan.timeline import Span, Timeline

MICROSECONDS = 1e6

COLORS = {
    "generation": "thread_state_running",
    "transition": "thread_state_uninterruptible",
    "preparation": "thread_state_runnable",
    "training": "rail_response",
    "weight_sync": "thread_state_uninterruptible",
    "other": "grey",
}
"""Names from the viewers' fixed palette, by stage."""


def trace_document(timelines: Mapping[str, Timeline], plan: Plan | None = None) -> dict[str, Any]:
    """The trace of some timelines of one job, each under its name; a plan says which GPUs a pool has."""
    events: list[dict[str, Any]] = []
    for pid, (name, timeline) in enumerate(timelines.items(), start=1):
        events += _process(pid, name, timeline, plan)
    metadata: dict[str, Any] = {"schema_version": 1, "computed_from": {n: t.digest_now() for n, t in timelines.items()}}
    metadata |= {name: _summary(timeline) for name, timeline in timelines.items()}
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": metadata}


def _process(pid: int, name: str, timeline: Timeline, plan: Plan | None) -> Iterator[dict[str, Any]]:
    title = f"{name}: {timeline.iteration_s:,.2f} s on {timeline.num_gpus:,} GPUs"
    yield _named("process_name", pid, 0, title)
    yield {"ph": "M", "name": "process_sort_index", "pid": pid, "tid": 0, "args": {"sort_index": pid}}
    threads = {pool: tid for tid, pool in enumerate(_pools(timeline), start=1)}
    for pool, tid in threads.items():
        yield _named("thread_name", pid, tid, _pool_title(pool, plan))
        yield {"ph": "M", "name": "thread_sort_index", "pid": pid, "tid": tid, "args": {"sort_index": tid}}
    for span in timeline.spans:
        yield _complete(pid, threads[span.pool], span)
    yield from _critical(pid, threads, [span for span in timeline.spans if span.critical])
    for pool, memory in timeline.memory.items():
        for at_s in (0.0, timeline.iteration_s):
            gib = {name: size / 2**30 for name, size in memory.classes.items()}
            yield {
                "ph": "C",
                "name": f"peak memory of {pool} (GiB)",
                "pid": pid,
                "ts": at_s * MICROSECONDS,
                "args": gib,
            }


def _pools(timeline: Timeline) -> list[str]:
    """Pools of the spans, those with memory first: the controller has none."""
    there = dict.fromkeys(span.pool for span in timeline.spans)
    return [
        *(pool for pool in timeline.memory if pool in there),
        *(pool for pool in there if pool not in timeline.memory),
    ]


def _pool_title(pool: str, plan: Plan | None) -> str:
    found = next((p for p in plan.pools if p.name == pool), None) if plan is not None else None
    if found is None:
        return pool if pool == "controller" else f"pool {pool}"
    last = found.first_gpu + found.num_gpus - 1
    return f"pool {pool}, GPUs {found.first_gpu}-{last} ({', '.join(found.roles) or 'generation'})"


def _named(kind: str, pid: int, tid: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": {"name": name}}


def _complete(pid: int, tid: int, span: Span) -> dict[str, Any]:
    return {
        "ph": "X",
        "name": span.call,
        "cat": span.stage,
        "pid": pid,
        "tid": tid,
        "cname": COLORS[span.stage],
        "ts": span.start_s * MICROSECONDS,
        "dur": span.duration_s * MICROSECONDS,
        "args": {
            "role": span.role,
            "api": span.api,
            "compute_s": span.compute_s,
            "communication_s": span.comm_s,
            "critical": span.critical,
            "basis": dict(span.basis),
        },
    }


def _critical(pid: int, threads: Mapping[str, int], spans: Sequence[Span]) -> Iterator[dict[str, Any]]:
    """Arrows from call to call along the critical path."""
    path = sorted((span for span in spans if span.duration_s > 0), key=lambda span: (span.start_s, span.end_s))
    if len(path) < 2:
        return
    for i, span in enumerate(path):
        phase = "s" if i == 0 else "f" if i == len(path) - 1 else "t"
        bound = {"bp": "e"} if phase == "f" else {}  # bind to the slice that encloses the end of the arrow
        middle = (span.start_s + span.end_s) / 2 * MICROSECONDS
        yield {
            "ph": phase,
            "name": "critical path",
            "cat": "critical",
            "id": pid,
            "pid": pid,
            "tid": threads[span.pool],
            "ts": middle,
            **bound,
        }


def _summary(timeline: Timeline) -> dict[str, Any]:
    return {
        "source": timeline.source,
        "iteration_s": timeline.iteration_s,
        "tokens_per_s": timeline.tokens_per_s,
        "num_gpus": timeline.num_gpus,
        "stages": dict(timeline.stages),
    }
