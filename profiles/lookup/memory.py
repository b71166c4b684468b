"""Time of kernels that are bound by the bytes they move, from measured tables: element-wise ones, and copies."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from profiles.errors import FileFormatError
from profiles.lookup.grid import RatioGrid, build_grid
from profiles.lookup.pricing import checked
from profiles.records import Basis, Floats, Priced

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import ArrayLike

    from profiles.lookup.table import Table

BYTES_LAUNCH_S = 2e-6
"""Fixed part of the floor: where a small kernel stops shrinking. Inside the table the ratio absorbs it."""


class BytesLookup:
    """Rows of one kind of a table with ``num_bytes`` and ``latency_s``.

    Parameters
    ----------
    table
        Where the rows are.
    column, kind
        Which rows: those with ``kind`` in ``column``.
    rate
        Bytes per second of the device that they were measured on.
    """

    def __init__(self, table: Table, column: str, kind: str, rate: float) -> None:
        rows = table.split(column).get((kind,))
        if rows is None:
            raise FileFormatError(f"{table.path}: no row has '{kind}' in column '{column}'")
        num_bytes, latency = table.columns(rows, "num_bytes", "latency_s")
        self._grid = build_grid((num_bytes,), latency / _floor(num_bytes, rate))
        largest = int(np.argmax(num_bytes))
        self._streaming_ratio = float(latency[largest] / (num_bytes[largest] / rate))

    def grids(self) -> Iterator[RatioGrid]:
        """Every grid of the table."""
        yield self._grid

    def price(self, rate: float, weakest: Basis, num_bytes: ArrayLike, num_kernels: ArrayLike) -> Priced:
        """``num_bytes`` moved by ``num_kernels`` equal kernels; without kernels of their own (0) at streaming rate."""
        size, kernels = checked(num_bytes=num_bytes, num_kernels=num_kernels)
        each = size / np.maximum(kernels, 1.0)
        ratio, basis = self._grid.at(each)
        launched = ratio * _floor(each, rate) * kernels
        streamed = self._streaming_ratio * size / rate
        alone = kernels > 0
        seconds = np.where(alone, launched, streamed)
        return Priced.of(seconds, np.maximum(np.where(alone, basis, Basis.INTERPOLATED), int(weakest)))


def _floor(num_bytes: Floats, rate: float) -> Floats:
    """``bytes / rate + 2 us``."""
    return num_bytes / rate + BYTES_LAUNCH_S
