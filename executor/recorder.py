"""From what ranks report to a ``Timeline`` of the simulator's type, and to files that are whole or not there."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from executor.memory import memory_capacity_bytes
from profiles.atomic_write import sync, write_atomically
from profiles.errors import FileFormatError
from simulator.plan.dataflow import STAGES, Stage
from simulator.plan.timeline import Counts, PoolMemory, Span, Timeline

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from executor.records import CallRecord
    from simulator.plan.dataflow import Dataflow

_NEAR_S = 1e-9


def timeline_of(
    records: Iterable[CallRecord],
    flow: Dataflow,
    start_s: float,
    end_s: float,
    *,
    tokens: float,
    num_gpus: int,
    per_rank: bool = False,
    in_turn: bool = False,
) -> Timeline:
    """One iteration between two wall-clock times, from the records of its calls; other calls are left out.

    A span is a call on its pool, from its first rank's start to its last rank's end, or with ``per_rank`` a call on
    one rank, its pool named ``A/0``. ``compute_s`` and ``comm_s`` are those of the rank that took longest. ``in_turn``:
    one process made all calls, each after the one before, whatever their pools.
    """
    stages = {call.key: call.stage for call in flow.calls}
    grouped: dict[tuple[int, str], list[CallRecord]] = {}
    for record in records:
        if record.key in stages:
            place = f"{record.pool}/{record.rank}" if per_rank else record.pool
            grouped.setdefault((record.number, place), []).append(record)
    spans = [_span(place, found, stages, start_s) for (_, place), found in sorted(grouped.items())]
    inputs = {call.key: tuple(stages) if in_turn else call.inputs for call in flow.calls}
    marked, shares = _critical(spans, end_s - start_s, inputs)
    return Timeline(
        source="measured",
        iteration_s=end_s - start_s,
        stages=shares,
        spans=tuple(marked),
        memory=_memory([r for found in grouped.values() for r in found]),
        basis={"measured": 1.0},
        tokens=tokens,
        num_gpus=num_gpus,
    )


def _span(place: str, records: Sequence[CallRecord], stages: dict[str, Stage], origin_s: float) -> Span:
    longest = max(records, key=lambda r: r.end_s - r.start_s)
    comm_s = longest.comm_s + longest.host_s
    start_s, end_s = min(r.start_s for r in records), max(r.end_s for r in records)
    return Span(
        call=longest.key,
        api=longest.api,
        role=longest.role,
        pool=place,
        stage=stages[longest.key],
        start_s=start_s - origin_s,
        end_s=end_s - origin_s,
        compute_s=max(longest.end_s - longest.start_s - comm_s, 0.0),
        comm_s=comm_s,
        basis={"measured": end_s - start_s},
        counts=_counts(records),
    )


def _counts(records: Sequence[CallRecord]) -> Counts:
    return Counts(
        bytes_in=sum(r.bytes_in for r in records),
        bytes_out=sum(r.bytes_out for r in records),
        host_bytes=sum(r.host_bytes for r in records),
        host_s=max(r.host_s for r in records),
        bucket_bytes=max(r.bucket_bytes for r in records),
        weights_peak_bytes=max(r.weights_peak_bytes for r in records),
        device_s=max(r.device_s for r in records),
        peak_memory_bytes=max(r.peak_memory_bytes for r in records),
        draft_steps=sum(r.drafted.steps for r in records),
        drafts_kept=tuple(sum(kept) for kept in zip(*(r.drafted.kept for r in records if r.drafted.kept), strict=True)),
    )


def _critical(
    spans: list[Span], iteration_s: float, inputs: Mapping[str, tuple[str, ...]]
) -> tuple[list[Span], dict[Stage, float]]:
    """Walk back from the last span, each time to the latest that it waited for; time between spans is ``other``.

    A call waits for its inputs and for its pool. Calls of other pools that the controller started a moment earlier
    are no part of its path. What waited for nothing on record (an iteration's first call, one whose inputs are of an
    iteration before) follows whatever had ended.
    """
    shares: dict[Stage, float] = dict.fromkeys(STAGES, 0.0)
    at_s, critical, span = iteration_s, set(), None
    while True:
        before = [i for i, other in enumerate(spans) if i not in critical and other.end_s <= at_s + _NEAR_S]
        if not before:
            break
        waited = [i for i in before if span is None or spans[i].pool == span.pool or spans[i].call in inputs[span.call]]
        latest = max(waited or before, key=lambda i: spans[i].end_s)
        span = spans[latest]
        critical.add(latest)
        shares["other"] += at_s - min(span.end_s, at_s)
        shares[span.stage] += min(span.end_s, at_s) - span.start_s
        at_s = span.start_s
    shares["other"] += at_s
    marked = [s.model_copy(update={"critical": i in critical}) for i, s in enumerate(spans)]
    return marked, {stage: share for stage, share in shares.items() if share > 0}


def _memory(records: Sequence[CallRecord]) -> dict[str, PoolMemory]:
    """The fullest rank of each pool."""
    memory = {}
    for pool in dict.fromkeys(record.pool for record in records):
        fullest = max((r for r in records if r.pool == pool), key=lambda r: r.peak_memory_bytes)
        used = fullest.peak_memory_bytes
        memory[pool] = PoolMemory(
            used_bytes=used, capacity_bytes=memory_capacity_bytes(), peak_call=fullest.key, classes={"process": used}
        )
    return memory


class MetricsLog:
    """``metrics.jsonl``, one line an iteration, and TensorBoard events where it is installed.

    A run that resumes with iteration ``first`` keeps the lines before it and takes back the others.
    """

    def __init__(self, folder: Path, first: int = 0) -> None:
        self._path = folder / "metrics.jsonl"
        self._lines = _lines_before(self._path, first) if first else ""
        self._board = _tensorboard(folder, first)

    def write(self, iteration: int, metrics: dict[str, Any]) -> None:
        """Add an iteration; the file on disk always ends with a whole line."""
        self._lines += json.dumps({"iteration": iteration, **metrics}) + "\n"
        write_atomically(self._path, self._lines)
        if self._board is not None:
            for name, value in metrics.items():
                self._board.add_scalar(name, value, iteration)

    def sync(self) -> None:
        """Wait until all lines are on disk."""
        if self._path.exists():
            sync(self._path)
            sync(self._path.parent)

    def close(self) -> None:
        """Flush TensorBoard."""
        if self._board is not None:
            self._board.close()


def _lines_before(path: Path, first: int) -> str:
    """The lines of the iterations before ``first``; ``FileFormatError`` for a line that is no iteration's."""
    if not path.exists():
        return ""
    kept = ""
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        try:
            iteration = json.loads(line)["iteration"]
        except (ValueError, KeyError, TypeError) as error:
            raise FileFormatError(f"{path}, line {number}: not the metrics of an iteration ({error})") from error
        kept += line + "\n" if iteration < first else ""
    return kept


def _tensorboard(folder: Path, first: int) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None
    return SummaryWriter(str(folder / "tensorboard"), purge_step=first or None)
