"""Priced time: seconds that know where they came from.

Every price in hybridmap is a ``Priced``: an array of seconds split by the basis of its parts, so that a sum
keeps its provenance exactly ("71 % measured, 22 % interpolated, 7 % fitted") and its weakest part is known.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int64]
Numbers: TypeAlias = Floats | Ints


class Basis(IntEnum):
    """Where a number came from, strongest first."""

    MEASURED = 0  # a measured table holds exactly this point
    PUBLISHED = 1  # a published constant with a stated source
    INTERPOLATED = 2  # between measured points, inside their hull
    FITTED = 3  # a constant that was chosen so that predictions meet measured times
    ANALYTIC = 4  # a physical rule: roofline, alpha-beta, or extrapolation outside the hull
    ASSUMED = 5  # stated without evidence of this case: by us, carried over from another part or engine, or by the job


NUM_BASES = len(Basis)
_BASES = np.arange(NUM_BASES)

ConstantBasis = Literal["measured", "published", "fitted", "analytic", "assumed"]
"""What a constant of a file can rest on; only a lookup is interpolated."""


@dataclass(frozen=True, eq=False)
class Priced:
    """Seconds by basis.

    Parameters
    ----------
    by_basis_s
        Array of shape ``[NUM_BASES, *shape]``: seconds that rest on each ``Basis``.
    """

    by_basis_s: Floats

    @staticmethod
    def of(seconds: ArrayLike, basis: ArrayLike | Basis) -> Priced:
        """Price ``seconds`` (any shape) at ``basis`` (one for all, or one per element)."""
        s = np.asarray(seconds, dtype=np.float64)
        if isinstance(basis, Basis):  # most prices
            return Priced.parts((s, basis))
        b = np.asarray(basis, dtype=np.int64)
        rank = max(s.ndim, b.ndim)
        return Priced(np.where(b == _BASES.reshape((NUM_BASES,) + (1,) * rank), s, 0.0))

    @staticmethod
    def parts(*parts: tuple[ArrayLike, Basis]) -> Priced:
        """Sum of seconds that each rest on one basis; shapes broadcast."""
        seconds = [np.asarray(s, dtype=np.float64) for s, _ in parts]
        one = len(seconds) == 1  # most prices
        out = np.zeros((NUM_BASES, *(seconds[0].shape if one else np.broadcast_shapes(*(s.shape for s in seconds)))))
        for s, (_, basis) in zip(seconds, parts, strict=True):
            out[basis] += s
        return Priced(out)

    @staticmethod
    def zero(shape: tuple[int, ...] = ()) -> Priced:
        """No time at all, of the given shape."""
        return Priced(np.zeros((NUM_BASES, *shape)))

    @property
    def s(self) -> Floats:
        """Total seconds, shape ``[*shape]``."""
        return np.asarray(self.by_basis_s.sum(axis=0), dtype=np.float64)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.by_basis_s.shape[1:]

    @property
    def weakest(self) -> Ints:
        """The weakest basis that contributes, per element (``MEASURED`` where the time is zero)."""
        index = np.arange(NUM_BASES).reshape((NUM_BASES,) + (1,) * (self.by_basis_s.ndim - 1))
        return np.asarray(np.where(self.by_basis_s > 0, index, 0).max(axis=0), dtype=np.int64)

    def __add__(self, other: Priced) -> Priced:
        left, right = self.by_basis_s, other.by_basis_s
        if left.ndim == right.ndim:  # most sums
            return Priced(left + right)
        rank = max(left.ndim, right.ndim)
        return Priced(_pad(left, rank) + _pad(right, rank))

    def __mul__(self, factor: ArrayLike) -> Priced:
        f = np.asarray(factor, dtype=np.float64)
        if f.ndim < self.by_basis_s.ndim:  # most factors
            return Priced(self.by_basis_s * f)
        return Priced(_pad(self.by_basis_s, f.ndim + 1) * f)

    __rmul__ = __mul__

    def __getitem__(self, key: object) -> Priced:
        """Index the element axes: ``p[i]`` is the price of element ``i``."""
        keys = key if isinstance(key, tuple) else (key,)
        return Priced(self.by_basis_s[(slice(None), *keys)])

    def at_best(self, basis: Basis) -> Priced:
        """The same seconds, none on a stronger basis: of a price that a rule or a constant makes of another one."""
        if basis is Basis.MEASURED:
            return self
        out = self.by_basis_s.copy()
        out[basis] = out[: basis + 1].sum(axis=0)
        out[:basis] = 0.0
        return Priced(out)

    def sum(self, axis: int | None = None) -> Priced:
        """Sum over all element axes, or over one (a non-negative element axis)."""
        if axis is None:
            return Priced(self.by_basis_s.reshape(NUM_BASES, -1).sum(axis=1))
        return Priced(self.by_basis_s.sum(axis=axis + 1))

    def share(self) -> dict[str, float]:
        """Fraction of the whole time by basis name; an empty time is all ``measured``."""
        total = self.by_basis_s.reshape(NUM_BASES, -1).sum(axis=1)
        whole = float(total.sum())
        if whole == 0.0:
            return {b.name.lower(): float(b is Basis.MEASURED) for b in Basis}
        return {b.name.lower(): float(total[b] / whole) for b in Basis}


def longer(a: Priced, b: Priced) -> Priced:
    """Elementwise the longer of two prices, with that one's provenance (two things that overlap fully)."""
    rank = max(a.by_basis_s.ndim, b.by_basis_s.ndim)
    left, right = _pad(a.by_basis_s, rank), _pad(b.by_basis_s, rank)
    return Priced(np.where(left.sum(axis=0) >= right.sum(axis=0), left, right))


def where(condition: ArrayLike, a: Priced, b: Priced) -> Priced:
    """Elementwise choice between two prices."""
    c = np.asarray(condition)
    rank = max(a.by_basis_s.ndim, b.by_basis_s.ndim, c.ndim + 1)
    return Priced(np.where(c, _pad(a.by_basis_s, rank), _pad(b.by_basis_s, rank)))


def exposed(work: Priced, beside_s: Floats) -> Priced:
    """What is left of ``work`` beside so many seconds, from nothing to all of it, with ``work``'s provenance."""
    total = work.s
    left = np.minimum(np.maximum(total - beside_s, 0.0), total)
    ratio: Floats = np.divide(left, total, out=np.zeros(left.shape), where=total > 0)
    return work * ratio


def _pad(a: Floats, rank: int) -> Floats:
    """Insert element axes after the basis axis so that NumPy broadcasting aligns the element axes."""
    if a.ndim == rank:
        return a
    return a.reshape(a.shape[:1] + (1,) * (rank - a.ndim) + a.shape[1:])
