"""What one call of the controller costs: a call that does nothing, to 1 .. 64 workers of one model.

    python -m benchmarks.dispatch [--most 64] [--calls 100] [--out FILE.json]

Medians over the calls of three times: ``submit_s`` until the futures are there, ``round_trip_s`` until every worker has
answered, and ``controller_s``, the CPU time of the controller's process from the one to the other end, all its threads
together. All workers are processes of this machine and share its cores with the controller, so wall times of many
workers are upper bounds for a cluster; CPU time is what the controller itself needs. Measured twice: with the
controller speaking to each rank itself, and through relays of ``FAN_OUT`` ranks, as pools of more ranks have them.

A straight line through the medians from 16 workers on (least squares, relative errors) gives the cost of one more
worker and the extrapolation to 1,000 workers, and to the calls of a PPO iteration on all of them.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from executor.controller.controller import Controller
from executor.controller.pools import ResourcePool
from executor.launch import ray
from executor.launch.ray import FAN_OUT, RayLauncher
from executor.worker.protocols import register
from executor.worker.worker import Worker
from simulator.plan.groups import Degrees

if TYPE_CHECKING:
    from executor.controller.worker_group import WorkerGroup

EXTRAPOLATED_TO = 1_000
CALLS_PER_ITERATION = 9
"""Of PPO, the transition, the advantages and the summary among them: as if all of them went to every worker."""
FITTED_FROM = 16
"""Below, what a call costs whatever its workers would decide the line."""
WARM_UP = 5
TIMES = ("submit_s", "round_trip_s", "controller_s")


class Idle(Worker):
    """A worker whose only call does nothing."""

    def __init__(self, identity: Any, **_: Any) -> None:
        self.identity = identity

    @register(protocol="ONE_TO_ALL", returns=())
    def no_op(self) -> None:
        """Return at once."""


def measure(controller: Controller, group: WorkerGroup, calls: int) -> dict[str, float]:
    """Median seconds of ``calls`` calls, one at a time."""
    taken: dict[str, list[float]] = {name: [] for name in TIMES}
    for _ in range(calls + WARM_UP):
        start_s, start_cpu_s = time.perf_counter(), time.process_time()
        group.no_op()
        taken["submit_s"].append(time.perf_counter() - start_s)
        controller.wait_all()
        taken["round_trip_s"].append(time.perf_counter() - start_s)
        taken["controller_s"].append(time.process_time() - start_cpu_s)
    return {name: statistics.median(seconds[WARM_UP:]) for name, seconds in taken.items()}


def line(workers: list[int], seconds: list[float]) -> dict[str, float]:
    """``fixed_s + per_worker_s * workers`` with the least squared relative error, its worst miss, and 1,000 workers."""
    x, y = np.asarray(workers, dtype=float), np.asarray(seconds)
    design = np.stack([1 / y, x / y], axis=1)
    (fixed, slope), *_ = np.linalg.lstsq(design, np.ones(len(x)), rcond=None)
    worst = float(np.abs((fixed + slope * x) / y - 1).max())
    return {
        "fixed_s": float(fixed),
        "per_worker_s": float(slope),
        "worst_relative_error": worst,
        f"at_{EXTRAPOLATED_TO}_s": float(fixed + slope * EXTRAPOLATED_TO),
    }


def run(most: int, calls: int, fan_out: int) -> dict[str, Any]:
    """Measure powers of two and multiples of 16 up to ``most``, on one pool of ``most`` workers."""
    sizes = sorted({2**k for k in range(most.bit_length())} | set(range(FITTED_FROM, most + 1, 16)))
    sizes, ray.FAN_OUT = [size for size in sizes if size <= most], fan_out
    rows = []
    with Controller(RayLauncher(cpu_ranks=most)) as controller:
        controller.start([ResourcePool("A", most)])
        for size in sizes:
            group = controller.add_group(f"model-{size}", "A", Idle, Degrees(1, 1, size, 1, 1), {})
            rows.append({"workers": size, **measure(controller, group, calls)})
    ray.FAN_OUT = FAN_OUT
    fitted = [row for row in rows if row["workers"] >= FITTED_FROM] or rows
    fits = {name: line([row["workers"] for row in fitted], [row[name] for row in fitted]) for name in TIMES}
    return {"fan_out": fan_out, "rows": rows, "fits": fits}


def show(found: dict[str, Any]) -> None:
    """Print a table and its fits."""
    print(f"fan-out {found['fan_out']}\nworkers   submit ms   round trip ms   controller CPU ms")
    for row in found["rows"]:
        submit, trip, cpu = (1e3 * row[name] for name in TIMES)
        print(f"{row['workers']:7d} {submit:11.2f} {trip:15.2f} {cpu:19.2f}")
    for name, fit in found["fits"].items():
        print(
            f"{name}: {1e3 * fit['fixed_s']:.2f} ms + {1e3 * fit['per_worker_s']:.3f} ms a worker (worst miss "
            f"{fit['worst_relative_error']:.0%}); {EXTRAPOLATED_TO:,} workers: {fit[f'at_{EXTRAPOLATED_TO}_s']:.3f} s, "
            f"{CALLS_PER_ITERATION} calls {CALLS_PER_ITERATION * fit[f'at_{EXTRAPOLATED_TO}_s'] / 60:.1%} of a minute"
        )


def main() -> None:
    """Print the tables and the fits; write them where asked."""
    parser = argparse.ArgumentParser(description="Cost of one controller call.")
    parser.add_argument("--most", type=int, default=64)
    parser.add_argument("--calls", type=int, default=100)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    machine = {"cores": os.cpu_count(), "machine": platform.machine(), "python": platform.python_version()}
    measured = []
    for fan_out in (options.most, FAN_OUT):
        measured.append(run(options.most, options.calls, fan_out))
        show(measured[-1])
    if options.out:
        document = {"date": time.strftime("%Y-%m-%d"), "calls": options.calls, **machine, "measured": measured}
        options.out.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
