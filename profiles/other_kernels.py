"""Kernels of a part that another part's tables price: what they reach beside those of the tables.

A part of the same make is priced at its own data sheet's rates with the efficiencies of the tables. Another maker's
kernels reach another share of its data sheet, wait longer between each other, and their links may have no switch.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from profiles.records import Basis, Floats, Priced

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from profiles.hardware import DeviceSpec


@dataclass(frozen=True)
class OtherKernels:
    """What a card says of a part's own kernels; the values here leave the tables' efficiencies as they are.

    Parameters
    ----------
    matrix, memory, links
        Share of the data sheet's matrix rate, memory bandwidth and links that kernels reach, over the share that those
        of the tables reach of theirs.
    gap_s, collective_s
        More time from one kernel of a captured step to the next, and of a collective of little size, s.
    attention
        Share of the matrix rate that attention of prompts reaches, over that of the tables' parts: above one where the
        matrix units of a part are slower beside all else that the kernel waits for.
    norms_apart
        Norms of queries and keys that are kernels of their own in a decode step, where engines on the tables' parts
        compile them into their neighbours.
    decode_kernels
        Kernels of one layer's decode attention.
    peer_links
        Links of a GPU to one peer each, without a switch, of which a group of g GPUs uses g - 1; 0 with a switch.
    """

    matrix: float = 1.0
    memory: float = 1.0
    links: float = 1.0
    attention: float = 1.0
    gap_s: float = 0.0
    collective_s: float = 0.0
    norms_apart: float = 0.0
    decode_kernels: float = 1.0
    peer_links: float = 0.0

    def reached(self, spec: DeviceSpec) -> DeviceSpec:
        """The data sheet's rates as these kernels reach them, for the rooflines of the tables."""
        if self == LIKE_THE_TABLES:
            return spec
        return replace(
            spec,
            peak_flop_per_s={dtype: rate * self.matrix for dtype, rate in spec.peak_flop_per_s.items()},
            memory_bytes_per_s=spec.memory_bytes_per_s * self.memory,
            nvlink_bytes_per_s=spec.nvlink_bytes_per_s * self.links,
        )

    def attending(self, spec: DeviceSpec) -> DeviceSpec:
        """The rates of ``reached`` as attention of prompts reaches them."""
        if self.attention == 1.0:
            return spec
        rates = {dtype: rate * self.attention for dtype, rate in spec.peak_flop_per_s.items()}
        return replace(spec, peak_flop_per_s=rates)

    def spaced(self, price: Priced, kernels: ArrayLike = 1) -> Priced:
        """A price of some kernels and the gaps before them; nothing stays nothing."""
        return _with(price, np.asarray(kernels) * self.gap_s) if self.gap_s else price

    def met(self, price: Priced) -> Priced:
        """A price of a collective and what ranks take longer to meet."""
        return _with(price, self.collective_s) if self.collective_s else price

    def share_of_links(self, gpus: Floats) -> Floats | float:
        """Share of a GPU's links that a group inside a domain uses."""
        return np.clip(gpus - 1.0, 1.0, self.peer_links) / self.peer_links if self.peer_links else 1.0


LIKE_THE_TABLES = OtherKernels()

UNITS_OF = {
    **{"matrix": "ratio", "memory": "ratio", "links": "ratio", "attention": "ratio"},
    **{"gap_s": "s", "collective_s": "s", "peer_links": "links"},
    **{"norms_apart": "kernels", "decode_kernels": "kernels"},
}
"""Unit of each, as a card states it."""


def _with(price: Priced, more_s: ArrayLike) -> Priced:
    return price + Priced.of(np.where(price.s > 0.0, more_s, 0.0), Basis.ASSUMED)
