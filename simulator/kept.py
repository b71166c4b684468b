"""What was computed last, for whoever asks the same next."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

T = TypeVar("T")


class Kept:
    """The last results of a computation by what they depend on; its owner's life is theirs.

    Parameters
    ----------
    most
        How many are held; the oldest goes first.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._results: dict[Hashable, Any] = {}

    def of(self, key: Hashable, compute: Callable[[], T]) -> T:
        """What ``compute`` gives, computed once for each key that is held.

        Parameters
        ----------
        key
            Everything that the result depends on, but for what the owner holds fixed.
        compute
            Gives the result, which nobody may change.

        Returns
        -------
        T
            The result.
        """
        if key in self._results:
            found: T = self._results[key]
            return found
        result = compute()
        if len(self._results) >= self._most:
            del self._results[next(iter(self._results))]
        self._results[key] = result
        return result
