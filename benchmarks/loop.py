"""The whole loop on this machine: profile, validate the shipped runs, order placements; one file of results.

    python -m benchmarks.loop --out DIR [--iterations 20] [--full]

To be run on an otherwise idle machine; the load average stands beside the numbers.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples" / "run"
JOBS = ("remax-tiny", "ppo-tiny", "grpo-tiny", "safe-rlhf-tiny")
LIMITS = {"generation": 0.20, "preparation": 0.15, "training": 0.15}
"""Errors that stages are to stay within after profiling."""


def hybridmap(*arguments: object) -> dict[str, Any]:
    """Run a command with ``--json`` in a process of its own and read its answer; a failure ends the loop."""
    command = [sys.executable, "-m", "hybridmap", *map(str, arguments), "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr}")
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def validated(job: str, profile: Path, out: Path, iterations: int) -> dict[str, Any]:
    """Stages of one shipped run, with the limit each has."""
    answer = hybridmap(
        "validate", EXAMPLES / f"{job}.yaml", "--profile", profile, "--out", out / job, "--iterations", iterations
    )
    stages = [t for t in answer["timings"] if t["level"] in ("stage", "iteration")]
    over = [t["name"] for t in stages if t["error"] is not None and abs(t["error"]) > LIMITS.get(t["name"], 9.0)]
    return {"job": job, "stages": stages, "over_the_limit": over, "load_average": answer["load_average"]}


def main() -> None:
    """Print a line for each stage; write everything to ``loop.json``."""
    from benchmarks.placements import run_benchmark, show

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--iterations", type=int, default=20)
    parser.add_argument("--full", action="store_true", help="a full profile instead of a quick one")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    profile = options.out / "profile"
    quick = () if options.full else ("--quick",)
    made = hybridmap("profile", *quick, "--models", EXAMPLES / "tiny-config.json", "--out", profile)
    runs = [validated(job, profile, options.out, options.iterations) for job in JOBS]
    placements = run_benchmark(profile, options.iterations, 3)
    document = {
        "date": datetime.date.today().isoformat(),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "left_out_errors": made["left_out_errors"],
        "engine": made["engine"],
        "runs": runs,
        "placements": placements,
    }
    (options.out / "loop.json").write_text(json.dumps(document, indent=1) + "\n")
    for run in runs:
        for stage in run["stages"]:
            error = "" if stage["error"] is None else f"{stage['error']:+7.1%}"
            times = (
                f"{1e3 * stage['predicted_s']:8.2f} {1e3 * stage['measured_s']:8.2f} ms, spread {stage['spread']:4.0%}"
            )
            print(f"{run['job']:16s} {stage['name']:12s} {times} {error}")
    show(placements)


if __name__ == "__main__":
    main()
