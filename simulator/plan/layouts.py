"""Layouts as arrays: the price functions take many candidates at once, or one."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Self

import numpy as np

from simulator.plan.plan import RECOMPUTE_LEVELS, GenerationLayout, ParallelLayout, TokenBudget

if TYPE_CHECKING:
    from collections.abc import Sequence

    from profiles.records import Ints


@dataclass(frozen=True, eq=False)
class _Columns:
    """Candidates by column: each field holds one number of every candidate, ``[C]``."""

    dp: Ints

    def take(self, index: Ints) -> Self:
        """The candidates at ``index``, in that order."""
        return type(self)(*(getattr(self, f.name)[index] for f in fields(self)))

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """Several lists of candidates after each other."""
        return cls(*(np.concatenate([getattr(part, f.name) for part in parts]) for f in fields(cls)))

    def __len__(self) -> int:
        return int(self.dp.shape[0])


@dataclass(frozen=True, eq=False)
class Layouts(_Columns):
    """``ParallelLayout`` by column, each of shape ``[C]``; ``recompute`` indexes ``RECOMPUTE_LEVELS``.

    ``token_budget`` is 0 where micro-batches are counted in samples; where it is not, ``micro_batch`` has no meaning.
    """

    tp: Ints
    pp: Ints
    cp: Ints
    ep: Ints
    zero_stage: Ints
    micro_batch: Ints
    recompute: Ints
    vpp: Ints = field(default_factory=lambda: np.ones(1, dtype=np.int64))
    token_budget: Ints = field(default_factory=lambda: np.zeros(1, dtype=np.int64))

    def __post_init__(self) -> None:
        for name in ("vpp", "token_budget"):  # one value for all candidates
            if len(getattr(self, name)) != len(self):
                object.__setattr__(self, name, np.broadcast_to(getattr(self, name), self.dp.shape))

    @staticmethod
    def of(layouts: Sequence[ParallelLayout]) -> Layouts:
        """Stack records into columns."""
        columns = [
            (
                *(x.dp, x.tp, x.pp, x.cp, x.ep, x.zero_stage),
                *(1 if x.token_budget else x.micro_samples, RECOMPUTE_LEVELS.index(x.recompute)),
                *(x.vpp, x.token_budget or 0),
            )
            for x in layouts
        ]
        return Layouts(*np.asarray(columns, dtype=np.int64).reshape(-1, 10).T)

    def record(self, i: int) -> ParallelLayout:
        """The ``i``-th candidate as a plan carries it."""
        budget = int(self.token_budget[i])
        return ParallelLayout(
            dp=int(self.dp[i]),
            tp=int(self.tp[i]),
            pp=int(self.pp[i]),
            cp=int(self.cp[i]),
            ep=int(self.ep[i]),
            zero_stage=int(self.zero_stage[i]),
            micro_batch=TokenBudget(tokens=budget) if budget else int(self.micro_batch[i]),
            recompute=RECOMPUTE_LEVELS[int(self.recompute[i])],
            sequence_parallel=True,
            vpp=int(self.vpp[i]),
        )

    @property
    def num_gpus(self) -> Ints:
        return self.dp * self.tp * self.pp * self.cp


def _ones() -> Ints:
    return np.ones(1, dtype=np.int64)


def _zero() -> Ints:
    return np.zeros(1, dtype=np.int64)


@dataclass(frozen=True, eq=False)
class GenerationLayouts(_Columns):
    """``GenerationLayout`` by column, each of shape ``[C]``.

    ``kv_cache_bytes`` 0 states no budget: it stands for what ``kv_budget.kv_budget_bytes`` gives, so nothing waits for
    cache.
    """

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

    @property
    def num_gpus(self) -> Ints:
        return self.dp * self.tp * self.pp

    @property
    def attention_ranks(self) -> Ints:
        """GPUs that share the heads of one sequence: those of one attention copy."""
        return np.asarray(np.maximum(self.tp // self.attention_dp, 1), dtype=np.int64)
