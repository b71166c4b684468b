"""Timeline, the outcome: what ran where and when, what it cost in memory, and how sure each number is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from simulator.plan.dataflow import Stage
from simulator.plan.plan import Degree, Record
from simulator.plan.seal import Sealed

if TYPE_CHECKING:
    import pandas as pd


Bytes = Annotated[int, Field(ge=0, le=2**64)]
MOST_S = 1e15
Seconds = Annotated[float, Field(ge=-MOST_S, le=MOST_S)]
"""Of a start or a duration, thirty million years at most: sums and microseconds of it are numbers still."""


class Counts(Record):
    """What the ranks of a measured span counted: sums over its ranks, ``peak_memory_bytes`` of the fullest.

    ``bytes_in`` and ``bytes_out`` are rows of the batch, or weights; ``host_bytes`` were copied between device and host
    for offload, in ``host_s`` seconds of the slowest rank. ``bucket_bytes``, of the fullest rank, is what a transition
    held besides its shards to convert weights from one engine's layout to another's, ``weights_peak_bytes``, of the
    fullest rank, what it held of weights in all: both layouts, views of each other counted once, and the bucket.
    ``device_s`` is the time between events on the device, of the slowest rank. ``draft_steps`` of sequences checked a
    draft, and in ``drafts_kept`` of them the token of each position was kept.
    """

    bytes_in: Bytes
    bytes_out: Bytes
    host_bytes: Bytes
    host_s: Seconds
    peak_memory_bytes: Bytes
    bucket_bytes: Bytes = 0
    weights_peak_bytes: Bytes = 0
    device_s: Seconds = 0.0
    draft_steps: Bytes = 0
    drafts_kept: tuple[Bytes, ...] = ()


class Span(Record):
    """One call on one pool. ``compute_s`` and ``comm_s`` are its parts before they overlap.

    Copies between device and host count as communication. ``counts`` only where the span was measured. ``late_s``: how
    long after its first rank the one started that ended last, and that the iteration waited for.
    """

    call: str
    api: str
    role: str
    pool: str
    stage: Stage
    start_s: Seconds
    end_s: Seconds
    compute_s: Seconds
    comm_s: Seconds
    basis: dict[str, float]
    critical: bool = False
    late_s: Seconds = 0.0
    counts: Counts | None = None

    @property
    def duration_s(self) -> float:
        return self.end_s - self.start_s

    @property
    def rank_s(self) -> float:
        """Seconds of the rank that ended last: what a price is of. Its late start is time between calls."""
        return self.duration_s - self.late_s


class PoolMemory(Record):
    """Peak memory of the fullest GPU of a pool. ``classes`` adds up to ``used_bytes``.

    ``capacity_bytes`` is what a process sees, ``usable_bytes`` what of it the job's headroom leaves a plan; ``None``
    where there is no headroom to speak of: a measured run. ``used_bytes`` holds 95 % of the micro-batches;
    ``full_length_bytes`` is the peak if every sample were as long as it may be, and one micro-batch in
    ``one_in_exceeds`` needs more than there is. Both are ``None`` where that is no other than ``used_bytes``.
    """

    used_bytes: Bytes
    capacity_bytes: Bytes
    usable_bytes: Bytes | None = None
    peak_call: str
    classes: dict[str, Bytes]
    full_length_bytes: Bytes | None = None
    one_in_exceeds: Annotated[int, Field(ge=1, le=2**63)] | None = None


class Timeline(Sealed):
    """One iteration, predicted or measured.

    ``stages`` splits ``iteration_s`` along the critical path, so its values add up to it. ``basis`` is the
    provenance of the iteration: its share on each kind of evidence. ``cluster`` says like which published runs its time
    may be off (``simulator.uncertainty``), ``by_rule`` the share of the model that no table prices, ``log_deviation``
    how far its logarithm is known with a calibration. ``releases``: seconds of the iteration by the facts of other
    releases, where an engine's own is not profiled. ``computed_from`` is the digest of the plan file that it is of, or
    of the plan and the run that were measured; empty where it was not written to a file.
    """

    computed_from: str = ""
    source: Literal["simulated", "measured"]
    iteration_s: Annotated[float, Field(ge=0, le=MOST_S)]
    stages: dict[Stage, Seconds]
    spans: tuple[Span, ...]
    memory: dict[str, PoolMemory]
    basis: dict[str, float]
    tokens: Annotated[float, Field(ge=0, le=MOST_S)]
    num_gpus: Degree
    cluster: str = "rl"
    by_rule: Annotated[float, Field(ge=0, le=1)] = 0.0
    log_deviation: Annotated[float, Field(ge=0, le=10)] | None = None
    releases: dict[str, Annotated[float, Field(gt=0, le=MOST_S)]] = Field(default_factory=dict)

    @property
    def tokens_per_s(self) -> float:
        """Prompt plus response tokens per second of the whole job."""
        return self.tokens / self.iteration_s

    @property
    def between_s(self) -> float:
        """Seconds of the iteration in which no call of its critical path ran."""
        calls_s = sum(span.duration_s for span in self.spans if span.critical and span.stage == "other")
        return self.iteration_s - sum(s for stage, s in self.stages.items() if stage != "other") - calls_s

    def to_pandas(self) -> pd.DataFrame:
        """One row a span, in call order: its fields, ``duration_s``, and ``basis_KIND`` per kind of evidence."""
        import pandas as pd

        rows = []
        for span in self.spans:
            fields = span.model_dump(exclude={"basis"}) | {"duration_s": span.duration_s}
            rows.append(fields | {f"basis_{kind}": share for kind, share in span.basis.items()})
        return pd.DataFrame(rows)
