"""Time of softmax attention, prefill and decode, from tables keyed by the head counts of one rank."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from profiles.lookup.grid import Key, RatioGrid, build_grid, by_unique_key
from profiles.lookup.pricing import (
    ATTENTION_LAUNCH_S,
    DECODE_ITEM_S,
    Located,
    checked,
    checked_counts,
    missing,
    priced,
    table_dtype,
)
from profiles.records import Basis, Floats, Priced
from profiles.units import DTYPE_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import ArrayLike

    from profiles.hardware import DeviceSpec
    from profiles.lookup.table import Table

_ELT = DTYPE_BYTES["bf16"]


class PrefillLookup:
    """Causal self-attention of whole sequences.

    Parameters
    ----------
    table
        Rows of batch, sequence length, heads and ``latency_s``.
    reference
        The device that they were measured on.
    """

    def __init__(self, table: Table, reference: DeviceSpec) -> None:
        self._heads = _HeadGrids(table, reference, ("head_dim", "heads", "kv_heads"), "seq")

    def price(
        self,
        spec: DeviceSpec,
        weakest: Basis,
        batch: ArrayLike,
        seq: ArrayLike,
        heads: ArrayLike,
        kv_heads: ArrayLike,
        head_dim: ArrayLike,
    ) -> Priced:
        """See ``DeviceProfile.attention_prefill``."""
        b, s = checked(batch=batch, seq=seq)
        h, kv, d = checked_counts(heads=heads, kv_heads=kv_heads, head_dim=head_dim)
        located = by_unique_key((d, h, kv), (b, s), self._heads.at)
        return priced(located, prefill_floor(spec, b, s, h, kv, d), b * s == 0.0, weakest)

    def grids(self) -> Iterator[RatioGrid]:
        """Every grid of the table."""
        return self._heads.grids()


class DecodeLookup:
    """One new token per sequence against its KV cache.

    Parameters
    ----------
    table
        Rows of batch, context length, heads and ``latency_s``, by format of the cache.
    reference
        The device that they were measured on.
    """

    def __init__(self, table: Table, reference: DeviceSpec) -> None:
        self._reference = reference
        self._by_dtype = {
            str(key[0]): _HeadGrids(
                table.part(rows), reference, ("head_dim", "heads", "kv_heads"), "context", str(key[0])
            )
            for key, rows in table.split("kv_dtype").items()
        }

    def price(
        self,
        spec: DeviceSpec,
        weakest: Basis,
        batch: ArrayLike,
        context: ArrayLike,
        heads: ArrayLike,
        kv_heads: ArrayLike,
        head_dim: ArrayLike,
        kv_dtype: str,
    ) -> Priced:
        """See ``DeviceProfile.attention_decode``."""
        grids = self._by_dtype.get(table_dtype(kv_dtype))
        if grids is None:
            raise missing(self._reference.name, "attention_decode", f"decode attention with a {kv_dtype} KV cache")
        b, c = checked(batch=batch, context=context)
        h, kv, d = checked_counts(heads=heads, kv_heads=kv_heads, head_dim=head_dim)
        located = by_unique_key((d, h, kv), (b, c), grids.at)
        return priced(located, decode_floor(spec, b, c, kv, d, kv_dtype), b * c == 0.0, weakest)

    def grids(self) -> Iterator[RatioGrid]:
        """Every grid of the table."""
        return (grid for grids in self._by_dtype.values() for grid in grids.grids())


def prefill_floor(spec: DeviceSpec, b: Floats, s: Floats, h: ArrayLike, kv: ArrayLike, d: ArrayLike) -> Floats:
    """``max(2 b s^2 h d / peak, 2 b s d (2 h + 2 kv) / bandwidth) + 8 us``: causal, two GEMMs, half the square.

    Parameters
    ----------
    spec
        Device whose roofline it is.
    b, s
        Sequences, and tokens of each.
    h, kv, d
        Query and KV heads of a rank, and their width; shapes broadcast.

    Returns
    -------
    Floats
        Seconds, the broadcast shape.

    Notes
    -----
    Source: roofline (Williams et al. 2009).
    """
    heads, kv_heads, dim = (np.asarray(x, dtype=np.float64) for x in (h, kv, d))
    compute = 2.0 * b * s * s * heads * dim / spec.peak("bf16")
    num_bytes = _ELT * b * s * dim * (2.0 * heads + 2.0 * kv_heads)
    return np.maximum(compute, num_bytes / spec.memory_bytes_per_s) + ATTENTION_LAUNCH_S


def decode_floor(spec: DeviceSpec, b: Floats, c: Floats, kv: ArrayLike, d: ArrayLike, kv_dtype: str) -> Floats:
    """``KV bytes / bandwidth + 8 us + 20 ns per sequence and KV head``; KV bytes are ``2 b c kv d elt``.

    Parameters
    ----------
    spec
        Device whose roofline it is.
    b, c
        Sequences, and tokens of cache of each.
    kv, d
        KV heads of a rank, and their width; shapes broadcast.
    kv_dtype
        Number format of the cache.

    Returns
    -------
    Floats
        Seconds, the broadcast shape.
    """
    kv_heads, dim = np.asarray(kv, dtype=np.float64), np.asarray(d, dtype=np.float64)
    num_bytes = 2.0 * b * c * kv_heads * dim * DTYPE_BYTES[kv_dtype]
    return num_bytes / spec.memory_bytes_per_s + ATTENTION_LAUNCH_S + DECODE_ITEM_S * b * kv_heads


class _HeadGrids:
    """Grids over (batch, length), one per (head_dim, heads, kv_heads); the nearest stands in for an absent one."""

    def __init__(
        self, table: Table, reference: DeviceSpec, keys: tuple[str, ...], length: str, kv_dtype: str | None = None
    ) -> None:
        self._table, self._reference, self._length, self._kv_dtype = table, reference, length, kv_dtype
        self._rows = table.split(*keys)
        self._grids: dict[Key, RatioGrid] = {}
        self._nearest: dict[Key, Key] = {}

    def at(self, key: Key, sizes: Sequence[Floats]) -> Located:
        batch, length = sizes
        if key in self._rows:
            return self._grid(key).at(batch, length)
        if key not in self._nearest:
            self._nearest[key] = self._stand_in(key)
        other = self._nearest[key]
        # Sequences and KV heads are independent work: keep their product, so that the cache and the occupancy
        # of the stand-in are those of the true problem.
        ratio, basis = self._grid(other).at(batch * _int(key[2]) / _int(other[2]), length)
        return ratio, np.full_like(basis, Basis.ANALYTIC)

    def grids(self) -> Iterator[RatioGrid]:
        """Every grid of the heads."""
        return (self._grid(key) for key in self._rows)

    def _stand_in(self, key: Key) -> Key:
        """Nearest head_dim; then the same KV heads and nearest heads, else nearest group size, then KV heads."""
        dim, heads, kv_heads = (_int(x) for x in key)
        dims = {_int(k[0]) for k in self._rows}
        nearest_dim = min(sorted(dims), key=lambda d: _apart(d, dim))
        pairs = sorted((_int(k[1]), _int(k[2])) for k in self._rows if k[0] == nearest_dim)
        same = [pair for pair in pairs if pair[1] == kv_heads]
        if same:
            best = min(same, key=lambda p: _apart(p[0], heads))
        else:
            group = heads / kv_heads
            best = min(pairs, key=lambda p: (_apart(p[0] / p[1], group), _apart(p[1], kv_heads)))
        return (nearest_dim, *best)

    def _grid(self, key: Key) -> RatioGrid:
        if key not in self._grids:
            dim, heads, kv = (_int(x) for x in key)
            batch, length, latency = self._table.columns(self._rows[key], "batch", self._length, "latency_s")
            if self._kv_dtype is None:
                floor = prefill_floor(self._reference, batch, length, heads, kv, dim)
            else:
                floor = decode_floor(self._reference, batch, length, kv, dim, self._kv_dtype)
            # The hull ends at a largest batch for every length: beyond it the last batch's ratio is held.
            self._grids[key] = build_grid((batch, length), latency / floor, fill_order=(0, 1))
        return self._grids[key]


def _apart(a: float, b: float) -> float:
    return abs(math.log(a / b))


def _int(value: object) -> int:
    assert isinstance(value, int)
    return value
