"""Kill ranks of tiny runs at random moments, and see that nothing of what they learn is lost.

    python -m benchmarks.kills [--kills 100] [--quick] [--seed 0] [--out FILE.json]

PPO, ReMax, GRPO and Safe-RLHF, colocated and split, on real ranks with the torch-native engine. In each start of a run
a rank drawn at random is killed (SIGKILL) at a random moment of a random call of its first or second iteration, of
loading or of saving, until the run has been killed often enough; a checkpoint is saved after every iteration. Checked:
every kill was survived, every iteration is there once, the optimizers' own counts of steps rise by as many as there are
minibatches, and the curve (losses, rewards, gradient norms of every iteration) equals that of the same plan undisturbed
within ``TOLERANCE`` of each value. ``--quick``: four kills of runs with one rank a pool, each in the third iteration:
what is loaded then has learned. Controllers, nodes and Ray's own daemons: ``benchmarks.kill_table``.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.disturbed import NARROW, TOLERANCE, WIDE, about_this_run, plan_of, survived

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from benchmarks.disturbed import Sets, Survived


EARLY, LATER = range(2), range(2, 3)
"""Which calls of a kind are killed: of the first two iterations, and of the third, when a checkpoint is there."""


def disturbed(name: str, sets: Sets, kills: int, seed: int, folder: Path, calls: range = EARLY) -> dict[str, Any]:
    """Run one case undisturbed and killed ``kills`` times in one of the ``calls`` of a kind; what was found."""
    plan, draw = plan_of(name.split()[0], sets), random.Random(f"{name} {seed}")
    found = survived(
        plan,
        2 * kills + 3 + calls.start,
        kills,
        calls,
        draw,
        folder,
        max_restarts=kills,
        checkpoint={"every": 1},
        timeouts={"collective_s": 60},
    )
    return row_of(name, sets, found)


def row_of(case: str, sets: Sets, found: Survived) -> dict[str, Any]:
    """A row of the result file."""
    return {
        "case": case,
        "layouts": [list(layout) for _, layout in sets],
        "kills": len(found.faults),
        "recoveries": len(found.down_s),
        "iterations": found.iterations,
        "wrong_steps": found.wrong_steps,
        "largest_difference": found.largest_difference,
        "seconds": found.seconds,
        "down_s": list(found.down_s),
        "killed_in": [f"{fault.role}.{fault.api}" for fault in found.faults],
        "noticed_in": list(found.noticed_in),
        "lost_iterations": found.lost_iterations,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a line for each case and the distribution of recovery times; 0 if nothing was lost."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=100, help="in all, spread over the cases")
    parser.add_argument("--quick", action="store_true", help="one kill of each algorithm")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(arguments)
    rows = []
    for row in rank_rows(options):
        rows.append(row)
        print(line_of(row), flush=True)
        if options.out is not None:
            options.out.write_text(document_of(rows, options.seed))  # a run of half an hour may be cut short
    summary = summary_of(rows)
    print(text_of(summary))
    return 0 if summary["all_survived"] else 1


def rank_rows(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """A row for each plan whose ranks are killed."""
    cases, kills, calls = (NARROW, len(NARROW), LATER) if options.quick else (WIDE, options.kills, EARLY)
    from executor.launch.ray import RayLauncher

    cluster = RayLauncher(cpu_ranks=4)  # one for all runs: each would start its own
    try:
        for i, (name, sets) in enumerate(cases.items()):
            share = (i + 1) * kills // len(cases) - i * kills // len(cases)
            if share:
                with tempfile.TemporaryDirectory() as folder:
                    yield disturbed(name, sets, share, options.seed, Path(folder), calls)
    finally:
        cluster.stop()


def document_of(rows: Sequence[Mapping[str, Any]], seed: int) -> str:
    """The result file: the cases so far, and all of them together."""
    head = {**about_this_run(), "seed": seed, "tolerance": TOLERANCE}
    return json.dumps({**head, "summary": summary_of(rows), "cases": rows}, indent=1) + "\n"


def line_of(row: Mapping[str, Any]) -> str:
    """One case in a line."""
    return (
        f"{row['case']:20s} {row['kills']:3d} kills {row['recoveries']:3d} recoveries {row['iterations']:3d} iterations"
        f" {row['wrong_steps']} wrong steps, largest difference {row['largest_difference']:.1e}, {row['seconds']:.0f} s"
    )


def summary_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """All cases together; ``all_survived`` is the verdict."""
    down_s = sorted(seconds for row in rows for seconds in row["down_s"])
    totals = {key: sum(row[key] for row in rows) for key in ("kills", "recoveries", "wrong_steps", "lost_iterations")}
    difference = max(row["largest_difference"] for row in rows)
    survived = totals["kills"] == totals["recoveries"] and not totals["wrong_steps"] and difference <= TOLERANCE
    cuts = statistics.quantiles(down_s, n=20, method="inclusive") if len(down_s) > 1 else down_s * 19
    found = {"least": down_s[0], "p50": cuts[9], "p90": cuts[17], "p95": cuts[18], "most": down_s[-1]} if down_s else {}
    return {**totals, "largest_difference": difference, "down_s": found, "all_survived": survived}


def text_of(summary: Mapping[str, Any]) -> str:
    """The summary in words."""
    times = ", ".join(f"{name} {seconds:.1f}" for name, seconds in summary["down_s"].items())
    return (
        f"{summary['recoveries']} of {summary['kills']} kills survived, {summary['wrong_steps']} optimizer steps lost "
        f"or repeated, {summary['lost_iterations']} iterations made again, curves within "
        f"{summary['largest_difference']:.1e} of the undisturbed ones (allowed {TOLERANCE:.0e})\n"
        f"seconds from notice until models were loaded again: {times}"
    )


if __name__ == "__main__":
    raise SystemExit(main())
