"""The one interface of what moves weights between ranks, and what it tells of it.

Two engines on one pool are joined by ``move.Resharder``, two pools by ``link.PoolBroadcast``. Where training and
generation share their memory there is nothing between two engines to move: ``in_place`` carries the same plan out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from executor.records import WeightsMoved

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch

    Tensors = Mapping[str, torch.Tensor]


class WeightMover(Protocol):
    """Brings weights from the ranks and the layout that hold them to those that need them."""

    def move(self, source: Tensors, target: Tensors) -> None:
        """Fill ``target``, this rank's tensors of the target layout, from the ``source`` tensors of all ranks.

        Every rank of both sides calls this equally often; one that only sends has no ``target``, one that only receives
        no ``source``. Sources are only read. Padding of a target becomes zero.
        """


class MoveLog:
    """What was moved last, reported once: in the record of the call in which it happened."""

    def __init__(self) -> None:
        self._latest = WeightsMoved()

    def note(self, moved: WeightsMoved) -> None:
        """Weights have been moved."""
        self._latest = moved

    def take(self) -> WeightsMoved:
        """What was moved since this was last asked."""
        found, self._latest = self._latest, WeightsMoved()
        return found
