"""Layouts as arrays: the price functions take many candidates at once, or one."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING

import numpy as np

from simulator.plan.plan import RECOMPUTE_LEVELS, GenerationLayout, ParallelLayout

if TYPE_CHECKING:
    from collections.abc import Sequence

    from profiles.records import Ints


@dataclass(frozen=True, eq=False)
class Layouts:
    """``ParallelLayout`` by column, each of shape ``[C]``; ``recompute`` indexes ``RECOMPUTE_LEVELS``."""

    dp: Ints
    tp: Ints
    pp: Ints
    cp: Ints
    ep: Ints
    zero_stage: Ints
    micro_batch: Ints
    recompute: Ints
    vpp: Ints = field(default_factory=lambda: np.ones(1, dtype=np.int64))

    def __post_init__(self) -> None:
        if len(self.vpp) != len(self):  # one value for all candidates
            object.__setattr__(self, "vpp", np.broadcast_to(self.vpp, self.dp.shape))

    @staticmethod
    def of(layouts: Sequence[ParallelLayout]) -> Layouts:
        """Stack records into columns."""
        columns = [
            (x.dp, x.tp, x.pp, x.cp, x.ep, x.zero_stage, x.micro_batch, RECOMPUTE_LEVELS.index(x.recompute), x.vpp)
            for x in layouts
        ]
        return Layouts(*np.asarray(columns, dtype=np.int64).reshape(-1, 9).T)

    def record(self, i: int) -> ParallelLayout:
        """The ``i``-th candidate as a plan carries it."""
        return ParallelLayout(
            dp=int(self.dp[i]),
            tp=int(self.tp[i]),
            pp=int(self.pp[i]),
            cp=int(self.cp[i]),
            ep=int(self.ep[i]),
            zero_stage=int(self.zero_stage[i]),
            micro_batch=int(self.micro_batch[i]),
            recompute=RECOMPUTE_LEVELS[int(self.recompute[i])],
            sequence_parallel=True,
            vpp=int(self.vpp[i]),
        )

    def take(self, index: Ints) -> Layouts:
        """The candidates at ``index``, in that order."""
        return Layouts(
            self.dp[index],
            self.tp[index],
            self.pp[index],
            self.cp[index],
            self.ep[index],
            self.zero_stage[index],
            self.micro_batch[index],
            self.recompute[index],
            self.vpp[index],
        )

    @staticmethod
    def joined(parts: Sequence[Layouts]) -> Layouts:
        """Several lists of candidates after each other."""
        return Layouts(*(np.concatenate([getattr(x, f.name) for x in parts]) for f in fields(Layouts)))

    @property
    def num_gpus(self) -> Ints:
        return self.dp * self.tp * self.pp * self.cp

    def __len__(self) -> int:
        return int(self.dp.shape[0])


def _ones() -> Ints:
    return np.ones(1, dtype=np.int64)


def _zero() -> Ints:
    return np.zeros(1, dtype=np.int64)


@dataclass(frozen=True, eq=False)
class GenerationLayouts:
    """``GenerationLayout`` by column, each of shape ``[C]``.

    ``kv_cache_bytes`` 0 states no budget: it stands for what ``kv_budget.kv_budget_bytes`` gives, so nothing waits for
    cache.
    """

    dp: Ints
    tp: Ints
    pp: Ints
    max_num_seqs: Ints
    ep: Ints = field(default_factory=_ones)
    attention_dp: Ints = field(default_factory=_ones)
    kv_cache_bytes: Ints = field(default_factory=_zero)

    def __post_init__(self) -> None:
        for name in ("ep", "attention_dp", "kv_cache_bytes"):  # one value for all candidates
            if len(getattr(self, name)) != len(self):
                object.__setattr__(self, name, np.broadcast_to(getattr(self, name), self.dp.shape))

    @staticmethod
    def of(layouts: Sequence[GenerationLayout]) -> GenerationLayouts:
        """Stack records into columns."""
        columns = [(x.dp, x.tp, x.pp, x.max_num_seqs, x.ep, x.attention_dp, x.kv_cache_bytes) for x in layouts]
        return GenerationLayouts(*np.asarray(columns, dtype=np.int64).reshape(-1, 7).T)

    def record(self, i: int) -> GenerationLayout:
        """The ``i``-th candidate as a plan carries it."""
        return GenerationLayout(**{f.name: int(getattr(self, f.name)[i]) for f in fields(self)})

    def take(self, index: Ints) -> GenerationLayouts:
        """The candidates at ``index``, in that order."""
        return GenerationLayouts(
            self.dp[index],
            self.tp[index],
            self.pp[index],
            self.max_num_seqs[index],
            self.ep[index],
            self.attention_dp[index],
            self.kv_cache_bytes[index],
        )

    @staticmethod
    def joined(parts: Sequence[GenerationLayouts]) -> GenerationLayouts:
        """Several lists of candidates after each other."""
        columns = (np.concatenate([getattr(x, f.name) for x in parts]) for f in fields(GenerationLayouts))
        return GenerationLayouts(*columns)

    @property
    def num_gpus(self) -> Ints:
        return self.dp * self.tp * self.pp

    @property
    def attention_ranks(self) -> Ints:
        """GPUs that share the heads of one sequence: those of one attention copy."""
        return np.asarray(np.maximum(self.tp // self.attention_dp, 1), dtype=np.int64)

    def __len__(self) -> int:
        return int(self.dp.shape[0])
