"""Serve a load to its end on an engine's scheduler, and what its requests saw."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from simulator.serving.loop import Loop
from simulator.serving.queue import Queue, is_queue
from simulator.serving.requests import Clock
from simulator.serving.run import Served, check
from simulator.serving.sequences import Sequences

if TYPE_CHECKING:
    from profiles.records import Floats, Ints
    from simulator.serving.run import Load, Scheduler, StepPrices


def serve(scheduler: Scheduler, load: Load, prices: StepPrices) -> Served:
    """Run ``load`` to its end; raises as ``serving.run.check``."""
    check(scheduler, load)
    clock, lengths = Clock(prices), load.lengths()
    loop: Queue | Loop
    if is_queue(scheduler, load):
        loop = Queue(scheduler, load, clock)
    else:
        inside = Sequences(scheduler.kv_tokens, scheduler.tokens_of_a_sequence)
        loop = Loop(scheduler, load, prices, lengths, clock, inside)
    loop.run()
    times = clock.times()
    kept = _latencies(loop.done, times)[load.warm_up :]
    (ttft, tpot), (ttft_median, tpot_median) = kept.mean(axis=0).tolist(), np.median(kept, axis=0).tolist()
    tokens, duration = sum(response for _, response in lengths), float(times[-1])
    return Served(ttft, tpot, ttft_median, tpot_median, tokens / duration, duration, loop.evictions)


def _latencies(done: Ints, times: Floats) -> Floats:
    """Time to the first token and per token after it, shape ``[requests, 2]``, in the order in which they ended."""
    sent, first, end, response, count = done.T
    began = times[first]
    both = np.stack([began - times[sent], (times[end] - began) / np.maximum(response - 1, 1)], axis=1)
    return np.asarray(np.repeat(both, count, axis=0), dtype=np.float64)
