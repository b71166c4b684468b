"""Run the shipped learning examples in one process and store their curves: ``examples/run/curves/NAME-tiny.json``.

    python -m benchmarks.learning_curves [NAME ...]

Safe-RLHF is run a second time with a multiplier that hardly weighs and never moves: what its cost would be without the
constraint.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from executor.controller.pools import Devices
from executor.recovery.scale_down import scale_down
from executor.run import run
from hybridmap.files.plan import read_plan
from hybridmap.job.load import load_job

if TYPE_CHECKING:
    from executor.run_config import RunConfig
    from hybridmap.job.job import Job

EXAMPLES = Path(__file__).parents[1] / "examples" / "run"
NAMES = ("ppo", "grpo", "remax", "safe-rlhf")
CURVES = ("reward", "costs", "cost_multiplier")
UNCONSTRAINED = {"cost_multiplier": 1e-4, "cost_multiplier_floor": 1e-4, "cost_learning_rate": 1e-6}


def measure(job: Job, config: RunConfig) -> dict[str, Any]:
    """A whole run on one device a pool, without Ray: its curves and its seconds."""
    plan, _ = read_plan(Path(config.plan or ""))
    rows: list[dict[str, float]] = []
    start_s = time.perf_counter()
    with tempfile.TemporaryDirectory() as out:
        local = config.model_copy(update={"launcher": "local"})
        run(
            job.facts(),
            scale_down(plan, Devices(len(plan.pools))),
            local,
            out,
            watch=lambda _, metrics: rows.append(metrics),
        )
    curves = {name: [round(row[name], 4) for row in rows] for name in CURVES if name in rows[0]}
    return {"wall_s": round(time.perf_counter() - start_s, 1), **curves}


def main() -> None:
    """Write the curves of the named examples, of all without a name."""
    parser = argparse.ArgumentParser(description="Curves of the shipped learning examples.")
    parser.add_argument("names", nargs="*", default=NAMES, choices=NAMES)
    for name in parser.parse_args().names:
        file = EXAMPLES / f"{name}-tiny.yaml"
        job = load_job(file)
        assert job.run is not None, f"{file} ships with a run section"
        found = {"job": file.name, "seed": job.run.seed, "host": f"{os.cpu_count()} CPU cores, one process"}
        found |= measure(job, job.run)
        if name == "safe-rlhf":
            learning = job.run.learning.model_copy(update=UNCONSTRAINED)
            free = measure(job, job.run.model_copy(update={"learning": learning}))
            found["costs_without_the_constraint"] = free["costs"]
        (EXAMPLES / "curves" / f"{name}-tiny.json").write_text(json.dumps(found) + "\n")
        print(f"{name}: reward {found['reward'][0]:.3f} to {found['reward'][-1]:.3f} in {found['wall_s']} s")


if __name__ == "__main__":
    main()
