"""A long tiny run whose ranks, controllers and daemons are killed from outside: what is lost, what grows.

    python -m benchmarks.soak [--iterations 2000] [--kills 10] [--every 10] [--seed 0] [--out FILE.json]

PPO on three ranks in a process of its own. At random moments, spread over the run, a process of it is ended (SIGKILL):
a rank, one of Ray's daemons, or the controller, which is then started again with ``resume``. Checked: the curve is that
of the same run undisturbed, no optimizer step is lost or repeated, the memory of controller and ranks is flat (the
median of each tenth of the run within 5 % of that of all), and the folder of the run holds as many files late as it did
early.
"""

from __future__ import annotations

import argparse
import atexit
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.disturbed import (
    MINIBATCHES,
    TOLERANCE,
    WIDE,
    about_this_run,
    config_of,
    curve_of,
    job_of,
    largest_difference,
    num_steps_wrong,
    plan_of,
    recoveries_of,
    trained_roles,
)
from benchmarks.family import Family, Victim

if TYPE_CHECKING:
    from collections.abc import Sequence

CASE = "ppo split"
FLAT = 0.05
"""How far the median memory of a tenth of the run may be from that of all of it."""
VICTIMS: tuple[Victim, ...] = ("rank", "controller", "raylet", "rank", "gcs", "controller", "rank", "agent")
"""Ended in this order, again and again."""
LOOK_S = 0.02
SAMPLE_S = 1.0


@dataclass
class Watched:
    """What was seen of a run from outside: who was ended where, memory by iteration, files by iteration."""

    killed: list[dict[str, Any]] = field(default_factory=list)
    memory: list[tuple[int, str, int]] = field(default_factory=list)
    files: list[tuple[int, int]] = field(default_factory=list)


def controller(folder: Path, iterations: int, every: int) -> None:
    """The run itself, in a process that can be ended; again on what an earlier one saved."""
    from executor.recovery.load import latest
    from executor.run import run

    config = config_of(on_failure="restart", max_restarts=5, checkpoint={"every": every})
    resume = latest(folder / "checkpoints") is not None
    run(job_of("ppo"), plan_of("ppo", WIDE[CASE]), config, folder, iterations, resume=resume)


def started(folder: Path, options: argparse.Namespace) -> subprocess.Popen[bytes]:
    """The controller in a process of its own."""
    words = ["--controller", str(folder), "--iterations", str(options.iterations), "--every", str(options.every)]
    return subprocess.Popen([sys.executable, "-W", "ignore", "-m", "benchmarks.soak", *words], start_new_session=True)


def num_iterations(folder: Path) -> int:
    """Iterations that are written down; those that a restart makes again are counted once."""
    path = folder / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def followed(folder: Path, options: argparse.Namespace) -> Watched:
    """Start the run, end processes of it at random moments, start it again where it was the controller; to its end."""
    draw, seen = random.Random(options.seed), Watched()
    step = options.iterations / (options.kills + 1)
    moments = [round((i + draw.uniform(0.5, 1.4)) * step) for i in range(options.kills)]
    child, sampled_s, sampled = started(folder, options), 0.0, 0
    atexit.register(lambda: child.kill())
    while True:
        time.sleep(LOOK_S)
        done = num_iterations(folder)
        if child.poll() is not None:
            if child.returncode == 0:
                return seen
            raise RuntimeError(f"the run ended by itself with {child.returncode} after {done} iterations")
        if time.monotonic() > sampled_s + SAMPLE_S and done > sampled:  # while it starts it holds less
            sampled_s, sampled = time.monotonic(), done
            seen.memory += [(done, kind, size) for kind, size in Family(child.pid).memory_bytes().items()]
            seen.files.append((done, sum(len(files) for _, _, files in os.walk(folder))))  # some vanish meanwhile
        if len(seen.killed) < len(moments) and done >= moments[len(seen.killed)]:
            time.sleep(draw.uniform(0.0, 0.3))
            victim = VICTIMS[len(seen.killed) % len(VICTIMS)]
            if not Family(child.pid).end(victim, draw):
                continue  # it starts anew just now: at the next look
            seen.killed.append({"victim": victim, "after_iterations": done})
            print(f"ended {victim} after {done} iterations", flush=True)
            if victim == "controller":
                child.wait()
                child = started(folder, options)


def flatness(memory: Sequence[tuple[int, str, int]], kind: str, iterations: int) -> dict[str, Any]:
    """Median bytes of each tenth of the run, and how far the furthest is from that of all."""
    mine = [(done, size) for done, name, size in memory if name == kind]
    tenths = [[size for done, size in mine if 10 * done // iterations == i] for i in range(10)]
    medians = [statistics.median(sizes) for sizes in tenths if sizes]
    middle = statistics.median(size for _, size in mine)
    return {"median_bytes_by_tenth": medians, "furthest": max(abs(one / middle - 1.0) for one in medians)}


def soak(options: argparse.Namespace, root: Path) -> dict[str, Any]:
    """The run undisturbed and ended again and again; what was found."""
    controller(root / "undisturbed", options.iterations, options.every)
    began_s = time.monotonic()
    seen = followed(root / "killed", options)
    curve, expected = curve_of(root / "killed"), curve_of(root / "undisturbed")
    recoveries = recoveries_of(root / "killed")
    tenth = options.iterations // 10
    early = [count for done, count in seen.files if tenth < done <= 2 * tenth]
    late = [count for done, count in seen.files if done > 9 * tenth]
    return {
        "iterations": len(curve),
        "every": options.every,
        "seconds": time.monotonic() - began_s,
        "killed": seen.killed,
        "recoveries": len(recoveries),
        "controllers": 1 + sum(kill["victim"] == "controller" for kill in seen.killed),
        "down_s": [r["down_s"] for r in recoveries],
        "lost_iterations": sum(r["lost_iterations"] for r in recoveries),
        "wrong_steps": num_steps_wrong(curve, trained_roles(plan_of("ppo", WIDE[CASE])), MINIBATCHES),
        "largest_difference": largest_difference(curve, expected),
        "memory": {kind: flatness(seen.memory, kind, options.iterations) for kind in ("controller", "ranks")},
        "files": {"early": statistics.median(early), "late": statistics.median(late)},
    }


def is_sound(found: dict[str, Any]) -> bool:
    """Whether nothing was lost and nothing grew: a new controller and a restart each open one file of events."""
    allowed = found["files"]["early"] + found["recoveries"] + found["controllers"]
    return (
        not found["wrong_steps"]
        and found["largest_difference"] <= TOLERANCE
        and found["files"]["late"] <= allowed
        and all(one["furthest"] <= FLAT for one in found["memory"].values())
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Print what was found; 0 if nothing was lost and nothing grew."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--iterations", type=int, default=2000)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--every", type=int, default=10, help="iterations between checkpoints")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--controller", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.controller is not None:
        controller(options.controller, options.iterations, options.every)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        found = soak(options, Path(folder))
    print(json.dumps(found, indent=1))
    if options.out is not None:
        options.out.write_text(json.dumps({**about_this_run(), "case": CASE, **found}, indent=1) + "\n")
    return 0 if is_sound(found) else 1


if __name__ == "__main__":
    raise SystemExit(main())
