"""Futures: what a call returns at once. The controller passes them on; only workers look inside.

A future names, for each part of a batch, the ranks that hold its rows. Two futures over the same rows join into one
with the columns of both (``a | b``), whichever way their rows are spread. A share of a future is resolved by the
worker that needs it, which pulls only the sources its rows lie in. Calls declare what they read and return, so a call
waits for the columns it reads and for no others.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from executor.batch import from_wire, is_wire, join
from executor.rl.dealing import deal
from profiles.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tensordict import TensorDict

    from executor.rl.dealing import Hand

Fetch = "Callable[[Sequence[Any]], list[Any]]"


@dataclass(frozen=True)
class Source:
    """What one rank returned: a reference to the data, and one to the small record of the call (rows, times, bytes)."""

    data: Any
    record: Any


@dataclass(frozen=True)
class Dealing:
    """Rows dealt to ``num_ranks`` by the tokens that the records of ``lengths`` name, in each of ``num_steps``."""

    lengths: tuple[Source, ...]
    num_ranks: int
    num_steps: int

    def hands(self, fetch: Callable[[Sequence[Any]], list[Any]]) -> tuple[Hand, ...] | None:
        """What each rank has; ``None`` where no tokens are named: then rows are cut in their order."""
        found = [record.row_tokens for record in fetch([source.record for source in self.lengths])]
        if any(tokens is None for tokens in found):
            return None
        return deal(tuple(itertools.chain.from_iterable(found)), self.num_ranks, self.num_steps)


@dataclass(frozen=True)
class Part:
    """Sources of one set of columns, in row order, or each with the rows that ``dealing`` gave its rank.

    ``columns`` is ``None`` where they are not known beforehand.
    """

    sources: tuple[Source, ...]
    columns: frozenset[str] | None = None
    dealing: Dealing | None = None

    def serves(self, columns: frozenset[str] | None) -> bool:
        """Whether somebody who reads ``columns`` (``None``: all) may need this part."""
        return columns is None or self.columns is None or bool(columns & self.columns)


@dataclass(frozen=True)
class Future:
    """The value of a call, or of several calls over the same rows.

    ``fetch`` waits for sources and returns their values; the controller supplies it.
    """

    parts: tuple[Part, ...]
    fetch: Callable[[Sequence[Source]], list[Any]] | None = field(default=None, repr=False, compare=False)

    def __or__(self, other: Future) -> Future:
        """The columns of both, row by row; where both have a column, the later one wins."""
        return Future(self.parts + other.parts, self.fetch)

    def reading(self, columns: frozenset[str] | None) -> Future:
        """Without the parts that a reader of ``columns`` does not need, and so need not wait for."""
        return Future(tuple(part for part in self.parts if part.serves(columns)), self.fetch)

    def having(self, columns: frozenset[str] | None) -> Future:
        """The same future, its columns declared."""
        return Future(tuple(replace(part, columns=columns) for part in self.parts), self.fetch)

    def dealt(self, dealing: Dealing | None) -> Future:
        """The same future, the order of its rows declared."""
        return Future(tuple(replace(part, dealing=dealing) for part in self.parts), self.fetch)

    def dealing(self, num_ranks: int, num_steps: int) -> Dealing | None:
        """How its rows are dealt by tokens; ``None`` where no part has responses."""
        found = [part for part in self.parts if part.columns is not None and "response_mask" in part.columns]
        return Dealing(found[-1].sources, num_ranks, num_steps) if found else None

    def get(self) -> Any:
        """Wait for the value: a joined batch, or the list of what each rank returned."""
        import torch

        merged: TensorDict | None = None
        for part in self.parts:
            values = self._fetched(part.sources)
            if not is_wire(values[0]):
                return values
            batch = join([from_wire(value) for value in values])
            if part.dealing is not None and (hands := part.dealing.hands(self._records)) is not None:
                batch = batch[torch.tensor([row for hand in hands for row in hand.rows]).argsort()]
            merged = batch if merged is None else merged.update(batch)
        return merged

    def first(self) -> Any:
        """Wait for the first rank's value only: enough where all ranks return the same."""
        value = self._fetched(self.parts[0].sources[:1])[0]
        return from_wire(value) if is_wire(value) else value

    def wait(self) -> None:
        """Wait until every rank is through; raise what a rank raised."""
        self.get()

    def _records(self, references: Sequence[Any]) -> list[Any]:
        return self._fetched([Source(reference, reference) for reference in references])

    def _fetched(self, sources: Sequence[Source]) -> list[Any]:
        assert self.fetch is not None, "a future outside the controller is only passed on"
        return self.fetch(sources)


@dataclass(frozen=True)
class FutureShare:
    """The ``index``-th of ``count`` shares of a future: what travels to a worker in place of rows.

    Rows follow each other, or are those that ``dealing`` gives.
    """

    parts: tuple[Part, ...]
    index: int = 0
    count: int = 1
    dealing: Dealing | None = None

    def dealt(self, dealing: Dealing) -> FutureShare:
        """The same share, of rows that are dealt."""
        return replace(self, dealing=dealing)


def join_futures(futures: Sequence[Future]) -> Future:
    """One future over the rows of all ``futures``, in order."""
    if any(len(future.parts) != 1 for future in futures):
        raise InputError("only what single calls returned can be joined row by row")
    sources = tuple(source for future in futures for source in future.parts[0].sources)
    return Future((Part(sources, futures[0].parts[0].columns),), futures[0].fetch)
