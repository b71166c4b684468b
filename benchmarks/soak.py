"""A long tiny run whose workers are killed at random, and what surviving costs while nothing happens.

    python -m benchmarks.soak [--iterations 300] [--kills 20] [--every 5] [--seed 0] [--out FILE.json]
    python -m benchmarks.soak --overhead [--model CONFIG] [--iterations 20] [--out FILE.json]

The first counts what kills cost: iterations made again, time from notice to loaded models, optimizer steps lost or
repeated (none may be), and that the curve is the undisturbed one. The second runs the same plan without checkpoints and
checks, with each and with both, in turns, and gives the medians of iteration times and of what each took by its own
clock, as shares of an iteration. Kills come after a random number of calls of a random rank, so that between two of
them some iterations are finished, and others are lost with what came after the newest checkpoint.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.disturbed import (
    TINY,
    TOLERANCE,
    WIDE,
    about_this_run,
    config_of,
    curve_of,
    job_of,
    plan_of,
    survived,
)
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


def soak(iterations: int, kills: int, every: int, seed: int, folder: Path) -> dict[str, Any]:
    """One run that is killed ``kills`` times."""
    calls = range(max(1, 2 * iterations // (kills + 1)))
    found = survived(
        plan_of("ppo", WIDE[CASE]),
        iterations,
        kills,
        calls,
        random.Random(seed),
        folder,
        max_restarts=10,
        checkpoint={"every": every},
    )
    return {
        "iterations": found.iterations,
        "recoveries": len(found.down_s),
        "every": every,
        "seconds": found.seconds,
        "down_s": sum(found.down_s),
        "median_down_s": statistics.median(found.down_s) if found.down_s else 0.0,
        "lost_iterations": found.lost_iterations,
        "wrong_steps": found.wrong_steps,
        "largest_difference": found.largest_difference,
    }


def overhead(model: Path, iterations: int, rounds: int) -> dict[str, dict[str, float]]:
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
    """Print what was found; 0 if nothing was lost that may not be."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--iterations", type=int, default=300)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--every", type=int, default=5, help="iterations between checkpoints")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--overhead", action="store_true")
    parser.add_argument("--model", type=Path, default=TINY)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(arguments)
    from executor.launch.ray import RayLauncher

    cluster, found = RayLauncher(cpu_ranks=4), {}
    try:
        if options.overhead:
            found["overhead"] = overhead(options.model, options.iterations, options.rounds)
        else:
            with tempfile.TemporaryDirectory() as folder:
                found["soak"] = soak(options.iterations, options.kills, options.every, options.seed, Path(folder))
    finally:
        cluster.stop()
    print(json.dumps(found, indent=1))
    if options.out is not None:
        options.out.write_text(json.dumps({**about_this_run(), "case": CASE, **found}, indent=1) + "\n")
    lost = found.get("soak", {"wrong_steps": 0, "largest_difference": 0.0})
    return 0 if not lost["wrong_steps"] and lost["largest_difference"] <= TOLERANCE else 1


if __name__ == "__main__":
    raise SystemExit(main())
