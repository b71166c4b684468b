"""What surviving costs while nothing happens: checks and checkpoints of a run that no one disturbs.

    python -m benchmarks.idle_cost [--model CONFIG] [--iterations 20] [--rounds 2] [--out FILE.json]

The same plan without checkpoints and checks, with each and with both, in turns: medians of iteration times, and of what
each took by its own clock.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.disturbed import TINY, WIDE, about_this_run, config_of, curve_of, job_of, plan_of
from executor.run import run

if TYPE_CHECKING:
    from collections.abc import Sequence

CASE = "ppo split"
VARIANTS: dict[str, dict[str, Any]] = {
    "neither": {"checks": {"replicas_every": 0, "transitions": False}},
    "checks": {"checks": {"replicas_every": 10}},
    "checkpoints": {"checks": {"replicas_every": 0, "transitions": False}, "checkpoint": {"every": 10}},
    "both": {"checks": {"replicas_every": 10}, "checkpoint": {"every": 10}},
}
"""As a run would have them: checks as they are by default, a checkpoint every ten iterations."""
WARMUP = 2


def idle_cost(model: Path, iterations: int, rounds: int) -> dict[str, dict[str, float]]:
    """Median seconds by variant; the variants take turns, so that a disturbance does not hit one alone."""
    plan = plan_of("ppo", WIDE[CASE])
    lines: dict[str, list[dict[str, float]]] = {name: [] for name in VARIANTS}
    walls: dict[str, list[float]] = {name: [] for name in VARIANTS}
    for _ in range(rounds):
        for name, changes in VARIANTS.items():
            with tempfile.TemporaryDirectory() as folder:
                times: list[float] = []
                config = config_of(model, **changes)
                run(job_of("ppo"), plan, config, folder, iterations, watch=lambda i, m, t=times: t.append(time.time()))
                lines[name] += curve_of(Path(folder))[WARMUP:]
                walls[name] += [b - a for a, b in zip(times[WARMUP - 1 :], times[WARMUP:], strict=False)]
    return {
        name: {
            "wall_s": statistics.fmean(walls[name]),
            "median_wall_s": statistics.median(walls[name]),
            "iteration_s": statistics.median(line["iteration_s"] for line in found),
            "transition_s": statistics.median(line.get("seconds/transition", 0.0) for line in found),
            "check_s": sum(line.get("checks/replicas_s", 0.0) for line in found) / len(found),
            "blocking_s": sum(line.get("checkpoint/blocking_s", 0.0) for line in found) / len(found),
        }
        for name, found in lines.items()
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the medians."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--iterations", type=int, default=20)
    parser.add_argument("--model", type=Path, default=TINY)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(arguments)
    from executor.launch.ray import RayLauncher

    cluster = RayLauncher(cpu_ranks=4)  # one for all runs: each would start its own
    try:
        found = idle_cost(options.model, options.iterations, options.rounds)
    finally:
        cluster.stop()
    print(json.dumps(found, indent=1))
    if options.out is not None:
        options.out.write_text(json.dumps({**about_this_run(), "case": CASE, "overhead": found}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
