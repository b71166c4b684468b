"""Time of a matrix product, from the GEMM table."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from profiles.lookup.grid import RatioGrid, build_grid
from profiles.lookup.pricing import GEMM_LAUNCH_S, MEMORY_BOUND_SHARE, checked, missing, priced, table_dtype
from profiles.records import Basis
from profiles.units import DTYPE_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import ArrayLike

    from profiles.hardware import DeviceSpec
    from profiles.lookup.table import Table
    from profiles.records import Floats, Priced

_OUTPUT_BYTES = 2
CACHED_BYTES = 8e6
"""Weights above which a product that beats the memory was timed on weights in the L2 cache, repeat after repeat: L40S
and RTX PRO 6000 hold 96 and 128 MB. A step reads other weights between two reads of the same, so that none are there:
such a table's products take no less than a read at the share of the bandwidth that larger ones of it reach."""
PLAIN = "bf16"


class GemmLookup:
    """Grids of one device, one per dtype, built on first use.

    Parameters
    ----------
    table
        Rows of ``m``, ``n``, ``k`` and ``latency_s``, by number format.
    reference
        The device that they were measured on.
    """

    def __init__(self, table: Table, reference: DeviceSpec) -> None:
        self._table, self._reference = table, reference
        self._grids: dict[str, RatioGrid] = {}

    def price(self, spec: DeviceSpec, weakest: Basis, m: ArrayLike, n: ArrayLike, k: ArrayLike, dtype: str) -> Priced:
        """See ``DeviceProfile.gemm``."""
        grid = self._grid(table_dtype(dtype))
        rows, cols, inner = checked(m=m, n=n, k=k)
        floor = gemm_floor(spec, rows, cols, inner, dtype)
        return priced(grid.at(rows, cols, inner), floor, rows * cols * inner == 0.0, weakest)

    def of_weights_alone(
        self, spec: DeviceSpec, weakest: Basis, m: ArrayLike, n: ArrayLike, k: ArrayLike, dtype: str
    ) -> Priced:
        """Weights in a narrow format, turned to 16 bits in the kernel that multiplies them.

        What the 16-bit kernel reaches of its roofline is held at the roofline of fewer bytes, as Marlin shows (Frantar
        et al. 2024: close to it up to 16 to 32 rows, the 16-bit rate from where compute decides).
        """
        rows, cols, inner = checked(m=m, n=n, k=k)
        floor = gemm_floor(spec, rows, cols, inner, PLAIN, DTYPE_BYTES[dtype])
        located = self._grid(PLAIN).at(rows, cols, inner)
        return priced(located, floor, rows * cols * inner == 0.0, max(weakest, Basis.ANALYTIC))

    def grids(self) -> Iterator[RatioGrid]:
        """Every grid of the table."""
        return (self._grid(dtype) for dtype in self._rows_of)

    @property
    def dtypes(self) -> frozenset[str]:
        """Number formats that the table has."""
        return frozenset(self._rows_of)

    @cached_property
    def _rows_of(self) -> Mapping[str, slice]:
        return {str(key[0]): rows for key, rows in self._table.split("dtype").items()}

    def _grid(self, dtype: str) -> RatioGrid:
        if dtype not in self._grids:
            if dtype not in self._rows_of:
                raise missing(self._reference.name, "gemm", f"GEMM in {dtype}")
            m, n, k, latency = self._table.columns(self._rows_of[dtype], "m", "n", "k", "latency_s")
            read_s = DTYPE_BYTES[dtype] * n * k / self._reference.memory_bytes_per_s
            if np.any((latency < read_s) & (DTYPE_BYTES[dtype] * n * k > CACHED_BYTES)):
                latency = np.maximum(latency, read_s / MEMORY_BOUND_SHARE)
            ratio = latency / gemm_floor(self._reference, m, n, k, dtype)
            # Missing rows are odd row counts of one shape first, then the corner of the two largest weights.
            self._grids[dtype] = build_grid((m, n, k), ratio, fill_order=(0, 2, 1))
        return self._grids[dtype]


def gemm_floor(
    spec: DeviceSpec, m: Floats, n: Floats, k: Floats, dtype: str, weight_bytes: float | None = None
) -> Floats:
    """Roofline: ``max(2 m n k / peak, (elt (m k + k n) + 2 m n) / bandwidth) + 2 us``.

    Parameters
    ----------
    spec
        Device whose roofline it is.
    m, n, k
        Sizes in elements, of ``[m, k] x [k, n]``; shapes broadcast.
    dtype
        Number format of the operands.
    weight_bytes
        Of an element of ``[k, n]`` where it is not that format's.

    Returns
    -------
    Floats
        Seconds, the broadcast shape.

    Notes
    -----
    Source: roofline (Williams et al. 2009); output is 2 bytes an element.
    """
    of_weights = DTYPE_BYTES[dtype] if weight_bytes is None else weight_bytes
    num_bytes = (DTYPE_BYTES[dtype] * m + of_weights * n) * k + _OUTPUT_BYTES * m * n
    compute = 2.0 * m * n * k / spec.peak(dtype)
    return np.maximum(compute, num_bytes / spec.memory_bytes_per_s) + GEMM_LAUNCH_S
