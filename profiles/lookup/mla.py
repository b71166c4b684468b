"""Time of multi-head latent attention in the DeepSeek-V3 shape (hidden 7168, latent 512 + 64 rotary)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from profiles.lookup.grid import Key, RatioGrid, build_grid, by_unique_key
from profiles.lookup.pricing import (
    MLA_KERNEL_LAUNCH_S,
    MLA_MODULE_LAUNCH_S,
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

HIDDEN, Q_RANK, KV_RANK = 7168, 1536, 512
NOPE_DIM, ROPE_DIM, V_DIM = 128, 64, 128
_LATENT = KV_RANK + ROPE_DIM
_ELT = DTYPE_BYTES["bf16"]


class MlaLookup:
    """Prefill or decode tables of one device.

    Parameters
    ----------
    table
        Rows of batch, length, heads and ``latency_s``, by format of the projections.
    reference
        The device that they were measured on.
    length
        Name of the size column, which tells prefill (``seq``) from decode (``context``).
    covers_projections
        Whether the times hold the projections.
    rows
        Of each format of cache and projections, and heads; without them those of the whole table.
    """

    def __init__(
        self,
        table: Table,
        reference: DeviceSpec,
        length: str,
        covers_projections: bool,
        rows: dict[Key, slice] | None = None,
    ) -> None:
        self._table, self._reference, self._length = table, reference, length
        self._covers = covers_projections
        self._rows = _rows_of(table) if rows is None else rows
        self._grids: dict[Key, RatioGrid] = {}

    @property
    def least_s(self) -> float:
        """The shortest time of the table, seconds."""
        return float(self._table.columns(slice(None), "latency_s")[0].min())

    def price(
        self,
        spec: DeviceSpec,
        weakest: Basis,
        batch: ArrayLike,
        length: ArrayLike,
        heads: ArrayLike,
        dtype: str,
        kv_dtype: str = "bf16",
    ) -> Priced:
        """See ``DeviceProfile.mla_prefill`` and ``mla_decode``."""
        # The bare kernel has no projections, so any format of theirs is priced by its one table.
        name, cache = table_dtype(dtype) if self._covers else "bf16", table_dtype(kv_dtype)
        if not any(key[:2] == (cache, name) for key in self._rows):
            what = "prefill" if self._length == "seq" else "decode"
            detail = f"MLA {what} with {dtype} projections and a {kv_dtype} cache"
            raise missing(self._reference.name, f"mla_{what}", detail)
        b, x = checked(**{"batch": batch, self._length: length})
        (h,) = checked_counts(heads=heads)

        def at(key: Key, sizes: Sequence[Floats]) -> Located:
            return self._at((cache, name, *key), sizes)

        located = by_unique_key((h,), (b, x), at)
        return priced(located, self._floor(spec, b, x, h, name, cache), b * x == 0.0, weakest)

    def grids(self) -> Iterator[RatioGrid]:
        """Every grid of the table."""
        return (self._grid(key) for key in self._rows)

    def _at(self, key: Key, sizes: Sequence[Floats]) -> Located:
        if key in self._rows:
            return self._grid(key).at(*sizes)
        known = sorted(int(str(k[2])) for k in self._rows if k[:2] == key[:2])
        nearest = min(known, key=lambda heads: abs(np.log(heads / int(str(key[2])))))
        ratio, basis = self._grid((*key[:2], nearest)).at(*sizes)
        return ratio, np.full_like(basis, Basis.ANALYTIC)

    def _grid(self, key: Key) -> RatioGrid:
        if key not in self._grids:
            batch, length, latency = self._table.columns(self._rows[key], "batch", self._length, "latency_s")
            floor = self._floor(self._reference, batch, length, int(str(key[2])), str(key[1]), str(key[0]))
            self._grids[key] = build_grid((batch, length), latency / floor, fill_order=(0, 1))
        return self._grids[key]

    def _floor(self, spec: DeviceSpec, b: Floats, x: Floats, heads: ArrayLike, dtype: str, kv_dtype: str) -> Floats:
        """``max(flop / peak, bytes / bandwidth) + launch`` of the kernel, plus that of the projections if covered.

        Prefill: causal scores over 192 and values over 128 elements per head. Decode works in the latent space:
        576 + 512 elements per head, and reads 576 elements per token of context whatever the heads.
        """
        h = np.asarray(heads, dtype=np.float64)
        if self._length == "seq":
            tokens = b * x
            flop = b * x * x * h * (NOPE_DIM + ROPE_DIM + V_DIM)
            num_bytes = _ELT * tokens * h * 2.0 * (NOPE_DIM + ROPE_DIM + V_DIM)
        else:
            tokens = b
            flop = 2.0 * b * x * h * (_LATENT + KV_RANK)
            num_bytes = DTYPE_BYTES[kv_dtype] * b * x * _LATENT
        kernel = np.maximum(flop / spec.peak("bf16"), num_bytes / spec.memory_bytes_per_s)
        if not self._covers:
            return kernel + MLA_KERNEL_LAUNCH_S
        weights = mla_projection_weights(h)
        compute = 2.0 * tokens * weights / spec.peak(dtype)
        stream = (DTYPE_BYTES[dtype] * weights + _ELT * tokens * 2.0 * HIDDEN) / spec.memory_bytes_per_s
        return np.asarray(kernel + np.maximum(compute, stream) + MLA_MODULE_LAUNCH_S, dtype=np.float64)


def _rows_of(table: Table) -> dict[Key, slice]:
    by_cache = "kv_dtype" in table.data
    rows = table.split(*(("kv_dtype",) if by_cache else ()), "dtype", "heads")
    return {key if by_cache else ("bf16", *key): part for key, part in rows.items()}


def mla_projection_weights(heads: ArrayLike) -> Floats:
    """Elements of the projections of one rank: down-projections whole, up- and output projection by its heads.

    Parameters
    ----------
    heads
        Of one rank.

    Returns
    -------
    Floats
        Elements, the shape of ``heads``.

    Notes
    -----
    Source: DeepSeek-V2 (2024), in the sizes of DeepSeek-V3.
    """
    h = np.asarray(heads, dtype=np.float64)
    per_head = Q_RANK * (NOPE_DIM + ROPE_DIM) + KV_RANK * (NOPE_DIM + V_DIM) + V_DIM * HIDDEN
    return np.asarray(HIDDEN * (Q_RANK + _LATENT) + h * per_head, dtype=np.float64)
