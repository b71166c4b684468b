"""What every priced lookup shares: how a size is checked, how a ratio becomes seconds, and the fixed costs.

A lookup is ``ratio x floor``. The *floor* is a roofline of the true size on the device that is asked about. The
*ratio* is measured time over the floor of the device that the table was measured on. On that device a grid point
gives back exactly the measured time; on a hypothetical device (another bandwidth or peak) the ratio is held.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from profiles.errors import InputError, NoBasisError
from profiles.records import Basis, Floats, Ints, Priced
from profiles.units import DTYPE_BYTES

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from profiles.hardware import DeviceSpec

# Fixed parts of the floors, in seconds. Inside a table they cancel (the ratio absorbs them); outside they decide
# where a small problem stops shrinking, so they are near the fastest measured time of each family.
GEMM_LAUNCH_S = 2e-6
ATTENTION_LAUNCH_S = 8e-6
MLA_KERNEL_LAUNCH_S = 10e-6
MLA_MODULE_LAUNCH_S = 30e-6
MOE_LAUNCH_S = 10e-6
COLLECTIVE_ALPHA_S = 5e-6
MOE_EXCHANGE_ALPHA_S = 60e-6
# One decode work item (a sequence and KV head) costs 11 (B200) to 37 ns (A100) however short its context is.
DECODE_ITEM_S = 20e-9
# Memory-bound kernels: the share of peak bandwidth is mem_bw_empirical_scaling_factor of the system cards of
# aiconfigurator-core 0.12.0; the launch inside a CUDA graph was fitted on decode steps of vLLM and TRT-LLM.
MEMORY_BOUND_SHARE = 0.8
GRAPH_LAUNCH_S = 2.5e-6

TABLE_DTYPE = {"fp16": "bf16"}

Sizes: TypeAlias = tuple[Floats, ...]
Located: TypeAlias = tuple[Floats, Ints]


def checked(**sizes: ArrayLike) -> Sizes:
    """Sizes as float arrays.

    Parameters
    ----------
    **sizes
        By the name that a message gives them.

    Returns
    -------
    Sizes
        The same sizes, in order.

    Raises
    ------
    InputError
        One is negative or not finite.
    """
    out = []
    for name, size in sizes.items():
        array = np.asarray(size, dtype=np.float64)
        # One pass each; a NaN fails the comparison.
        if not (array.min(initial=0.0) >= 0.0 and array.max(initial=0.0) < np.inf):
            bad = array[~(np.isfinite(array) & (array >= 0.0))]
            raise InputError(f"{name} is {bad.flat[0]:g}; a size must be finite and not negative")
        out.append(array)
    return tuple(out)


def checked_counts(**counts: ArrayLike) -> tuple[NDArray[np.int64], ...]:
    """Turn counts that identify a table row (heads, GPUs, ranks) to integers.

    Parameters
    ----------
    **counts
        By the name that a message gives them.

    Returns
    -------
    tuple[NDArray[np.int64], ...]
        The same counts, in order.

    Raises
    ------
    InputError
        One is below 1 or no whole number.
    """
    out = []
    for name, count in counts.items():
        array = np.asarray(count)
        whole = array.astype(np.int64)
        wrong = (whole < 1) | (whole != array)
        if wrong.any():
            raise InputError(f"{name} is {array[wrong].flat[0]}; it must be a whole number of at least 1")
        out.append(whole)
    return tuple(out)


def table_dtype(dtype: str) -> str:
    """Return the dtype under which tables hold a number format.

    Parameters
    ----------
    dtype
        Number format.

    Returns
    -------
    str
        Name in the tables.

    Raises
    ------
    NoBasisError
        hybridmap has no size of the format.
    """
    if dtype not in DTYPE_BYTES:
        raise NoBasisError(f"dtype '{dtype}' is not priced; known: {', '.join(sorted(DTYPE_BYTES))}")
    return TABLE_DTYPE.get(dtype, dtype)


def priced(located: Located, floor: Floats, nothing: NDArray[np.bool_] | bool, weakest: Basis) -> Priced:
    """Seconds from ratio and floor.

    Parameters
    ----------
    located
        Ratio and basis.
    floor
        Seconds of the roofline.
    nothing
        Where there is nothing to do: zero seconds.
    weakest
        Basis that the price is never stronger than.

    Returns
    -------
    Priced
        Seconds, the broadcast shape.
    """
    ratio, basis = located
    return Priced.of(np.where(nothing, 0.0, ratio * floor), np.maximum(basis, int(weakest)))


def missing(device: str, table: str, detail: str) -> NoBasisError:
    """Make the error of a lookup whose measurement the device does not have.

    Parameters
    ----------
    device
        Its name.
    table
        That it lacks.
    detail
        What was asked for.

    Returns
    -------
    NoBasisError
        The error, to be raised.
    """
    return NoBasisError(f"{device}: no measurement of {detail}; it would be in {table}.parquet of the device folder")


def memory_bound(spec: DeviceSpec, num_bytes: ArrayLike, num_kernels: ArrayLike = 1) -> Priced:
    """``bytes / (0.8 memory_bw) + 2.5 us x kernels``, zero where there are neither bytes nor kernels.

    Parameters
    ----------
    spec
        Device whose roofline it is.
    num_bytes, num_kernels
        Read and written, by how many kernels; shapes broadcast.

    Returns
    -------
    Priced
        Seconds, the broadcast shape.

    Raises
    ------
    InputError
        A size is negative.

    Notes
    -----
    Both constants: see above them. The share is that of large kernels; smaller ones reach less.
    """
    size, kernels = checked(num_bytes=num_bytes, num_kernels=num_kernels)
    seconds = size / (MEMORY_BOUND_SHARE * spec.memory_bytes_per_s) + GRAPH_LAUNCH_S * kernels
    return Priced.of(seconds, Basis.ANALYTIC)


def host_copy(spec: DeviceSpec, num_bytes: ArrayLike) -> Priced:
    """``bytes / pcie`` of one GPU, one direction.

    Parameters
    ----------
    spec
        Device whose roofline it is.
    num_bytes
        Of one copy.

    Returns
    -------
    Priced
        Seconds, the shape of ``num_bytes``.

    Raises
    ------
    InputError
        A size is negative.
    """
    (size,) = checked(num_bytes=num_bytes)
    return Priced.of(size / spec.pcie_bytes_per_s, Basis.ANALYTIC)
