"""Time of softmax attention, prefill and decode, from tables keyed by the head counts of one rank."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, TypeAlias

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
        Rows of batch, sequence length, heads and ``latency_s``; by format of the cache and by window where it has
        such columns (one without holds bf16 and no window).
    reference
        The device that they were measured on.
    """

    def __init__(self, table: Table, reference: DeviceSpec) -> None:
        self._reference = reference
        self._by_kind = _kinds(table, reference, "seq")

    def price(
        self,
        spec: DeviceSpec,
        weakest: Basis,
        batch: ArrayLike,
        seq: ArrayLike,
        heads: ArrayLike,
        kv_heads: ArrayLike,
        head_dim: ArrayLike,
        kv_dtype: str = "bf16",
        window: int = 0,
    ) -> Priced:
        """See ``DeviceProfile.attention_prefill``."""
        grids = _found(self._by_kind, self._reference, "attention_prefill", kv_dtype, window)
        b, s = checked(batch=batch, seq=seq)
        h, kv, d = checked_counts(heads=heads, kv_heads=kv_heads, head_dim=head_dim)
        located = by_unique_key((d, h, kv), (b, s), grids.at)
        return priced(located, prefill_floor(spec, b, s, h, kv, d, window), b * s == 0.0, weakest)

    def grids(self) -> Iterator[RatioGrid]:
        """Every grid of the table."""
        return (grid for grids in self._by_kind.values() for grid in grids.grids())


class DecodeLookup:
    """One new token per sequence against its KV cache.

    Parameters
    ----------
    table
        Rows of batch, context length, heads and ``latency_s``, by format of the cache, and by window where it has one.
    reference
        The device that they were measured on.
    """

    def __init__(self, table: Table, reference: DeviceSpec) -> None:
        self._reference = reference
        self._by_kind = _kinds(table, reference, "context")

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
        window: int = 0,
    ) -> Priced:
        """See ``DeviceProfile.attention_decode``."""
        grids = _found(self._by_kind, self._reference, "attention_decode", kv_dtype, window)
        b, c = checked(batch=batch, context=context)
        h, kv, d = checked_counts(heads=heads, kv_heads=kv_heads, head_dim=head_dim)
        located = by_unique_key((d, h, kv), (b, c), grids.at)
        return priced(located, decode_floor(spec, b, c, kv, d, kv_dtype, window), b * c == 0.0, weakest)

    def grids(self) -> Iterator[RatioGrid]:
        """Every grid of the table."""
        return (grid for grids in self._by_kind.values() for grid in grids.grids())


Kind: TypeAlias = tuple[str, int]
"""Format of the cache, and tokens of the window (0 for none)."""


def _kinds(table: Table, reference: DeviceSpec, length: str) -> dict[Kind, _HeadGrids]:
    columns = [name for name in ("kv_dtype", "window") if name in table.data]
    parts = table.split(*columns) if columns else {(): slice(None)}
    found = {}
    for key, rows in parts.items():
        named = dict(zip(columns, key, strict=True))
        kind = (str(named.get("kv_dtype", "bf16")), int(str(named.get("window", 0))))
        found[kind] = _HeadGrids(table.part(rows), reference, ("head_dim", "heads", "kv_heads"), length, kind)
    return found


def _found(known: dict[Kind, _HeadGrids], reference: DeviceSpec, table: str, kv_dtype: str, window: int) -> _HeadGrids:
    grids = known.get((table_dtype(kv_dtype), window))
    if grids is None:
        words = f"{table.replace('_', ' ')} with a {kv_dtype} KV cache" + (
            f" and a window of {window}" if window else ""
        )
        raise missing(reference.name, f"{table}_window" if window else table, words)
    return grids


def prefill_floor(
    spec: DeviceSpec, b: Floats, s: Floats, h: ArrayLike, kv: ArrayLike, d: ArrayLike, window: int = 0
) -> Floats:
    """``max(2 b s^2 h d / peak, 2 b s d (2 h + 2 kv) / bandwidth) + 8 us``: causal, two GEMMs, half the square.

    With a window each token attends to ``window`` others, as if the sequence were cut into pieces of twice that.

    Parameters
    ----------
    spec
        Device whose roofline it is.
    b, s
        Sequences, and tokens of each.
    h, kv, d
        Query and KV heads of a rank, and their width; shapes broadcast.
    window
        Tokens that a token attends to; 0 for all before it.

    Returns
    -------
    Floats
        Seconds, the broadcast shape.

    Notes
    -----
    Source: roofline (Williams et al. 2009).
    """
    heads, kv_heads, dim = (np.asarray(x, dtype=np.float64) for x in (h, kv, d))
    span = np.minimum(s, 2.0 * window) if window else s
    compute = 2.0 * b * s * span * heads * dim / spec.peak("bf16")
    num_bytes = _ELT * b * s * dim * (2.0 * heads + 2.0 * kv_heads)
    return np.maximum(compute, num_bytes / spec.memory_bytes_per_s) + ATTENTION_LAUNCH_S


def decode_floor(
    spec: DeviceSpec, b: Floats, c: Floats, kv: ArrayLike, d: ArrayLike, kv_dtype: str, window: int = 0
) -> Floats:
    """``KV bytes / bandwidth + 8 us + 20 ns per sequence and KV head``; KV bytes are ``2 b c kv d elt``.

    Parameters
    ----------
    spec
        Device whose roofline it is.
    b, c
        Sequences, and tokens of cache of each.
    kv, d
        KV heads of a rank, and their width; shapes broadcast.
    kv_dtype, window
        Number format of the cache, and tokens of it that are read (0 for all).

    Returns
    -------
    Floats
        Seconds, the broadcast shape.
    """
    kv_heads, dim = np.asarray(kv, dtype=np.float64), np.asarray(d, dtype=np.float64)
    read = np.minimum(c, window) if window else c
    num_bytes = 2.0 * b * read * kv_heads * dim * DTYPE_BYTES[kv_dtype]
    return num_bytes / spec.memory_bytes_per_s + ATTENTION_LAUNCH_S + DECODE_ITEM_S * b * kv_heads


class _HeadGrids:
    """Grids over (batch, length), one per (head_dim, heads, kv_heads); the nearest stands in for an absent one."""

    def __init__(self, table: Table, reference: DeviceSpec, keys: tuple[str, ...], length: str, kind: Kind) -> None:
        self._table, self._reference, self._length, self._kind = table, reference, length, kind
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
            kv_dtype, window = self._kind
            if self._length == "seq":
                floor = prefill_floor(self._reference, batch, length, heads, kv, dim, window)
            else:
                floor = decode_floor(self._reference, batch, length, kv, dim, kv_dtype, window)
            # The hull ends at a largest batch for every length: beyond it the last batch's ratio is held.
            self._grids[key] = build_grid((batch, length), latency / floor, fill_order=(0, 1))
        return self._grids[key]


def _apart(a: float, b: float) -> float:
    return abs(math.log(a / b))


def _int(value: object) -> int:
    assert isinstance(value, int)
    return value
