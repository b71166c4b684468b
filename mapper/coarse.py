"""What is lost between the data-parallel degrees that are listed: a bound that covers the ones left out.

Above ``layout_space.EVERY`` ranks only some degrees are listed (``layout_space.loads``). A degree between two listed
ones has the load of the one below, so no forward or backward pass is faster. It may still do better than that one in
three things, and each is bounded by what the last degree before the next listed one would do: sharded states per GPU,
the optimizer's step on them, and engines on a number of GPUs that no listed degree has. ``Instance.relaxed`` grants
every row all three; no plan beats an optimum of the relaxed instance, listed or not. (Engines that take more than
eight times the GPUs of a training replica are searched on the listed numbers of GPUs only.)
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from simulator import memory, pricing, training

if TYPE_CHECKING:
    from collections.abc import Sequence

    from profiles.records import Floats, Ints
    from simulator.facts import Facts
    from simulator.layouts import GenerationLayouts, Layouts


@dataclass(frozen=True, eq=False)
class Slack:
    """What a row could gain at most in the degrees that it stands for, the last of them ``last_dp``, ``[C]``.

    Bytes per GPU, and seconds by call key.
    """

    last_dp: Ints
    num_bytes: Floats
    seconds: dict[str, Floats]

    def take(self, index: Ints) -> Slack:
        """The rows at ``index``."""
        return Slack(self.last_dp[index], self.num_bytes[index], {key: s[index] for key, s in self.seconds.items()})

    @property
    def any(self) -> bool:
        """Whether some row stands for others."""
        return bool(np.any(self.num_bytes > 0)) or any(bool(np.any(s > 0)) for s in self.seconds.values())

    @staticmethod
    def joined(parts: Sequence[Slack]) -> Slack:
        """Several lists after each other; a call that one of them does not name gains nothing there."""
        keys = dict.fromkeys(key for part in parts for key in part.seconds)
        seconds = {k: np.concatenate([p.seconds.get(k, np.zeros(len(p.num_bytes))) for p in parts]) for k in keys}
        return Slack(np.concatenate([p.last_dp for p in parts]), np.concatenate([p.num_bytes for p in parts]), seconds)

    @staticmethod
    def none(num_rows: int) -> Slack:
        """Rows that stand for themselves alone."""
        return Slack(np.zeros(num_rows, dtype=np.int64), np.zeros(num_rows), {})


def last_degrees(degrees: Sequence[tuple[int, int, int, int, int]]) -> Ints:
    """For each ``(dp, tp, pp, cp, ep)`` of a listing the last data-parallel degree before the next listed one."""
    listed: dict[tuple[int, int, int], list[int]] = {}
    for dp, tp, pp, cp, _ in degrees:
        listed.setdefault((tp, pp, cp), []).append(dp)
    after: dict[tuple[int, int, int, int], int] = {}
    for key, dps in listed.items():
        ordered = sorted(set(dps))
        for dp, following in zip(ordered, [*ordered[1:], ordered[-1] + 1], strict=True):
            after[dp, *key] = following - 1
    return np.asarray([after[dp, tp, pp, cp] for dp, tp, pp, cp, _ in degrees], dtype=np.int64)


def weights_slack(facts: Facts, role: str, train_key: str | None, layouts: Layouts, last_dp: Ints) -> Slack:
    """What rows gain in states and in the optimizer's step at ``last_dp`` data-parallel ranks."""
    if np.array_equal(layouts.dp, last_dp):
        return Slack(last_dp, np.zeros(len(layouts)), {})
    shape, head, wide = facts.roles[role].shape, pricing.head_of(role), replace(layouts, dp=last_dp)
    trained = facts.dataflow.is_trained(role)
    here, there = (memory.total(memory.resident_bytes(facts, shape, head, x, trained)) for x in (layouts, wide))
    seconds = {}
    if train_key is not None:
        steps = facts.workload.epochs * facts.workload.minibatches
        near, far = (training.optimizer_time(facts, shape, head, x).s for x in (layouts, wide))
        seconds[train_key] = np.maximum(steps * (near - far), 0.0)
    return Slack(last_dp, np.maximum(here - there, 0.0), seconds)


def engine_slack(facts: Facts, weights: Layouts, last_dp: Ints, engine: GenerationLayouts, seconds: Floats) -> Floats:
    """What a generation gains at most on the GPUs of ``last_dp`` ranks: time falls no faster than the fullest load."""
    samples = facts.workload.num_samples
    most = last_dp * weights.tp * weights.pp * weights.cp // (engine.tp * engine.pp)
    load = np.ceil(samples / engine.dp)
    return np.asarray(seconds * (1.0 - np.ceil(samples / np.maximum(most, engine.dp)) / load))
