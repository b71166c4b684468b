"""Every process that a run is made of, ended once in each of its stages: what is survived, and how soon it goes on.

    python -m benchmarks.kill_table [--victim NAME ...] [--out FILE.json]

PPO on two ranks, with a checkpoint after every iteration. In the third iteration one process is ended (SIGKILL): a
rank, the controller (then started again with ``resume``), the raylet, the control store (GCS) or the agent of the
run's own Ray cluster, or a node of a cluster of several. Checked as in ``benchmarks.kills``: every iteration is there
once, optimizers count on, and the curve is the undisturbed one.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from benchmarks.disturbed import (
    MINIBATCHES,
    SAVING,
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
    undisturbed,
)
from executor.faults import Fault
from executor.recovery.load import latest
from executor.run import run
from simulator.plan.dataflow import CONTROLLER

if TYPE_CHECKING:
    from collections.abc import Sequence

    from simulator.plan.plan import Plan

Victim = Literal["rank", "controller", "raylet", "gcs", "agent", "node"]
MOMENTS = {
    "idle": (CONTROLLER, "compute_advantage"),
    "generating": ("actor", "generate_sequences"),
    "scoring": ("reference", "compute_ref_log_prob"),
    "training": ("actor", "update_actor"),
    "saving": ("actor", SAVING),
    "transferring": ("actor", "transition"),
}
"""The call in which a process is ended, by what the run does then; idle: all models wait for the controller."""
THIRD, ITERATIONS = 2, 5
SETS = ((("actor", "reference"), (1, 1, 1)), (("critic", "reward"), (1, 1, 1)))
STORE_BYTES = 100 << 20
LOOK_S = 0.02


def plan() -> Plan:
    """Two pools of one rank."""
    return plan_of("ppo", SETS)


def fault_of(victim: Victim, moment: str) -> Fault:
    """What ends the victim; a node ends with its raylet."""
    role, api = MOMENTS[moment]
    return Fault(role, api, call=THIRD, kind="kill", victim="raylet" if victim == "node" else victim)


def moments_of(victim: Victim) -> list[str]:
    """The stages in which a victim is ended: the node that idles is the controller's own, which nothing outlives."""
    return [moment for moment in MOMENTS if victim != "node" or moment != "idle"]


def within(folder: Path, faults: tuple[Fault, ...], **section: Any) -> None:
    """The run that its own controller lives through."""
    config = config_of(on_failure="restart", max_restarts=2, checkpoint={"every": 1}, **section)
    resume = latest(folder / "checkpoints") is not None
    run(job_of("ppo"), plan(), config.model_copy(update={"faults": faults}), folder, ITERATIONS, resume=resume)


def on_nodes(folder: Path, fault: Fault) -> None:
    """The run on a cluster of a head, a node for each rank and one to spare, of which one ends."""
    import ray
    from ray.cluster_utils import Cluster

    nodes = Cluster()
    try:
        nodes.add_node(num_cpus=0, object_store_memory=STORE_BYTES)
        for _ in range(len(SETS) + 1):
            nodes.add_node(num_cpus=1, object_store_memory=STORE_BYTES)
        within(folder, (fault,), ray_address=nodes.address)
    finally:
        ray.shutdown()
        nodes.shutdown()


def without_controller(folder: Path, moment: str) -> tuple[float, int]:
    """The run in a process that is ended, then in another: seconds until that has done more, and iterations again."""
    words = [sys.executable, "-W", "ignore", "-m", "benchmarks.kill_table", "--controller", str(folder)]
    subprocess.run([*words, "--moment", moment], check=False)
    ended_s, before = time.monotonic(), _lines(folder)
    assert before < ITERATIONS, "its controller was not ended"
    saved = latest(folder / "checkpoints")
    lost = before - (0 if saved is None else saved.manifest.iteration)
    with subprocess.Popen(words) as child:
        while child.poll() is None and _lines(folder) <= before:
            time.sleep(LOOK_S)
        down_s = time.monotonic() - ended_s
    return down_s, lost


def _lines(folder: Path) -> int:
    path = folder / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def row_of(victim: Victim, moment: str, expected: list[dict[str, float]], folder: Path) -> dict[str, Any]:
    """Run, end the victim, and compare."""
    if victim == "controller":
        down_s, lost = without_controller(folder, moment)
        recoveries = 1
    else:
        if victim == "node":
            on_nodes(folder, fault_of(victim, moment))
        else:
            within(folder, (fault_of(victim, moment),))
        found = recoveries_of(folder)
        down_s, lost = sum(r["down_s"] for r in found), sum(r["lost_iterations"] for r in found)
        recoveries = len(found)
    curve = curve_of(folder)
    wrong = num_steps_wrong(curve, trained_roles(plan()), MINIBATCHES)
    difference = largest_difference(curve, expected)
    return {
        "victim": victim,
        "while": moment,
        "survived": recoveries > 0 and not wrong and difference <= TOLERANCE,
        "starts": 1 + recoveries,
        "lost_iterations": lost,
        "seconds_to_go_on": down_s,
        "wrong_steps": wrong,
        "largest_difference": difference,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a line for each row; 0 if all were survived and nothing was lost."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--victim", action="append", choices=get_args(Victim))
    parser.add_argument("--moment", choices=tuple(MOMENTS), help="this stage alone")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--controller", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.controller is not None:
        within(options.controller, (fault_of("controller", options.moment),) if options.moment else ())
        return 0
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        expected, _ = undisturbed(plan(), Path(folder) / "undisturbed", ITERATIONS)
        for victim in options.victim or get_args(Victim):
            for moment in [options.moment] if options.moment else moments_of(victim):
                rows.append(row_of(victim, moment, expected, Path(folder) / f"{victim}-{moment}"))
                print(_line_of(rows[-1]), flush=True)
                if options.out is not None:  # half an hour may be cut short
                    options.out.write_text(json.dumps({**about_this_run(), "rows": rows}, indent=1) + "\n")
    survived = sum(row["survived"] for row in rows)
    print(f"{survived} of {len(rows)} survived, {sum(row['lost_iterations'] for row in rows)} iterations made again")
    return 0 if survived == len(rows) else 1


def _line_of(row: dict[str, Any]) -> str:
    verdict = "survived" if row["survived"] else "LOST"
    return (
        f"{row['victim']:10s} {row['while']:12s} {verdict}, {row['lost_iterations']} iterations again, "
        f"{row['seconds_to_go_on']:.1f} s to go on, difference {row['largest_difference']:.1e}"
    )


if __name__ == "__main__":
    raise SystemExit(main())
