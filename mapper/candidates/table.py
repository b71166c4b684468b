"""The candidates of one role as a table: configurations by row, what each costs and needs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from mapper.candidates.floors import Unpriced
from mapper.candidates.relaxation import Credit
from profiles.units import MIB
from simulator.cost.role_layouts import RoleLayouts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from profiles.records import Floats, Ints
    from simulator.plan.plan import GenerationLayout, ParallelLayout


@dataclass(frozen=True, eq=False)
class RoleTable:
    """Configurations of one role, one per row ``[C]``, for all pool sizes together.

    Parameters
    ----------
    kind
        Kind of GPU, as a position in ``Facts.device_types``; times and memory are those on that kind.
    num_gpus
        The smallest pool that holds the row; it runs on larger ones as well and leaves GPUs idle there.
    durations_s
        Seconds of each of the role's calls, by call key.
    resident_bytes, transient_bytes
        What the role keeps on each GPU, and the most that one of its calls adds.
    layouts
        The layouts themselves, row by row.
    slack
        What a row could gain in the degrees that it stands for.
    offload
        What waits in host memory while other roles run, as a position in ``options.OFFLOADS`` or, for a role
        that only scores, ``FROZEN_OFFLOADS``.
    num_priced
        Configurations priced before filtering and pruning.
    unpriced
        Where time was up before all were priced: what is known of the others.
    """

    role: str
    device_type: Ints
    num_gpus: Ints
    durations_s: dict[str, Floats]
    resident_bytes: Floats
    transient_bytes: Floats
    layouts: RoleLayouts
    num_priced: int
    offload: Ints
    credit: Credit
    unpriced: Unpriced | None = None

    def __len__(self) -> int:
        return len(self.num_gpus)

    def take(self, index: Ints) -> RoleTable:
        """The rows at ``index``."""
        x = self.layouts
        return replace(
            self,
            device_type=self.device_type[index],
            num_gpus=self.num_gpus[index],
            durations_s={key: value[index] for key, value in self.durations_s.items()},
            resident_bytes=self.resident_bytes[index],
            transient_bytes=self.transient_bytes[index],
            layouts=x.take(index),
            offload=self.offload[index],
            credit=self.credit.take(index),
        )

    def listed(self) -> RoleTable:
        """The rows that a plan may have."""
        away = self.credit.unlisted
        return self.take(np.flatnonzero(~away)) if np.any(away) else self

    def relaxed(self) -> RoleTable:
        """The rows as good as the best that they stand for could be."""
        gain, away = self.credit, self.offload > 0  # what is away comes back for a call, so that call gains too
        none = np.zeros(len(self))
        return replace(
            self,
            durations_s={key: s - gain.seconds.get(key, none) for key, s in self.durations_s.items()},
            resident_bytes=np.maximum(self.resident_bytes - gain.num_bytes, 0.0),
            transient_bytes=np.maximum(self.transient_bytes - np.where(away, gain.num_bytes, 0.0), 0.0),
        )

    def records(self, row: int) -> tuple[ParallelLayout | None, ParallelLayout | None, GenerationLayout | None]:
        """The row's training, inference and generation layouts as a plan carries them."""
        training, inference, generation = self.layouts.training, self.layouts.inference, self.layouts.generation
        return (
            training.record(row) if training else None,
            inference.record(row) if inference else None,
            generation.record(row) if generation else None,
        )


def joined(tables: Sequence[RoleTable]) -> RoleTable:
    """The rows of several kinds' tables of one role, in their order."""
    first = tables[0]
    if len(tables) == 1:
        return first
    return RoleTable(
        role=first.role,
        device_type=np.concatenate([t.device_type for t in tables]),
        num_gpus=np.concatenate([t.num_gpus for t in tables]),
        durations_s={key: np.concatenate([t.durations_s[key] for t in tables]) for key in first.durations_s},
        resident_bytes=np.concatenate([t.resident_bytes for t in tables]),
        transient_bytes=np.concatenate([t.transient_bytes for t in tables]),
        layouts=RoleLayouts.joined([t.layouts for t in tables]),
        num_priced=sum(t.num_priced for t in tables),
        offload=np.concatenate([t.offload for t in tables]),
        credit=Credit.joined([t.credit for t in tables]),
        unpriced=Unpriced.joined([t.unpriced for t in tables if t.unpriced is not None]),
    )


def to_mib(num_bytes: Floats) -> Ints:
    """Whole MiB, rounded up, so that what fits in MiB fits in bytes."""
    return np.asarray(np.ceil(num_bytes / MIB), dtype=np.int64)


def by_gpus(table: RoleTable) -> RoleTable:
    """The rows in the order of the pools that they need, those that are in no plan last."""
    return table.take(np.lexsort((table.num_gpus, table.credit.unlisted)))


def degrees_of(layouts: RoleLayouts) -> Ints:
    """What tells a role's layouts apart for people, ``[C, columns]``: degrees of training and of the engine."""
    weights = layouts.training if layouts.training is not None else layouts.inference
    engine = layouts.generation
    columns = [] if weights is None else [weights.dp, weights.tp, weights.pp, weights.cp, weights.ep]
    columns += [] if engine is None else [engine.dp, engine.tp, engine.pp, engine.ep, engine.attention_dp]
    return np.stack(columns, axis=1)
