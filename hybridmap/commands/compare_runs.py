"""``hybridmap compare-runs``: which of two measured runs is faster, by stage, and whether that is more than chance."""

from pathlib import Path
from typing import Annotated

import typer

from hybridmap.commands.options import Json
from hybridmap.console import new_table, say, say_json, say_table

Run = typer.Argument(metavar="LOG", help="A log, as for hybridmap calibrate.")


def compare_runs(first: Annotated[Path, Run], second: Annotated[Path, Run], as_json: Json = False) -> None:
    """Compare two measured runs by stage.

    Per token where both logs say lengths, so that a run of longer responses is not slower for that alone.
    """
    from hybridmap.calibration.two_runs import differences
    from hybridmap.runlogs.read import read_log

    found, per_token = differences(read_log(first), read_log(second))
    if as_json:
        stages = [
            {
                "stage": one.stage,
                "first_s": one.first_s,
                "second_s": one.second_s,
                "ratio": one.ratio,
                "error": one.error,
                "more_than_chance": one.is_sure,
            }
            for one in found
        ]
        say_json({"per_token": per_token, "stages": stages})
        return
    table = new_table(("stage", "first", "second", "change", ""), right=("first", "second", "change"))
    for one in found:
        change = f"{100 * (one.ratio - 1.0):+.0f} %"
        sure = "" if one.is_sure else "within what two runs of one kind differ by"
        table.add_row(one.stage.replace("+", " + "), f"{one.first_s:,.1f} s", f"{one.second_s:,.1f} s", change, sure)
    say_table(table)
    what = "seconds per token of a sample" if per_token else "seconds; a log has no lengths, so not per token"
    say(f"\nchange is of {what}")
