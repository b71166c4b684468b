"""What a transition did on one rank: bytes by cause, peak memory, time, and which way it went."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class TransitionReport:
    """Counted, not computed: ``received_bytes`` and ``sent_bytes`` at the collectives, ``peak_bytes`` at the allocator.

    Parameters
    ----------
    path
        ``local`` (every rank has its part already), ``gather`` (bucket by bucket into the engine's own tensors), or
        ``general`` where no group can.
    bucket_bytes
        Of the peak, what conversion took besides the two shards: the largest bucket. ``TransferPlan`` says the same.
    by_cause
        What the weight map says this rank receives, by cause; sums to ``received_bytes``.
    kept_bytes
        Of the training shard, what stays in memory while the rank generates.
    reason
        Why the general way was taken, and what it costs beside the strided one; empty otherwise.
    """

    path: str
    received_bytes: int
    sent_bytes: int
    peak_bytes: int
    bucket_bytes: int
    training_bytes: int
    generation_bytes: int
    seconds: float
    by_cause: dict[str, int] = field(default_factory=dict)
    kept_bytes: int = 0
    reason: str = ""
