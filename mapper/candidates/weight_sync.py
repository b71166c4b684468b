"""The transfer of weights between two pools in the search: its price depends on both ends.

A row of the generator knows its own end only. ``WeightSync`` prices it for a number of sending GPUs of one type, as
``simulate`` does, and for a range of them the least, which bounds every plan whose trainer lies in the range.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from simulator.cost import pricing
from simulator.cost.weight_sync import weight_sync_cost

if TYPE_CHECKING:
    from mapper.candidates.table import RoleTable
    from profiles.records import Ints
    from simulator.facts import Facts


@dataclass(frozen=True)
class WeightSync:
    """Prices transfers for one job, in ticks of ``tick_s`` seconds."""

    facts: Facts
    tick_s: float

    def ticks(self, table: RoleTable, device_type: str, senders: int) -> Ints:
        """Ticks of the transfer from ``senders`` GPUs of ``device_type`` to each row of the generator's table."""
        engine = table.layouts.generation
        assert engine is not None, "the generator generates"
        role = next(role for role in self.facts.dataflow.roles if self.facts.dataflow.generates(role))
        spec, home = self.facts.roles[role], self.facts.on(device_type)
        out = np.zeros(len(table), dtype=np.int64)
        for i in np.unique(table.device_type).tolist():
            rows = np.flatnonzero(table.device_type == i)
            there = self.facts.on(self.facts.device_types[i])
            cost = weight_sync_cost(home, spec.shape, senders, engine.take(rows), spec.precision, there)
            called = pricing.as_called(home, pricing.call_of_kind(home, "transition"), cost, senders)
            out[rows] = np.rint(called.time.s / self.tick_s)
        return out

    def least(self, table: RoleTable, device_type: str, senders: Ints) -> Ints:
        """The least ticks of the transfer to each row over the numbers of sending GPUs in ``senders``.

        From an NVLink domain on the price only grows with the senders, so of those the fewest stands for all.
        """
        domain = self.facts.on(device_type).group.nvlink_domain_gpus
        few, many = senders[senders < domain], senders[senders >= domain]
        tried = [*np.unique(few).tolist(), *([int(many.min())] if len(many) else [])]
        return np.asarray(np.min([self.ticks(table, device_type, n) for n in tried], axis=0), dtype=np.int64)
