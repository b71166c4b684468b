"""Which rows of a disturbed profile are measured again, and which of a row's rounds counts.

Other work on a machine comes and goes. What shows it (``quality``) is looked for when the profile is whole, and those
rows are measured again, later in time and for longer, a few rounds at most. Nothing is hidden: every round is in the
journal, the sidecars say what was measured again and why, and what stays disturbed is a doubt as before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hybridmap.profiling.quality import FIT_ERROR, disturbed_rows, lies_apart, was_starved
from profiles.tables.write import KEYS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from hybridmap.profiling.engine_files import EngineFits

    Row = Mapping[str, Any]
    Rows = Mapping[str, Sequence[Row]]

ROUNDS = 3
"""So often at most is anything measured again."""
SHARE = 0.5
"""Of a profile's time, what all rounds together may take beside it."""
ROUND = "round"


def settled(rows: Rows) -> dict[str, list[Row]]:
    """One row of each key: of several rounds the calmest."""
    found: dict[str, list[Row]] = {}
    for table, measured in rows.items():
        by_key: dict[tuple[Any, ...], list[Row]] = {}
        for row in measured:
            by_key.setdefault(tuple(row[name] for name in KEYS[table]), []).append(row)
        found[table] = [min(rounds, key=_unrest) for rounds in by_key.values()]
    return found


def _unrest(row: Row) -> tuple[bool, bool, bool, float]:
    """First a round that worked, had its core and whose repeats lie together; of such the fastest.

    What else a machine does only ever slows a measurement, so of two that show no disturbance the slower had one.
    """
    if row["error"]:
        return True, True, True, 0.0
    return False, was_starved(row), lies_apart(row), float(row["latency_s"])


def to_repeat(rows: Rows, fits: EngineFits | None) -> dict[str, list[Row]]:
    """Rows by table that make a table disturbed, and engine calls that make a fit predict too little.

    Parameters
    ----------
    rows
        One row of each key, failed ones among them.
    fits
        Host costs fitted on them.
    """
    good = {table: [row for row in found if not row["error"]] for table, found in rows.items()}
    wanted: dict[str, list[Row]] = {}
    for table, row in disturbed_rows(good):
        wanted.setdefault(table, []).append(row)
    calls = _unpredicted(fits)
    if calls:
        wanted.setdefault("engine_step", []).extend(calls)
    return {table: list({id(row): row for row in found}.values()) for table, found in wanted.items()}


def _unpredicted(fits: EngineFits | None) -> list[Row]:
    """Of each call that a fit predicts too badly where it is left out: the rows that are off by too much."""
    if fits is None:
        return []
    return [
        row
        for fit in (fits.training, fits.generation)
        for row, error in fit.row_errors
        if error > FIT_ERROR and fit.left_out[str(row["call"])] > FIT_ERROR
    ]


def measured_again(rows: Rows) -> dict[str, dict[str, int]]:
    """Rows of each round after the first, by round and table: what metadata and screen say."""
    found: dict[str, dict[str, int]] = {}
    for table, measured in rows.items():
        for row in measured:
            if row.get(ROUND):
                tables = found.setdefault(str(int(row[ROUND])), {})
                tables[table] = tables.get(table, 0) + 1
    return {number: found[number] for number in sorted(found, key=int)}


def repeat_disturbed(
    state: Callable[[], tuple[Rows, EngineFits | None]],
    measure: Callable[[Rows, int], None],
    late: Callable[[], bool],
    done: Iterable[str] = (),
) -> None:
    """Measure again what is disturbed, at most ``ROUNDS`` times.

    Parameters
    ----------
    state
        Settled rows and what is fitted on them, as they are now.
    measure
        Measures rows by table again; the second argument numbers the round.
    late
        Whether the time for it is over.
    done
        Rounds that the journal has already.
    """
    first = max((int(number) for number in done), default=0) + 1
    for number in range(first, first + ROUNDS):
        rows, fits = state()
        wanted = to_repeat(rows, fits)
        if not wanted or late():
            return
        measure(wanted, number)
