"""Clusters of several emulated nodes that lose one at a random moment, and see that nothing of what is learned is lost.

    python -m benchmarks.lost_nodes [--clusters 24] [--seed 0] [--out FILE.json]

Each cluster has a head node without devices, and two or three nodes of two; a run spans two of them. One of those that
run something is removed without a word, at a random moment: while models load, or within one of the first iterations.
With a spare node the run starts again in the same layout, and its curve must be the undisturbed one within
``TOLERANCE``; without one it goes on with a plan for what is left, whose sums are taken in another order
(``REORDERED``).
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import tempfile
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.disturbed import (
    ALL,
    MINIBATCHES,
    TOLERANCE,
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
from executor.recovery.scale_down import scale_down
from executor.run import run

if TYPE_CHECKING:
    from collections.abc import Sequence

    from simulator.plan.plan import Plan

ITERATIONS = 6
SLOTS = 2
REORDERED, LEAST = 2e-3, 1e-2
"""Of a value, or of the least one that is compared so, after another layout summed in another order, in fp32."""
LAYOUTS = ((1, 2, 2), (2, 1, 2), (1, 1, 4), (2, 2, 1))
"""(p, t, d) of all models on four ranks: two nodes."""
STORE_BYTES = 100 << 20


@dataclass(frozen=True)
class Case:
    """One cluster: what runs there, whether a node is spare, and when one is lost."""

    algorithm: str
    layout: tuple[int, int, int]
    spare: bool
    iteration: int
    delay_s: float

    @property
    def plan(self) -> Plan:
        """Every model on the same four ranks."""
        return plan_of(self.algorithm, ((ALL[self.algorithm], self.layout),))


def drawn(number: int, seed: int) -> Case:
    """A case by its number; every algorithm comes with a spare node and without one."""
    draw = random.Random(f"{number} {seed}")
    algorithm = sorted(ALL)[number % len(ALL)]
    spare = bool(number // len(ALL) % 2)
    return Case(algorithm, draw.choice(LAYOUTS), spare, draw.randrange(-1, ITERATIONS - 2), draw.uniform(0.0, 0.5))


# Long as one story: a cluster, a node that goes, what is left.
def lost(case: Case, folder: Path) -> dict[str, Any]:
    """Run on a cluster that loses a node; what was found beside the undisturbed run on it."""
    import ray
    from ray.cluster_utils import Cluster

    nodes, removed = Cluster(), threading.Event()
    try:
        nodes.add_node(num_cpus=0, object_store_memory=STORE_BYTES)
        workers = [nodes.add_node(num_cpus=SLOTS, object_store_memory=STORE_BYTES) for _ in range(2 + case.spare)]
        given = {"ray_address": nodes.address, "timeouts": {"collective_s": 60}}
        run(job_of(case.algorithm), case.plan, config_of(**given), folder / "undisturbed", ITERATIONS)

        def strike() -> None:
            busy = [node for node in workers if _is_busy(ray, node)]
            nodes.remove_node((busy or workers)[-1], allow_graceful=False)
            removed.set()

        def watch(iteration: int, _: object) -> None:
            if iteration == case.iteration and not removed.is_set():
                threading.Timer(case.delay_s, strike).start()

        if case.iteration < 0:  # while models load
            threading.Timer(2.0 + 8.0 * case.delay_s, strike).start()
        config = config_of(on_failure="restart" if case.spare else "replan", checkpoint={"every": 1}, **given)
        began_s = time.time()
        run(
            job_of(case.algorithm),
            case.plan,
            config,
            folder / "killed",
            ITERATIONS,
            watch=watch,
            replan=None if case.spare else lambda left: scale_down(case.plan, left),
        )
        seconds = time.time() - began_s
    finally:
        ray.shutdown()
        nodes.shutdown()
    return {**asdict(case), **_compared(case, folder), "removed": removed.is_set(), "seconds": seconds}


def _is_busy(ray: Any, node: Any) -> bool:
    """Whether an actor holds a device of the node."""
    from ray._private.state import available_resources_per_node

    free = available_resources_per_node().get(node.node_id, {}).get("CPU", 0.0)
    return bool(free < SLOTS)


def _compared(case: Case, folder: Path) -> dict[str, Any]:
    curve, expected = curve_of(folder / "killed"), curve_of(folder / "undisturbed")
    recoveries = recoveries_of(folder / "killed")
    difference = largest_difference(curve, expected) if case.spare else largest_difference(curve, expected, LEAST)
    return {
        "recoveries": len(recoveries),
        "noticed_as": [r["summary"] for r in recoveries],
        "down_s": [r["down_s"] for r in recoveries],
        "lost_iterations": sum(r["lost_iterations"] for r in recoveries),
        "wrong_steps": num_steps_wrong(curve, trained_roles(case.plan), MINIBATCHES),
        "largest_difference": difference,
        "survived": len(curve) == ITERATIONS and difference <= (TOLERANCE if case.spare else REORDERED),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a line for each cluster; 0 if all went on and nothing was lost."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clusters", type=int, default=24)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(arguments)
    rows: list[dict[str, Any]] = []
    for number in range(options.clusters):
        case = drawn(number, options.seed)
        with tempfile.TemporaryDirectory() as folder:
            rows.append(lost(case, Path(folder)))
        print(_line_of(rows[-1]), flush=True)
        if options.out is not None:
            document = {**about_this_run(), "seed": options.seed, "clusters": rows}
            options.out.write_text(json.dumps(document, indent=1) + "\n")
    sound = [row for row in rows if row["survived"] and not row["wrong_steps"]]
    times = [seconds for row in rows for seconds in row["down_s"]]
    print(f"{len(sound)} of {len(rows)} survived; {statistics.median(times):.0f} s to go on, most {max(times):.0f} s")
    return 0 if len(sound) == len(rows) else 1


def _line_of(row: dict[str, Any]) -> str:
    when = "while loading" if row["iteration"] < 0 else f"{row['delay_s']:.2f} s after iteration {row['iteration']}"
    how = "on the spare node" if row["spare"] else "on what was left"
    verdict = "survived" if row["survived"] and not row["wrong_steps"] else "LOST"
    return (
        f"{row['algorithm']} {row['layout']} {when}: {verdict} {how}, {row['recoveries']} recoveries, "
        f"{row['lost_iterations']} iterations again, difference {row['largest_difference']:.1e}, {row['seconds']:.0f} s"
    )


if __name__ == "__main__":
    raise SystemExit(main())
