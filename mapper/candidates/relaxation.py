"""What is lost between the data-parallel degrees that are listed: a bound that covers the ones left out.

Above ``layouts.EVERY`` ranks only some degrees are listed (``layouts.loads``). A degree between two listed
ones has the load of the one below, so no forward or backward pass is faster. It may still do better than that one in
three things. Two are bounded by what the last degree before the next listed one would do: sharded states per GPU, and
the optimizer's step on them. The third are engines on a number of GPUs that no listed degree has: those are rows of
their own, at their own price, which are in no plan and only in the bound (``Credit.unlisted``). ``Instance.relaxed``
grants all three; no plan beats an optimum of the relaxed instance, listed or not.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from simulator.cost import memory
from simulator.cost.data_parallel import optimizer_time
from simulator.cost.role_layouts import head_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from profiles.records import Floats, Ints
    from simulator.facts import Facts
    from simulator.plan.layouts import Layouts


@dataclass(frozen=True, eq=False)
class Credit:
    """What a row could gain at most in the degrees that it stands for, the last of them ``last_dp``, ``[C]``.

    Bytes per GPU, and seconds by call key. An ``unlisted`` row is itself of such a degree.
    """

    last_dp: Ints
    num_bytes: Floats
    seconds: dict[str, Floats]
    unlisted: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(1, dtype=np.bool_))

    def __post_init__(self) -> None:
        if len(self.unlisted) != len(self.num_bytes):  # one value for all rows
            object.__setattr__(self, "unlisted", np.broadcast_to(self.unlisted, self.num_bytes.shape))

    def take(self, index: Ints) -> Credit:
        """The rows at ``index``."""
        seconds = {key: s[index] for key, s in self.seconds.items()}
        return Credit(self.last_dp[index], self.num_bytes[index], seconds, self.unlisted[index])

    @property
    def any(self) -> bool:
        """Whether some row stands for others, or is of a degree that is not listed."""
        return bool(np.any(self.unlisted | (self.num_bytes > 0))) or any(
            bool(np.any(s > 0)) for s in self.seconds.values()
        )

    @staticmethod
    def joined(parts: Sequence[Credit]) -> Credit:
        """Several lists after each other; a call that one of them does not name gains nothing there."""
        keys = dict.fromkeys(key for part in parts for key in part.seconds)
        seconds = {k: np.concatenate([p.seconds.get(k, np.zeros(len(p.num_bytes))) for p in parts]) for k in keys}
        last_dp, num_bytes, unlisted = (
            np.concatenate([getattr(part, name) for part in parts]) for name in ("last_dp", "num_bytes", "unlisted")
        )
        return Credit(last_dp, num_bytes, seconds, unlisted)

    @staticmethod
    def none(num_rows: int) -> Credit:
        """Rows that stand for themselves alone."""
        return Credit(np.zeros(num_rows, dtype=np.int64), np.zeros(num_rows), {})


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


def weights_slack(facts: Facts, role: str, train_key: str | None, layouts: Layouts, last_dp: Ints) -> Credit:
    """What rows gain in states and in the optimizer's step at ``last_dp`` data-parallel ranks."""
    if np.array_equal(layouts.dp, last_dp):
        return Credit(last_dp, np.zeros(len(layouts)), {})
    shape, head, wide = facts.roles[role].shape, head_of(role), replace(layouts, dp=last_dp)
    trained = facts.dataflow.is_trained(role)
    here, there = (memory.total(memory.resident_bytes(facts, shape, head, x, trained)) for x in (layouts, wide))
    seconds = {}
    if train_key is not None:
        steps = facts.workload.epochs * facts.workload.minibatches
        near, far = (optimizer_time(facts, shape, head, x).s for x in (layouts, wide))
        seconds[train_key] = np.maximum(steps * (near - far), 0.0)
    return Credit(last_dp, np.maximum(here - there, 0.0), seconds)
