"""Cost of one call: its compute, its communication, and the time after they overlap."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from profiles.records import Priced, exposed, where

if TYPE_CHECKING:
    from numpy.typing import ArrayLike


@dataclass(frozen=True, eq=False)
class Cost:
    """Prices of shape ``[C]``, one per candidate.

    ``compute`` counts everything that is not communication (host time and pipeline idling too); ``comm`` all
    communication, hidden or not; ``exposed`` the part of ``comm`` that nothing hides. For every element
    ``max(compute, comm) <= time <= compute + comm``.
    """

    compute: Priced
    comm: Priced
    exposed: Priced

    @staticmethod
    def of_compute(compute: Priced) -> Cost:
        """A call without communication.

        Parameters
        ----------
        compute
            Seconds, any shape.

        Returns
        -------
        Cost
            The same seconds, none of them communication.
        """
        nothing = Priced.zero(compute.shape)
        return Cost(compute, nothing, nothing)

    @staticmethod
    def serial(compute: Priced, comm: Priced) -> Cost:
        """Nothing overlaps.

        Parameters
        ----------
        compute, comm
            Seconds, of one shape.

        Returns
        -------
        Cost
            Their sum as time.
        """
        return Cost(compute, comm, comm)

    @staticmethod
    def overlapped(compute: Priced, comm: Priced) -> Cost:
        """Communication runs beside compute; what is longer is left.

        Parameters
        ----------
        compute, comm
            Seconds, of one shape.

        Returns
        -------
        Cost
            The longer of the two as time.
        """
        return Cost(compute, comm, exposed(comm, compute.s))

    @staticmethod
    def beside(compute: Priced, comm: Priced, pace: float) -> Cost:
        """Communication runs beside compute, which goes on at a part of its pace meanwhile.

        Parameters
        ----------
        compute, comm
            Seconds alone, of one shape.
        pace
            Share of its own pace that compute keeps: 1 hides all of the shorter, 0 is ``serial``.

        Returns
        -------
        Cost
            ``max(comm, compute + (1 - pace) comm)`` as time.
        """
        return Cost(compute, comm, exposed(comm, np.minimum(pace * comm.s, compute.s)))

    @property
    def time(self) -> Priced:
        return self.compute + self.exposed

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.compute + other.compute, self.comm + other.comm, self.exposed + other.exposed)

    def __mul__(self, factor: ArrayLike) -> Cost:
        return Cost(self.compute * factor, self.comm * factor, self.exposed * factor)

    def hide(self, more_comm: Priced) -> Cost:
        """Run ``more_comm`` beside the compute that no communication is hidden behind yet.

        Parameters
        ----------
        more_comm
            Seconds, of this cost's shape.

        Returns
        -------
        Cost
            This cost, and what of ``more_comm`` nothing hides.
        """
        hidden = self.comm + self.exposed * -1.0
        left = exposed(more_comm, self.compute.s - hidden.s)
        return Cost(self.compute, self.comm + more_comm, self.exposed + left)

    def __getitem__(self, key: object) -> Cost:
        return Cost(self.compute[key], self.comm[key], self.exposed[key])


def choose(condition: ArrayLike, a: Cost, b: Cost) -> Cost:
    """Elementwise choice between two costs.

    Parameters
    ----------
    condition
        Where ``a`` holds, ``[C]``.
    a, b
        Two costs of the same candidates.

    Returns
    -------
    Cost
        ``a`` or ``b`` of each candidate.
    """
    return Cost(
        where(condition, a.compute, b.compute),
        where(condition, a.comm, b.comm),
        where(condition, a.exposed, b.exposed),
    )
