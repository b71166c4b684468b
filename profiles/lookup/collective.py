"""Time of collectives inside one NVLink domain."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from profiles.errors import NoBasisError
from profiles.lookup.grid import RatioGrid, build_grid
from profiles.lookup.pricing import COLLECTIVE_ALPHA_S, checked, checked_counts, missing, priced
from profiles.records import Basis, Floats, Priced, where

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import ArrayLike

    from profiles.hardware import DeviceSpec
    from profiles.lookup.table import Table

# Times that the (g - 1) / g of the buffer crosses a GPU's link: an all-reduce is a reduce-scatter and an
# all-gather.
PASSES = {"all_gather": 1.0, "reduce_scatter": 1.0, "all_reduce": 2.0, "all_to_all": 1.0}
_MODES = {True: "graph", False: "eager"}


class CollectiveLookup:
    """NCCL tables (and vLLM's all-reduce, when there is one), one grid over (gpus, bytes) per kind.

    Parameters
    ----------
    table
        NCCL's rows by format and kind of collective.
    reference
        The device that they were measured on.
    custom
        The rows of vLLM's own all-reduce, by launch mode; ``None`` where there are none.
    """

    def __init__(self, table: Table, reference: DeviceSpec, custom: Table | None) -> None:
        self._reference = reference
        found = table.split("dtype", "kind")
        measured_in = min((str(dtype) for dtype, _ in found), key=lambda d: (d != "fp16", d))  # bytes are what counts
        kinds = {str(kind): rows for (dtype, kind), rows in found.items() if dtype == measured_in}
        self._nccl = {kind: _grid(table.part(rows), reference, kind) for kind, rows in kinds.items()}
        self._custom: dict[str, RatioGrid] = {}
        if custom is not None:
            for (mode,), rows in custom.split("mode").items():
                self._custom[str(mode)] = _grid(custom.part(rows), reference, "all_reduce")

    def price(self, spec: DeviceSpec, weakest: Basis, kind: str, num_bytes: ArrayLike, gpus: ArrayLike) -> Priced:
        """See ``DeviceProfile.collective``."""
        if kind not in PASSES:
            raise NoBasisError(f"no collective '{kind}'; known: {', '.join(sorted(PASSES))}")
        if kind not in self._nccl:
            raise missing(self._reference.name, "collective", f"{kind} inside a node")
        return _price(self._nccl[kind], spec, weakest, kind, num_bytes, gpus)

    def grids(self) -> Iterator[RatioGrid]:
        """Every grid of both tables."""
        yield from self._nccl.values()
        yield from self._custom.values()

    def decode_all_reduce(
        self, spec: DeviceSpec, weakest: Basis, num_bytes: ArrayLike, gpus: ArrayLike, cuda_graphs: bool
    ) -> Priced:
        """See ``DeviceProfile.decode_all_reduce``."""
        nccl = self.price(spec, weakest, "all_reduce", num_bytes, gpus)
        grid = self._custom.get(_MODES[cuda_graphs])
        if grid is None:
            return nccl
        custom = _price(grid, spec, weakest, "all_reduce", num_bytes, gpus)
        if not cuda_graphs:
            # NCCL was timed back to back; launched eagerly it waits for the host as the custom kernel does.
            floor = _price(grid, spec, weakest, "all_reduce", np.exp(grid.ln_axes[1][0]), gpus)
            nothing = np.asarray(num_bytes) == 0
            nccl = where((nccl.s < floor.s) & ~nothing, floor, nccl)
        # The custom kernel exists for the measured group sizes only.
        reach = np.asarray(gpus) <= np.exp(grid.ln_axes[0][-1]) * (1 + 1e-9)
        return where(reach & (custom.s < nccl.s), custom, nccl)


def collective_floor(spec: DeviceSpec, kind: str, gpus: Floats, num_bytes: Floats) -> Floats:
    """``alpha log2(g) / 3 + passes (g - 1) / g bytes / nvlink``: alpha is 5 us for the three hops of 8 GPUs.

    Parameters
    ----------
    spec
        Device whose roofline it is.
    kind
        Of collective.
    gpus, num_bytes
        Group size and whole tensor; shapes broadcast.

    Returns
    -------
    Floats
        Seconds, the broadcast shape.

    Notes
    -----
    Source: alpha-beta model of ring collectives (Thakur et al. 2005); inside the tables its ratio to the measured time
    is interpolated.
    """
    rate = spec.nvlink_bytes_per_s * spec.kernels.share_of_links(gpus)
    wire = PASSES[kind] * num_bytes * (gpus - 1.0) / gpus / rate
    return COLLECTIVE_ALPHA_S * np.log2(gpus) / 3.0 + wire


def _grid(table: Table, reference: DeviceSpec, kind: str) -> RatioGrid:
    gpus, num_bytes, latency = table.columns(slice(None), "gpus", "num_bytes", "latency_s")
    return build_grid(
        (gpus, num_bytes), latency / collective_floor(reference, kind, gpus, num_bytes), fill_order=(1, 0)
    )


def _price(
    grid: RatioGrid, spec: DeviceSpec, weakest: Basis, kind: str, num_bytes: ArrayLike, gpus: ArrayLike
) -> Priced:
    (size,) = checked(num_bytes=num_bytes)
    (count,) = checked_counts(gpus=gpus)
    group = np.maximum(count, 2).astype(np.float64)
    floor = collective_floor(spec, kind, group, size)
    return priced(grid.at(group, size), floor, (count == 1) | (size == 0.0), weakest)
