"""Time of a linear-attention layer's kernels (gated delta net: causal convolution and the recurrence)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from profiles.lookup.grid import Key, RatioGrid, build_grid, by_unique_key
from profiles.lookup.pricing import ATTENTION_LAUNCH_S, Located, checked, checked_counts, priced
from profiles.records import Basis, Floats, Priced

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import ArrayLike

    from profiles.hardware import DeviceSpec
    from profiles.lookup.table import Table

HEAD_DIM = 128
"""Width of a key and of a value head in every measured model."""

STATE_BYTES = 4.0
"""The recurrent state is FP32."""


class LinearLookup:
    """Prefill or decode table, keyed by the key and value heads of one rank.

    Parameters
    ----------
    table
        Rows of heads, sizes and ``latency_s``.
    reference
        The device that they were measured on.
    sizes
        Names of the size columns: ``batch`` and ``seq``, or ``batch`` alone.
    """

    def __init__(self, table: Table, reference: DeviceSpec, sizes: tuple[str, ...]) -> None:
        self._table, self._reference, self._sizes = table, reference, sizes
        self._rows = table.split("k_heads", "v_heads")
        self._grids: dict[Key, RatioGrid] = {}

    def price(
        self,
        spec: DeviceSpec,
        weakest: Basis,
        sizes: Sequence[ArrayLike],
        k_heads: ArrayLike,
        v_heads: ArrayLike,
    ) -> Priced:
        """See ``DeviceProfile.linear_prefill`` and ``linear_decode``."""
        values = checked(**dict(zip(self._sizes, sizes, strict=True)))
        keys = checked_counts(k_heads=k_heads, v_heads=v_heads)
        located = by_unique_key(keys, values, self._at)
        return priced(located, linear_floor(spec, values, keys[1]), np.prod(values, axis=0) == 0.0, weakest)

    def grids(self) -> Iterator[RatioGrid]:
        """Every grid of the table."""
        return (self._grid(key) for key in self._rows)

    def _at(self, key: Key, sizes: Sequence[Floats]) -> Located:
        if key in self._rows:
            return self._grid(key).at(*sizes)
        known = [tuple(int(str(part)) for part in k) for k in self._rows]
        asked = [int(str(part)) for part in key]
        nearest = min(known, key=lambda k: (abs(math.log(k[1] / asked[1])), abs(math.log(k[0] / asked[0]))))
        ratio, basis = self._grid(nearest).at(*sizes)
        return ratio, np.full_like(basis, Basis.ANALYTIC)

    def _grid(self, key: Key) -> RatioGrid:
        if key not in self._grids:
            *sizes, latency = self._table.columns(self._rows[key], *self._sizes, "latency_s")
            floor = linear_floor(self._reference, sizes, int(str(key[1])))
            self._grids[key] = build_grid(tuple(sizes), latency / floor, fill_order=tuple(range(len(sizes))))
        return self._grids[key]


def linear_floor(spec: DeviceSpec, sizes: Sequence[Floats], v_heads: ArrayLike) -> Floats:
    """``2 state bytes / bandwidth`` a sequence, plus the larger of FLOPs (``8 d^2 h``) and bytes a token, + 8 us.

    Parameters
    ----------
    spec
        Device whose roofline it is.
    sizes
        Sequences, and in prefill tokens of each; shapes broadcast.
    v_heads
        Value heads of one rank.

    Returns
    -------
    Floats
        Seconds, the broadcast shape.

    Notes
    -----
    Source: gated delta rule (Yang et al. 2024), whose state of ``d x d`` a head is read and written once a step; its
    ratio to the measured time is interpolated.
    """
    heads = np.asarray(v_heads, dtype=np.float64)
    batch = sizes[0]
    state = 2.0 * batch * heads * HEAD_DIM * HEAD_DIM * STATE_BYTES / spec.memory_bytes_per_s
    if len(sizes) == 1:
        return np.asarray(state + ATTENTION_LAUNCH_S, dtype=np.float64)
    tokens = batch * sizes[1]
    rows = tokens * heads * HEAD_DIM * 8.0 / spec.memory_bytes_per_s
    compute = 8.0 * tokens * heads * HEAD_DIM * HEAD_DIM / spec.peak("bf16")
    return np.asarray(state + np.maximum(rows, compute) + ATTENTION_LAUNCH_S, dtype=np.float64)
