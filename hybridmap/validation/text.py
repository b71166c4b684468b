"""A comparison as tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hybridmap.console import new_table, say, say_table, warn
from profiles.units import MIB

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hybridmap.validation.comparison import Comparison, Timing
    from hybridmap.validation.drafts import Kept
    from hybridmap.validation.implementation import Built

_COLUMNS = ("", "role", "pool", "predicted", "measured", "on device", "middle half", "spread", "error")
_RIGHT = ("predicted", "measured", "on device", "middle half", "spread", "error")
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
    if not found.is_same_work:
        _say_other_work(found)
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
    if found.drafts:
        say()
        _show_drafts(found.drafts)
    if found.builds:
        _show_builds(found.builds)


def _say_other_work(found: Comparison) -> None:
    """Say beside the answer that what ran is not what was priced, and how to have both alike."""
    ran, priced = found.measured_tokens, found.predicted_tokens
    warn(
        f"the run had {ran:,.0f} tokens an iteration, the prediction is of {priced:,.0f} "
        f"({100 * (ran / priced - 1.0):+.0f} %): the errors above are of lengths as much as of prices. Set "
        "workload.prompt_length and workload.response_length to the lengths of the run, or run prompts and responses "
        "as long as the job says"
    )


def _show_drafts(drafts: Sequence[Kept]) -> None:
    """Print the share of drafted tokens that was kept at each position, and the tokens that a step gives."""
    for what, shares in (("measured", [d.measured for d in drafts]), ("priced", [d.priced for d in drafts])):
        each = ", ".join(f"{share:.2f}" for share in shares)
        say(f"drafts kept by position, {what}: {each}, so {1.0 + sum(shares):.2f} tokens a step")


def _show_builds(builds: Sequence[Built]) -> None:
    """Print what ran otherwise than it was priced, with the kernel that shows it, and what ran as priced."""
    say()
    same = [built.what for built in builds if built.is_same and built.ran]
    if other := [built for built in builds if not built.is_same]:
        table = new_table(("not as priced", "priced", "ran", "seen by"))
        for built in other:
            table.add_row(built.what, built.priced, built.ran, built.seen)
        say_table(table)
    say(f"as priced: {', '.join(same)}")
    if unseen := [built.what for built in builds if not built.ran]:
        say(f"no kernel told: {', '.join(unseen)}")


def _cells(timing: Timing) -> tuple[str, ...]:
    error = "" if timing.error is None else f"{100 * timing.error:+.0f} %"
    return (
        timing.name,
        timing.role,
        timing.pool,
        f"{1e3 * timing.predicted_s:,.2f}",
        f"{1e3 * timing.measured_s:,.2f}",
        f"{1e3 * timing.device_s:,.2f}" if timing.device_s else "",
        f"{1e3 * timing.low_s:,.2f} to {1e3 * timing.high_s:,.2f}",
        f"{100 * timing.spread:.0f} %",
        error,
    )
