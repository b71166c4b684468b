"""Interpolation of measured efficiency on a box of sizes.

A measured time spans many orders of magnitude and bends where the hardware limit changes; its ratio to that
limit (a roofline) is nearly flat. So tables are held as ln(time / roofline) and interpolated linearly in the
logarithm of every size; the caller multiplies by the roofline of the true size. Outside the box the ratio of
the edge is held ("the same efficiency"), which makes the time grow as the roofline does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from profiles.errors import FileFormatError
from profiles.records import Basis, Floats, Ints

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

Key: TypeAlias = tuple[Hashable, ...]
_TINY = 1e-30
_MOST_COUNTED = 2**16
"""Numbers of keys are counted up to here, which takes no sorting."""
_MEASURED, _INTERPOLATED, _ANALYTIC = int(Basis.MEASURED), int(Basis.INTERPOLATED), int(Basis.ANALYTIC)
MOST_CELLS = 20_000_000
"""Of a grid: 160 MB. A table whose rows share no sizes would make one of any size."""


@dataclass(frozen=True, eq=False)
class _Axis:
    """What a look-up asks of an axis, made once a grid.

    ``inner`` are its sizes but the first and the last: how many of them a size is not below is its lower neighbour,
    clamped. ``gaps`` are the distances between neighbours, ``None`` where there is one size.
    """

    ln: Floats
    inner: Floats
    gaps: Floats | None
    least: float
    most: float
    stride: int

    @staticmethod
    def of(ln: Floats, stride: int) -> _Axis:
        return _Axis(ln, ln[1:-1].copy(), np.diff(ln) if ln.size > 1 else None, float(ln[0]), float(ln[-1]), stride)


@dataclass(frozen=True, eq=False)
class RatioGrid:
    """ln(measured / roofline) on a full box.

    Parameters
    ----------
    ln_axes
        ln of the grid sizes of each axis, ascending.
    ln_ratio
        Shape ``[len(axis) for each axis]``, no holes.
    cell_basis
        Same shape: ``MEASURED``, or how the hole was filled.
    """

    ln_axes: tuple[Floats, ...]
    ln_ratio: Floats
    cell_basis: NDArray[np.int8]

    def at(self, *sizes: ArrayLike) -> tuple[Floats, Ints]:
        """Efficiency ratio and basis at some sizes.

        ``MEASURED`` on a measured grid point, ``INTERPOLATED`` inside the box, ``ANALYTIC`` outside it or where a
        filled corner carries weight.

        Parameters
        ----------
        *sizes
            One array per axis; they broadcast.

        Returns
        -------
        tuple[Floats, Ints]
            Measured over roofline, and basis; the broadcast shape.
        """
        base: Ints = np.zeros((), dtype=np.int64)
        between: NDArray[np.bool_] = np.zeros((), dtype=np.bool_)
        outside: NDArray[np.bool_] = np.zeros((), dtype=np.bool_)
        weights = []
        for axis, size in zip(self._axes, sizes, strict=True):
            x = np.log(np.maximum(np.asarray(size, dtype=np.float64), _TINY))
            outside = outside | (x < axis.least) | (x > axis.most)
            if axis.gaps is None:
                base = base + np.zeros(x.shape, dtype=np.int64)
                continue
            low = axis.inner.searchsorted(x, side="right")
            weight = np.minimum(np.maximum((x - axis.ln[low]) / axis.gaps[low], 0.0), 1.0)
            base, between = base + low * axis.stride, between | ((weight > 0.0) & (weight < 1.0))
            weights.append(weight)
        index = self._offsets.reshape((-1,) + (1,) * base.ndim) + base
        basis = np.where(outside, _ANALYTIC, np.where(between, _INTERPOLATED, _MEASURED))
        return np.exp(self._blend(index, weights)), np.maximum(basis, self._worst(index, weights))

    @cached_property
    def _axes(self) -> tuple[_Axis, ...]:
        strides = [math.prod(self.ln_ratio.shape[i + 1 :]) for i in range(self.ln_ratio.ndim)]
        return tuple(_Axis.of(axis, stride) for axis, stride in zip(self.ln_axes, strides, strict=True))

    @cached_property
    def _offsets(self) -> Ints:
        """From the lowest corner of a cell to each of its corners, ``[2^axes]``; an axis of one size has none."""
        offsets: Ints = np.zeros(1, dtype=np.int64)
        for axis in self._axes:
            if axis.gaps is not None:
                offsets = np.add.outer(offsets, (0, axis.stride)).reshape(-1)
        return offsets

    def _blend(self, corners: Ints, weights: list[Floats]) -> Floats:
        """Interpolate the values at ``corners``, shape ``[2^axes, ...]``, one axis after the other."""
        value = self.ln_ratio.reshape(-1)[corners]
        for weight in weights:
            half = len(value) // 2
            value = value[:half] + weight * (value[half:] - value[:half])
        return np.asarray(value[0])

    def _worst(self, corners: Ints, weights: list[Floats]) -> Ints:
        """Weakest basis of the corners that carry weight."""
        if not self._has_holes:
            return np.zeros((), dtype=np.int64)
        made = self.cell_basis.reshape(-1)[corners]
        if not made.any():
            return np.zeros((), dtype=np.int64)
        cell = made.astype(np.int64)
        for weight in weights:
            half = len(cell) // 2
            cell = np.maximum(np.where(weight < 1.0, cell[:half], 0), np.where(weight > 0.0, cell[half:], 0))
        return np.asarray(cell[0])

    @cached_property
    def _has_holes(self) -> bool:
        return bool(self.cell_basis.any())


def build_grid(sizes: Sequence[ArrayLike], ratio: ArrayLike, fill_order: Sequence[int] | None = None) -> RatioGrid:
    """Pivot rows into a grid and fill its holes.

    Parameters
    ----------
    sizes
        One column per axis, shape ``[rows]`` each.
    ratio
        measured / roofline, shape ``[rows]``.
    fill_order
        Axes along which holes are filled, in this order (default: as given). A hole between two measured
        neighbours is interpolated; one beyond the last takes that neighbour's ratio.

    Returns
    -------
    RatioGrid
        A full box over the sizes that occur.

    Raises
    ------
    FileFormatError
        The sizes would make more than ``MOST_CELLS`` cells.
    """
    uniques = [np.unique(np.asarray(column), return_inverse=True) for column in sizes]
    if math.prod(values.size for values, _ in uniques) > MOST_CELLS:
        shape = " x ".join(f"{values.size:,}" for values, _ in uniques)
        raise FileFormatError(
            f"the rows of a table spread over {shape} different sizes, a grid of over {MOST_CELLS:,} cells; measure "
            "fewer sizes of each, and each with each"
        )
    ln_axes = tuple(np.log(values.astype(np.float64)) for values, _ in uniques)
    grid = np.full([axis.size for axis in ln_axes], np.nan)
    grid[tuple(inverse for _, inverse in uniques)] = np.log(np.asarray(ratio, dtype=np.float64))
    basis = np.zeros(grid.shape, dtype=np.int8)
    order = tuple(fill_order) if fill_order is not None else tuple(range(grid.ndim))
    # A hole between neighbours of any axis is interpolated before one is extrapolated from a line's last value.
    for axis, beyond in [*((axis, False) for axis in order), *((axis, True) for axis in order)]:
        if not np.isnan(grid).any():
            break
        lines, made = _filled_along(np.moveaxis(grid, axis, -1), np.moveaxis(basis, axis, -1), ln_axes[axis], beyond)
        grid, basis = np.moveaxis(lines, -1, axis), np.moveaxis(made, -1, axis)
    return RatioGrid(ln_axes, np.ascontiguousarray(grid), np.ascontiguousarray(basis))


def _filled_along(
    grid: Floats, basis: NDArray[np.int8], ln_axis: Floats, beyond: bool
) -> tuple[Floats, NDArray[np.int8]]:
    """Fill the holes between the values of every line of the last axis; with ``beyond`` those outside them too."""
    known, last = ~np.isnan(grid), ln_axis.size - 1
    index = np.arange(ln_axis.size)
    before = np.maximum.accumulate(np.where(known, index, -1), axis=-1)
    after = np.minimum.accumulate(np.where(known, index, last + 1)[..., ::-1], axis=-1)[..., ::-1]
    inside = (before >= 0) & (after <= last)
    low = np.where(before >= 0, before, np.minimum(after, last))
    high = np.where(after <= last, after, low)
    span = ln_axis[high] - ln_axis[low]
    weight = np.where(span > 0.0, (ln_axis - ln_axis[low]) / np.where(span > 0.0, span, 1.0), 0.0)
    left, right = np.take_along_axis(grid, low, -1), np.take_along_axis(grid, high, -1)
    filled = np.where(known | (~inside & (not beyond)), grid, left + weight * (right - left))
    made = np.where(inside, np.int8(Basis.INTERPOLATED), np.int8(Basis.ANALYTIC))
    corners = np.maximum(np.take_along_axis(basis, low, -1), np.take_along_axis(basis, high, -1))
    return filled, np.where(known, basis, np.maximum(made, corners))


def split_by_key(columns: Sequence[NDArray[np.generic]], what: str) -> dict[Key, slice]:
    """Row range of every key of a table that is sorted by its key columns.

    Parameters
    ----------
    columns
        Key columns, ``[rows]`` each.
    what
        Name of the table, for messages.

    Returns
    -------
    dict[Key, slice]
        Rows of each key.

    Raises
    ------
    FileFormatError
        The rows of one key are not together.
    """
    rows = columns[0].size
    if rows == 0:
        return {}
    change = np.zeros(rows - 1, dtype=np.bool_)
    for column in columns:
        change |= column[1:] != column[:-1]
    starts = np.concatenate([[0], np.flatnonzero(change) + 1])
    ends = np.append(starts[1:], rows)
    keys = zip(*(column[starts].tolist() for column in columns), strict=True)
    found = {key: slice(int(a), int(b)) for key, a, b in zip(keys, starts, ends, strict=True)}
    if len(found) != starts.size:
        raise FileFormatError(f"{what}: rows are not sorted by their key columns; import the table again")
    return found


def by_unique_key(
    keys: Sequence[ArrayLike],
    sizes: Sequence[ArrayLike],
    lookup: Callable[[Key, Sequence[Floats]], tuple[Floats, Ints]],
) -> tuple[Floats, Ints]:
    """Look up once per distinct key and put the results together.

    Parameters
    ----------
    keys, sizes
        Arrays that broadcast together; keys that are all scalars take one lookup.
    lookup
        From a key and its sizes to ratio and basis.

    Returns
    -------
    tuple[Floats, Ints]
        Ratio and basis, the broadcast shape.
    """
    key_arrays = [np.asarray(k) for k in keys]
    size_arrays = [np.asarray(s, dtype=np.float64) for s in sizes]
    if all(k.ndim == 0 for k in key_arrays):
        return lookup(tuple(k.item() for k in key_arrays), size_arrays)
    shape = np.broadcast_shapes(*(a.shape for a in [*key_arrays, *size_arrays]))
    flat_keys = [np.broadcast_to(k, shape).reshape(-1) for k in key_arrays]
    flat_sizes = [np.broadcast_to(s, shape).reshape(-1) for s in size_arrays]
    which = _key_number(flat_keys)
    value, basis = np.empty(which.size), np.empty(which.size, dtype=np.int64)
    for number in _present(which):
        here = which == number
        first = int(np.argmax(here))
        key = tuple(k[first].item() for k in flat_keys)
        value[here], basis[here] = lookup(key, [s[here] for s in flat_sizes])
    return value.reshape(shape), basis.reshape(shape)


def _key_number(keys: Sequence[Ints]) -> Ints:
    """A number for every distinct key, ascending as they are; ``keys`` are whole-number columns, ``[rows]`` each."""
    number: Ints = np.zeros(keys[0].size, dtype=np.int64)
    most = 0
    for column in keys:
        if not column.size or (low := column.min()) == (high := column.max()):
            continue
        span = int(high - low) + 1
        if (most + 1) * span > _MOST_COUNTED:  # numbers that are close together again
            values, number = np.unique(number, return_inverse=True)
            most = values.size - 1
        if (most + 1) * span > _MOST_COUNTED:
            values, column = np.unique(column, return_inverse=True)
            low, span = 0, values.size
        number = number * span + (column - low)
        most = (most + 1) * span - 1
    return number


def _present(number: Ints) -> list[int]:
    """The numbers that occur, ascending."""
    if number.size and int(number.max()) > _MOST_COUNTED:
        return [int(n) for n in np.unique(number)]
    return [int(n) for n in np.flatnonzero(np.bincount(number))]
