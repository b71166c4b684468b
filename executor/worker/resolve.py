"""What a worker does with a share of a future: it pulls the rows that it needs, from the sources that hold them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from executor.batch import PADDING, ROW, from_wire, join, pad_share, share_of
from profiles.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tensordict import TensorDict

    from executor.rl.dealing import Hand
    from executor.worker.futures import FutureShare, Part, Source


def resolve(
    share: FutureShare, fetch: Callable[[Sequence[Any]], list[Any]], columns: frozenset[str] | None = None
) -> TensorDict:
    """Pull the rows of ``share``: first the records, which say how many rows each source has, then what is needed.

    ``fetch`` waits for references; ``columns`` are all that is kept, ``None`` keeps them all. Raises
    ``InputError`` where two parts differ in rows.
    """
    counts = [sum(rows) for rows in (rows_of(part.sources, fetch) for part in share.parts)]
    if len(set(counts)) != 1:
        raise InputError(f"columns of different calls do not line up: they have {counts} rows")
    hands = None if share.dealing is None else share.dealing.hands(fetch)
    if hands is not None:
        return _resolve_hand(share, hands, fetch, columns)
    mine = share_of(counts[0], share.index, share.count)
    merged = _merged(share.parts, range(mine.start, mine.stop), fetch, columns)
    return pad_share(merged, mine, mark=counts[0] % share.count != 0)


def _resolve_hand(
    share: FutureShare,
    hands: Sequence[Hand],
    fetch: Callable[[Sequence[Any]], list[Any]],
    columns: frozenset[str] | None,
) -> TensorDict:
    """The rows that a rank was dealt, with their places in the batch."""
    import torch

    mine = hands[share.index]
    rows = (*mine.rows, *mine.fillers)
    merged = _merged(share.parts, rows, fetch, columns)
    merged[ROW] = torch.tensor(rows)
    if any(hand.fillers for hand in hands):
        merged[PADDING] = torch.arange(len(rows)) >= len(mine.rows)
    return merged


def _merged(
    parts: Sequence[Part],
    rows: Sequence[int],
    fetch: Callable[[Sequence[Any]], list[Any]],
    columns: frozenset[str] | None,
) -> TensorDict:
    """Rows of all parts side by side."""
    merged: TensorDict | None = None
    for part in parts:
        hands = None if part.dealing is None else part.dealing.hands(fetch)
        if hands is None and isinstance(rows, range):
            pulled = _pull(part.sources, rows.start, rows.stop, fetch, columns)
        else:
            pulled = _picked(part.sources, _places(part, hands, fetch), rows, fetch, columns)
        if pulled is not None:
            merged = pulled if merged is None else merged.update(pulled)
    if merged is None:
        raise InputError(f"no input has any of the columns {', '.join(sorted(columns or ()))}")
    return merged


def _places(
    part: Part, hands: Sequence[Hand] | None, fetch: Callable[[Sequence[Any]], list[Any]]
) -> list[tuple[int, int]]:
    """For each row of the batch the source that holds it, and the row there."""
    rows = rows_of(part.sources, fetch)
    found = [(source, place) for source, num in enumerate(rows) for place in range(num)]
    if hands is None:
        return found
    order = [row for hand in hands for row in hand.rows]
    return [found[i] for i in sorted(range(len(order)), key=order.__getitem__)]


def _picked(
    sources: Sequence[Source],
    places: Sequence[tuple[int, int]],
    rows: Sequence[int],
    fetch: Callable[[Sequence[Any]], list[Any]],
    columns: frozenset[str] | None,
) -> TensorDict | None:
    """Rows from wherever they are, in the order asked; ``None`` without columns."""
    import torch

    asked: dict[int, list[int]] = {}  # by source: which of the rows asked for it holds
    for i, row in enumerate(rows):
        asked.setdefault(places[row][0], []).append(i)
    wires = _columns_of(fetch([sources[source].data for source in asked]), columns)
    if not all(wires):
        return None
    pieces = [
        from_wire(wire, [places[rows[i]][1] for i in held]) for wire, held in zip(wires, asked.values(), strict=True)
    ]
    order = torch.tensor([i for held in asked.values() for i in held]).argsort()
    joined: TensorDict = join(pieces)[order]
    return joined


def _columns_of(wires: Sequence[Any], columns: frozenset[str] | None) -> list[Any]:
    return [wire if columns is None else {name: wire[name] for name in wire.keys() & columns} for wire in wires]


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
    wires = _columns_of(fetch([sources[i].data for i, _, _ in needed]), columns)
    if not all(wires):
        return None
    return join([from_wire(wire, slice(first, last)) for wire, (_, first, last) in zip(wires, needed, strict=True)])
