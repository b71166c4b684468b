"""What one call of the controller costs: a call that does nothing, to 1 .. 64 workers of one model.

    python -m benchmarks.dispatch [--most 64] [--calls 100] [--out FILE.json]

Two times per call, medians over the calls: ``submit_s`` until the futures are there, which is what the controller
itself spends, and ``round_trip_s`` until every worker has answered. A straight line through the medians (least squares,
relative errors) gives the cost of one more worker and the extrapolation to 1,000 workers. All workers are processes of
this machine and share its cores, so the round trip of many workers is an upper bound for a cluster.

On 2026-11-21, 2 shared CPU cores, Ray 2.60.0, 100 calls: submit 0.4 ms (1 worker) to 55 ms (64), 0.61 ms a worker
(worst miss 29 %); round trip 2.0 ms to 127 ms, 1.95 ms a worker (worst miss 12 %). Extrapolated to 1,000 workers:
0.6 s for the controller, 2.0 s until the last of them has answered.
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

from executor.controller import Controller
from executor.launch_ray import RayLauncher
from executor.pools import ResourcePool
from executor.protocols import register
from simulator.groups import Degrees

if TYPE_CHECKING:
    from executor.worker_group import WorkerGroup

EXTRAPOLATED_TO = 1_000
WARM_UP = 5


class Idle:
    """A worker whose only call does nothing."""

    def __init__(self, identity: Any, **_: Any) -> None:
        self.identity = identity

    @register(protocol="ONE_TO_ALL")
    def no_op(self) -> None:
        """Return at once."""


def measure(controller: Controller, group: WorkerGroup, calls: int) -> dict[str, float]:
    """Median seconds of ``calls`` calls, one at a time."""
    submits, trips = [], []
    for _ in range(calls + WARM_UP):
        start_s = time.perf_counter()
        group.no_op()
        submits.append(time.perf_counter() - start_s)
        controller.wait_all()
        trips.append(time.perf_counter() - start_s)
    return {
        "submit_s": statistics.median(submits[WARM_UP:]),
        "round_trip_s": statistics.median(trips[WARM_UP:]),
        "round_trip_p90_s": float(np.quantile(trips[WARM_UP:], 0.9)),
    }


def line(workers: list[int], seconds: list[float]) -> dict[str, float]:
    """``fixed_s + per_worker_s * workers`` with the least squared relative error, its worst miss, and 1,000 workers."""
    x, y = np.asarray(workers, dtype=float), np.asarray(seconds)
    design = np.stack([1 / y, x / y], axis=1)
    (fixed, slope), *_ = np.linalg.lstsq(design, np.ones(len(x)), rcond=None)
    worst = float(np.abs((fixed + slope * x) / y - 1).max())
    return {
        "fixed_s": float(fixed), "per_worker_s": float(slope), "worst_relative_error": worst,
        f"at_{EXTRAPOLATED_TO}_s": float(fixed + slope * EXTRAPOLATED_TO),
    }  # fmt: skip


def run(most: int, calls: int) -> dict[str, Any]:
    """Measure powers of two up to ``most`` on one pool of ``most`` workers."""
    sizes = [2**k for k in range(most.bit_length()) if 2**k <= most]
    rows = []
    with Controller(RayLauncher(cpu_ranks=most)) as controller:
        controller.start([ResourcePool("A", most)])
        for size in sizes:
            group = controller.add_group(f"model-{size}", "A", Idle, Degrees(1, 1, size, 1, 1), {})
            rows.append({"workers": size, **measure(controller, group, calls)})
    fits = {name: line(sizes, [row[name] for row in rows]) for name in ("submit_s", "round_trip_s")}
    machine = {"cores": os.cpu_count(), "machine": platform.machine(), "python": platform.python_version()}
    return {"date": time.strftime("%Y-%m-%d"), "calls": calls, **machine, "rows": rows, "fits": fits}


def main() -> None:
    """Print the table and the fits; write them where asked."""
    parser = argparse.ArgumentParser(description="Cost of one controller call.")
    parser.add_argument("--most", type=int, default=64)
    parser.add_argument("--calls", type=int, default=100)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    found = run(options.most, options.calls)
    print("workers   submit ms   round trip ms   p90 ms")
    for row in found["rows"]:
        times = (1e3 * row[name] for name in ("submit_s", "round_trip_s", "round_trip_p90_s"))
        print(f"{row['workers']:7d} {next(times):11.2f} {next(times):15.2f} {next(times):8.2f}")
    for name, fit in found["fits"].items():
        print(
            f"{name}: {1e3 * fit['fixed_s']:.2f} ms + {1e3 * fit['per_worker_s']:.3f} ms a worker (worst miss "
            f"{fit['worst_relative_error']:.0%}); {EXTRAPOLATED_TO:,} workers: {fit[f'at_{EXTRAPOLATED_TO}_s']:.2f} s"
        )
    if options.out:
        options.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
