"""Time of routed experts: the grouped expert MLP of one rank, and the exchange of tokens between ranks."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from profiles.errors import NoBasisError
from profiles.lookup.grid import Key, RatioGrid, build_grid, by_unique_key
from profiles.lookup.pricing import (
    MOE_EXCHANGE_ALPHA_S,
    MOE_LAUNCH_S,
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
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import ArrayLike

    from profiles.hardware import DeviceSpec
    from profiles.lookup.table import Table

# How far apart two keys are: sum of |ln| of the ratio of each entry; a wrong split over ranks counts twice,
# because it changes how full each expert's GEMM is and not only its size.
_EXPERT_WEIGHTS = (1.0, 1.0, 1.0, 1.0, 2.0, 2.0)
_EXCHANGE_WEIGHTS = (1.0, 1.0, 1.0, 2.0)
_ELT = DTYPE_BYTES["bf16"]
_PHASES = ("prefill", "decode")


class MoeLookup:
    """Expert MLP tables of one device, keyed (hidden, ffn, topk, experts, tp, ep) per dtype and distribution.

    Parameters
    ----------
    table
        Rows of tokens and ``latency_s`` by key.
    reference
        The device that they were measured on.
    """

    def __init__(self, table: Table, reference: DeviceSpec) -> None:
        self._reference = reference
        rows = table.split("dtype", "distribution", "hidden", "ffn", "topk", "experts", "tp", "ep")
        self._grids = _TokenGrids(table, rows, 2, self._table_floor)

    def price(
        self,
        spec: DeviceSpec,
        weakest: Basis,
        num_tokens: ArrayLike,
        shape: Sequence[ArrayLike],
        dtypes: tuple[str, str],
        distribution: str,
    ) -> Priced:
        """See ``DeviceProfile.moe``; ``shape``: hidden, ffn, topk, experts, tp, ep; ``dtypes``: of products, weights.

        Narrow weights of 16-bit products are turned to 16 bits in the kernel, as in ``GemmLookup.of_weights_alone``.
        """
        weakest = weakest if dtypes[0] == dtypes[1] else max(weakest, Basis.ANALYTIC)
        name, known = table_dtype(dtypes[0]), self._grids.prefixes
        have = sorted(d for t, d in known if t == name)
        if not have:
            raise missing(self._reference.name, "moe", f"routed experts in {dtypes[0]}")
        # Where the asked distribution was not measured, the flattest one that was stands in.
        used = distribution if distribution in have else have[0]
        (tokens,) = checked(num_tokens=num_tokens)
        names = ("hidden", "ffn", "topk", "experts", "tp", "ep")
        keys = checked_counts(**dict(zip(names, shape, strict=True)))

        def at(key: Key, sizes: Sequence[Floats]) -> Located:
            return self._grids.at((name, used), key, sizes[0], _EXPERT_WEIGHTS)

        ratio, basis = by_unique_key(keys, (tokens,), at)
        if used != distribution:
            basis = np.full_like(basis, Basis.ANALYTIC)
        floor = moe_floor(spec, tokens, keys, dtypes[0], DTYPE_BYTES[dtypes[1]])
        return priced((ratio, basis), floor, tokens == 0.0, weakest)

    def grids(self) -> Iterator[RatioGrid]:
        """Every grid of the table."""
        return self._grids.grids()

    @property
    def dtypes(self) -> frozenset[str]:
        """Number formats that the table has."""
        return frozenset(dtype for dtype, _ in self._grids.prefixes)

    def _table_floor(self, key: Key, tokens: Floats) -> Floats:
        shape = [float(str(x)) for x in key[2:]]
        return moe_floor(self._reference, tokens, shape, str(key[0]))


class MoeExchangeLookup:
    """Dispatch plus combine of one layer inside a node, keyed (hidden, topk, experts, ep) per phase.

    Parameters
    ----------
    table
        Rows of tokens and ``latency_s`` by key.
    reference
        The device that they were measured on.
    """

    def __init__(self, table: Table, reference: DeviceSpec) -> None:
        self._reference = reference
        rows = table.split("phase", "hidden", "topk", "experts", "ep")
        self._grids = _TokenGrids(table, rows, 1, self._table_floor)

    def price(
        self, spec: DeviceSpec, weakest: Basis, num_tokens: ArrayLike, shape: Sequence[ArrayLike], phase: str
    ) -> Priced:
        """See ``DeviceProfile.moe_all_to_all``; ``shape`` is (hidden, topk, experts, ep)."""
        if phase not in _PHASES:
            raise NoBasisError(f"moe_all_to_all has no phase '{phase}'; known: {', '.join(_PHASES)}")
        (tokens,) = checked(num_tokens=num_tokens)
        keys = checked_counts(**dict(zip(("hidden", "topk", "experts", "ep"), shape, strict=True)))

        def at(key: Key, sizes: Sequence[Floats]) -> Located:
            return self._grids.at((phase,), key, sizes[0], _EXCHANGE_WEIGHTS)

        located = by_unique_key(keys, (tokens,), at)
        hidden, topk, _, ep = keys
        nothing = (tokens == 0.0) | (ep == 1)
        return priced(located, exchange_floor(spec, tokens, hidden, topk, ep), nothing, weakest)

    def grids(self) -> Iterator[RatioGrid]:
        """Every grid of the table."""
        return self._grids.grids()

    def _table_floor(self, key: Key, tokens: Floats) -> Floats:
        hidden, topk, _, ep = (float(str(x)) for x in key[1:])
        return exchange_floor(self._reference, tokens, hidden, topk, ep)


def moe_floor(
    spec: DeviceSpec, tokens: Floats, shape: Sequence[ArrayLike], dtype: str, weight_bytes: float | None = None
) -> Floats:
    """``max(flop / peak, bytes / bandwidth) + 10 us`` of the three GEMMs of one rank's experts.

    ``slots = tokens topk / ep`` rows go through them; ``experts / ep (1 - exp(-slots ep / experts))`` of them are
    touched and read; activations are read and written once per slot, the layer's input and output once per token.

    Parameters
    ----------
    spec
        Device whose roofline it is.
    tokens
        Of the expert-parallel group.
    shape
        Hidden, ffn, topk, experts, tp and ep; shapes broadcast.
    dtype
        Number format of the GEMMs.
    weight_bytes
        Of one weight where it is not that format's.

    Returns
    -------
    Floats
        Seconds, the broadcast shape.

    Notes
    -----
    Touched experts are those of uniform routing; the power law of real routing is in the measured ratio.
    """
    h, f, k, e, t, p = (np.asarray(x, dtype=np.float64) for x in shape)
    slots, local = tokens * k / p, e / p
    touched = -local * np.expm1(-slots / local)
    compute = 6.0 * slots * h * f / t / spec.peak(dtype)
    weights = (DTYPE_BYTES[dtype] if weight_bytes is None else weight_bytes) * touched * 3.0 * h * f / t
    activations = _ELT * (slots * (2.0 * h + 3.0 * f / t) + 2.0 * tokens * h)
    longer = np.maximum(compute, (weights + activations) / spec.memory_bytes_per_s)
    return np.asarray(longer + MOE_LAUNCH_S, dtype=np.float64)


def exchange_floor(spec: DeviceSpec, tokens: Floats, hidden: ArrayLike, topk: ArrayLike, ep: ArrayLike) -> Floats:
    """``2 tokens x hidden x 2 B x ranks / nvlink + 60 us``: a token goes once to every other rank that it chose.

    With uniform routing it chooses ``(ep - 1) (1 - (1 - 1/ep)^topk)`` other ranks; dispatch and combine are alike.

    Parameters
    ----------
    spec
        Device whose roofline it is.
    tokens
        Of one rank.
    hidden, topk, ep
        Width, experts of a token, ranks; shapes broadcast.

    Returns
    -------
    Floats
        Seconds, the broadcast shape.

    Notes
    -----
    Source: DeepEP's dispatch, one copy per chosen rank.
    """
    h, k, p = (np.asarray(x, dtype=np.float64) for x in (hidden, topk, ep))
    ranks = (p - 1.0) * (1.0 - (1.0 - 1.0 / p) ** k)
    return 2.0 * tokens * h * _ELT * ranks / spec.nvlink_bytes_per_s + MOE_EXCHANGE_ALPHA_S


class _TokenGrids:
    """Grids over tokens; the key nearest in the entries after the prefix stands in for an absent one."""

    def __init__(
        self, table: Table, rows: dict[Key, slice], prefix: int, floor: Callable[[Key, Floats], Floats]
    ) -> None:
        self._table, self._rows, self._floor = table, rows, floor
        self.prefixes = sorted({tuple(str(part) for part in key[:prefix]) for key in rows})
        self._grids: dict[Key, RatioGrid] = {}
        self._nearest: dict[Key, Key] = {}

    def at(self, prefix: tuple[str, ...], key: Key, tokens: Floats, weights: Sequence[float]) -> Located:
        full = (*prefix, *key)
        if full in self._rows:
            return self._grid(full).at(tokens)
        if full not in self._nearest:
            known = sorted(k for k in self._rows if k[: len(prefix)] == prefix)
            self._nearest[full] = min(known, key=lambda k: _distance(k[len(prefix) :], key, weights))
        ratio, basis = self._grid(self._nearest[full]).at(tokens)
        return ratio, np.full_like(basis, Basis.ANALYTIC)

    def grids(self) -> Iterator[RatioGrid]:
        """Every grid of the table."""
        return (self._grid(key) for key in self._rows)

    def _grid(self, key: Key) -> RatioGrid:
        if key not in self._grids:
            tokens, latency = self._table.columns(self._rows[key], "num_tokens", "latency_s")
            self._grids[key] = build_grid((tokens,), latency / self._floor(key, tokens))
        return self._grids[key]


def _distance(a: Key, b: Key, weights: Sequence[float]) -> float:
    return sum(w * abs(math.log(float(str(x)) / float(str(y)))) for w, x, y in zip(weights, a, b, strict=True))
