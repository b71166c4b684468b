"""What a run shows: a bar with stage times on a terminal, some lines elsewhere, and where its files are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hybridmap.console import say, warn
from hybridmap.text.bar import TerminalBar

if TYPE_CHECKING:
    from pathlib import Path

    from executor.records import Recovery
    from simulator.plan.timeline import Timeline

LINES = 20
"""How many lines a run prints where there is no terminal, however long it is."""
WRITTEN = ("metrics.jsonl", "timeline.json", "timeline-ranks.json")


class RunView(TerminalBar):
    """Follows a run; ``rows`` are the metrics of every iteration that is through, once also if it was made again."""

    def __init__(self, iterations: int, *, quiet: bool = False) -> None:
        super().__init__(iterations, counted=True, quiet=quiet)
        self._found: dict[int, dict[str, float]] = {}
        self._iterations, self._every = iterations, max(1, iterations // LINES)

    @property
    def rows(self) -> list[dict[str, float]]:
        """Metrics in the order of iterations."""
        return [self._found[iteration] for iteration in sorted(self._found)]

    def show(self, iteration: int, metrics: dict[str, float]) -> None:
        """Take in one iteration."""
        self._found[iteration] = metrics
        if self._drawn(len(self._found), line_of(metrics)) or self._quiet:
            return
        if iteration % self._every == 0 or iteration == self._iterations - 1:
            say(f"{iteration + 1:6d}/{self._iterations}  {line_of(metrics)}")

    def survived(self, recovery: Recovery) -> None:
        """Tell of a failure after which the run went on."""
        node = f" on node {recovery.node}" if recovery.node else ""
        again = f", {recovery.lost_iterations} iterations are made again" if recovery.lost_iterations else ""
        warn(
            f"{recovery.call} failed on rank {recovery.rank} of pool {recovery.pool}{node}: {recovery.summary}; after "
            f"{recovery.down_s:.1f} s the run resumes with iteration {recovery.iteration + 1} on "
            f"{recovery.num_devices} devices{again}"
        )


def line_of(metrics: dict[str, float]) -> str:
    """Reward and times of an iteration in one line."""
    stages = [f"{name.split('/')[1]} {s:.2f}" for name, s in metrics.items() if name.startswith("seconds/")]
    cost = f"  cost {metrics['costs']:.3f}" if "costs" in metrics else ""
    return f"reward {metrics['reward']:.3f}{cost}  {metrics['iteration_s']:.2f} s ({', '.join(stages)})"


def show_run(rows: list[dict[str, float]], timeline: Timeline, out: Path) -> None:
    """Print how a run went and what it wrote."""
    from hybridmap.console import new_table, say_table

    say(f"\nreward {rows[0]['reward']:.3f} in the first iteration, {rows[-1]['reward']:.3f} in the last of {len(rows)}")
    table = new_table(("stage", "seconds"), right=("seconds",))
    for stage, seconds in timeline.stages.items():
        table.add_row(stage, f"{seconds:.3f}")
    table.add_row("iteration", f"{timeline.iteration_s:.3f}")
    say_table(table)
    if bucket := conversion_bucket_bytes(timeline):
        say(f"the transition converted weights in buckets of at most {bucket / 1e6:,.3f} MB on a rank")
    say("\nwrote " + ", ".join(str(out / name) for name in WRITTEN))


def conversion_bucket_bytes(timeline: Timeline) -> int:
    """The largest conversion bucket of an iteration's transitions; 0 where engines share a layout."""
    return max((span.counts.bucket_bytes for span in timeline.spans if span.counts is not None), default=0)


def run_document(rows: list[dict[str, float]], timeline: Timeline, out: Path) -> dict[str, Any]:
    """The answer of ``--json``."""
    return {
        "iterations": len(rows),
        "first": rows[0],
        "last": rows[-1],
        "iteration_s": timeline.iteration_s,
        "stages": dict(timeline.stages),
        "num_devices": timeline.num_gpus,
        "conversion_bucket_bytes": conversion_bucket_bytes(timeline),
        "written": [str(out / name) for name in WRITTEN],
    }
