"""A comparison as tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hybridmap.console import new_table, say, say_table
from profiles.units import MIB

if TYPE_CHECKING:
    from hybridmap.validation.comparison import Comparison, Timing

_COLUMNS = ("", "role", "pool", "predicted", "measured", "middle half", "spread", "error")
_RIGHT = ("predicted", "measured", "middle half", "spread", "error")
AMOUNTS = {"memory": "peak memory of a rank", "transfer": "bytes taken in", "weights": "weights received"}


def show_comparison(found: Comparison) -> None:
    """Print stages, calls, memory and bytes moved."""
    say(f"median of {found.iterations} iterations after warm-up; times in milliseconds\n")
    table = new_table(_COLUMNS, right=_RIGHT)
    for timing in (*found.stages, found.iteration):
        table.add_row(*_cells(timing))
    say_table(table)
    say()
    table = new_table(_COLUMNS, right=_RIGHT)
    for timing in found.calls:
        table.add_row(*_cells(timing))
    say_table(table)
    if found.amounts:
        say()
        table = new_table(("", "what", "predicted MiB", "measured MiB"), right=("predicted MiB", "measured MiB"))
        for amount in found.amounts:
            table.add_row(
                amount.name,
                AMOUNTS[amount.kind],
                f"{amount.predicted_bytes / MIB:,.3f}",
                f"{amount.measured_bytes / MIB:,.3f}",
            )
        say_table(table)


def _cells(timing: Timing) -> tuple[str, ...]:
    error = "" if timing.error is None else f"{timing.error:+.0%}"
    return (
        timing.name,
        timing.role,
        timing.pool,
        f"{1e3 * timing.predicted_s:,.2f}",
        f"{1e3 * timing.measured_s:,.2f}",
        f"{1e3 * timing.low_s:,.2f} to {1e3 * timing.high_s:,.2f}",
        f"{timing.spread:.0%}",
        error,
    )
