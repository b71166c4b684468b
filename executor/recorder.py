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
    one rank, its pool named ``A/0``. ``compute_s`` and ``comm_s`` are those of the rank that took longest. Stage times
    are those of the ranks that the iteration waited for; a span is critical where one of its ranks was among them.
    ``in_turn``: one process made all calls, each after the one before, whatever their pools.
    """
    stages = {call.key: call.stage for call in flow.calls}
    mine = [record for record in records if record.key in stages]
    grouped: dict[tuple[int, str], list[CallRecord]] = {}
    for record in mine:
        grouped.setdefault((record.number, _place(record, per_rank)), []).append(record)
    inputs = {call.key: tuple(stages) if in_turn else call.inputs for call in flow.calls}
    path, between_s = _critical(mine, start_s, end_s, inputs)
    critical = {(record.number, _place(record, per_rank)) for record in path}
    spans = [_span(at[1], found, stages, start_s, at in critical) for at, found in sorted(grouped.items())]
    shares: dict[Stage, float] = dict.fromkeys(STAGES, 0.0)
    shares["other"] = between_s
    for record in path:
        shares[stages[record.key]] += record.end_s - record.start_s
    return Timeline(
        source="measured",
        iteration_s=end_s - start_s,
        stages={stage: share for stage, share in shares.items() if share > 0},
        spans=tuple(spans),
        memory=_memory(mine),
        basis={"measured": 1.0},
        tokens=tokens,
        num_gpus=num_gpus,
    )


def _place(record: CallRecord, per_rank: bool) -> str:
    return f"{record.pool}/{record.rank}" if per_rank else record.pool


def _span(place: str, records: Sequence[CallRecord], stages: dict[str, Stage], origin_s: float, critical: bool) -> Span:
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
        critical=critical,
        late_s=max(records, key=lambda r: r.end_s).start_s - start_s,
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
    records: Sequence[CallRecord], start_s: float, end_s: float, inputs: Mapping[str, tuple[str, ...]]
) -> tuple[list[CallRecord], float]:
    """The records that an iteration waited for, and the seconds between them.

    Walks back from the last record, each time to the latest that it waited for. A rank's call waits for its inputs on
    all their ranks and for the calls of its own rank: one goes on to its next call while another is late. Calls of
    other pools that the controller started a moment earlier are no part of its path. What waited for nothing on record
    (an iteration's first call, one whose inputs are of an iteration before) follows whatever had ended.
    """
    left, at_s, between_s = list(records), end_s, 0.0
    path: list[CallRecord] = []
    while before := [record for record in left if record.end_s <= at_s + _NEAR_S]:
        last = path[-1] if path else None
        waited = [r for r in before if last is None or _same_rank(r, last) or r.key in inputs[last.key]]
        latest = max(waited or before, key=lambda r: r.end_s)
        between_s += max(at_s - latest.end_s, 0.0)
        path.append(latest)
        left.remove(latest)
        at_s = latest.start_s
    return path, between_s + at_s - start_s


def _same_rank(one: CallRecord, other: CallRecord) -> bool:
    return (one.pool, one.rank) == (other.pool, other.rank)


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
