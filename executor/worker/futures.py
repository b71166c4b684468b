"""Futures: what a call returns at once. The controller passes them on; only workers look inside.

A future names, for each part of a batch, the ranks that hold its rows. Two futures over the same rows join into one
with the columns of both (``a | b``), whichever way their rows are spread. A share of a future is resolved by the
worker that needs it, which pulls only the sources its rows lie in. Calls declare what they read and return, so a call
waits for the columns it reads and for no others.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from executor.batch import from_wire, is_wire, join, pad_share, share_of
from profiles.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tensordict import TensorDict

Fetch = "Callable[[Sequence[Any]], list[Any]]"


@dataclass(frozen=True)
class Source:
    """What one rank returned: a reference to the data, and one to the small record of the call (rows, times, bytes)."""

    data: Any
    record: Any


@dataclass(frozen=True)
class Part:
    """Sources of one set of columns, in row order. ``columns`` is ``None`` where they are not known beforehand."""

    sources: tuple[Source, ...]
    columns: frozenset[str] | None = None

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
        return Future(tuple(Part(part.sources, columns) for part in self.parts), self.fetch)

    def get(self) -> Any:
        """Wait for the value: a joined batch, or the list of what each rank returned."""
        merged: TensorDict | None = None
        for part in self.parts:
            values = self._fetched(part.sources)
            if not is_wire(values[0]):
                return values
            batch = join([from_wire(value) for value in values])
            merged = batch if merged is None else merged.update(batch)
        return merged

    def first(self) -> Any:
        """Wait for the first rank's value only: enough where all ranks return the same."""
        value = self._fetched(self.parts[0].sources[:1])[0]
        return from_wire(value) if is_wire(value) else value

    def wait(self) -> None:
        """Wait until every rank is through; raise what a rank raised."""
        self.get()

    def _fetched(self, sources: Sequence[Source]) -> list[Any]:
        assert self.fetch is not None, "a future outside the controller is only passed on"
        return self.fetch(sources)


@dataclass(frozen=True)
class FutureShare:
    """The ``index``-th of ``count`` shares of a future: what travels to a worker in place of rows."""

    parts: tuple[Part, ...]
    index: int = 0
    count: int = 1


def join_futures(futures: Sequence[Future]) -> Future:
    """One future over the rows of all ``futures``, in order."""
    if any(len(future.parts) != 1 for future in futures):
        raise InputError("only what single calls returned can be joined row by row")
    sources = tuple(source for future in futures for source in future.parts[0].sources)
    return Future((Part(sources, futures[0].parts[0].columns),), futures[0].fetch)


def resolve(
    share: FutureShare, fetch: Callable[[Sequence[Any]], list[Any]], columns: frozenset[str] | None = None
) -> TensorDict:
    """Pull the rows of ``share``: first the records, which say how many rows each source has, then what is needed.

    ``fetch`` waits for references; ``columns`` are all that is kept, ``None`` keeps them all. Raises
    ``InputError`` where two parts differ in rows.
    """
    merged: TensorDict | None = None
    counts = [sum(rows) for rows in (rows_of(part.sources, fetch) for part in share.parts)]
    if len(set(counts)) != 1:
        raise InputError(f"columns of different calls do not line up: they have {counts} rows")
    mine = share_of(counts[0], share.index, share.count)
    for part in share.parts:
        pulled = _pull(part.sources, mine.start, mine.stop, fetch, columns)
        if pulled is not None:
            merged = pulled if merged is None else merged.update(pulled)
    if merged is None:
        raise InputError(f"no input has any of the columns {', '.join(sorted(columns or ()))}")
    return pad_share(merged, mine, mark=counts[0] % share.count != 0)


def rows_of(sources: Sequence[Source], fetch: Callable[[Sequence[Any]], list[Any]]) -> list[int]:
    """Rows that each source of a part holds."""
    return [record.num_rows for record in fetch([source.record for source in sources])]


def overlaps(rows: Sequence[int], start: int, stop: int) -> list[tuple[int, int, int]]:
    """Which sources hold rows ``[start, stop)``: ``(source, first, last)`` with rows counted inside each source."""
    found, offset = [], 0
    for i, num in enumerate(rows):
        first, last = max(start - offset, 0), min(stop - offset, num)
        if first < last:
            found.append((i, first, last))
        offset += num
    return found


def _pull(
    sources: Sequence[Source],
    start: int,
    stop: int,
    fetch: Callable[[Sequence[Any]], list[Any]],
    columns: frozenset[str] | None,
) -> TensorDict | None:
    """Rows ``[start, stop)`` of a part, from the sources that hold them and no other; ``None`` without columns."""
    needed = overlaps(rows_of(sources, fetch), start, stop)
    wires = [
        wire if columns is None else {name: wire[name] for name in wire.keys() & columns}
        for wire in fetch([sources[i].data for i, _, _ in needed])
    ]
    if not all(wires):
        return None
    return join([from_wire(wire, first, last) for wire, (_, first, last) in zip(wires, needed, strict=True)])
