"""Does the predicted order of placements equal the measured one? One tiny PPO job, placed in several ways.

    python -m benchmarks.placements [--profile DIR] [--iterations 30] [--rounds 3] [--out FILE.json]

Every placement runs behind a Ray controller, round after round, so that a disturbance does not hit one of them alone.
Two placements count as swapped only if they are predicted and measured in different order and the middle halves of
their measured times do not overlap.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hybridmap.job.load import load_job
from simulator.plan.plan import GenerationLayout, ParallelLayout, Plan, Pool, RolePlan, placement_name
from simulator.play.simulate import simulate

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from simulator.facts import Facts

JOB = Path(__file__).parents[1] / "examples" / "run" / "ppo-tiny.yaml"
WARMUP = 5
PLACEMENTS: dict[str, tuple[tuple[tuple[str, ...], int], ...]] = {
    "colocate": ((("actor", "critic", "reference", "reward"), 1),),
    "colocate on 2": ((("actor", "critic", "reference", "reward"), 2),),
    "split": ((("actor", "reference"), 1), (("critic", "reward"), 1)),
    "mixed": ((("actor",), 1), (("critic", "reference", "reward"), 1)),
    "standalone": ((("actor",), 1), (("critic",), 1), (("reference",), 1), (("reward",), 1)),
}


def plan_of(facts: Facts, sets: Sequence[tuple[tuple[str, ...], int]], micro_batch: int) -> Plan:
    """Data parallelism over each pool; every model as the job's example plan has it."""
    pools, entries, first = [], [], 0
    for letter, (roles, size) in zip("ABCD", sets, strict=False):
        pools.append(Pool(name=letter, device=facts.group.device, first_gpu=first, num_gpus=size, roles=roles))
        first += size
        layout = ParallelLayout(dp=size, micro_batch=micro_batch)
        engine = GenerationLayout(dp=size, max_num_seqs=facts.workload.num_samples, kv_cache_bytes=1 << 24)
        for role in roles:
            calls = facts.dataflow.calls_of(role)
            entries.append(
                RolePlan(
                    role=role,
                    pool=letter,
                    training=layout if facts.dataflow.is_trained(role) else None,
                    inference=layout if any(call.kind == "forward" for call in calls) else None,
                    generation=engine if role == "actor" else None,
                )
            )
    name = placement_name(tuple(roles for roles, _ in sets))
    return Plan(algorithm=facts.algorithm, placement=name, pools=tuple(pools), roles=tuple(entries))


def measure_all(
    plans: Mapping[str, Plan], facts: Facts, config: Any, iterations: int, rounds: int
) -> dict[str, list[float]]:
    """Iteration times of every plan, after warm-up, in turns."""
    from executor.run import run

    times: dict[str, list[float]] = {name: [] for name in plans}
    for _ in range(rounds):
        for name, plan in plans.items():
            with tempfile.TemporaryDirectory() as folder:
                found = run(facts, plan, config, folder, WARMUP + -(-iterations // rounds))
            times[name] += [timeline.iteration_s for timeline in found[WARMUP:]]
    return times


def swapped(rows: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Pairs whose predicted and measured order differ by more than their spread."""
    found = []
    for a, b in itertools.combinations(rows, 2):
        differs = (a["predicted_s"] - b["predicted_s"]) * (a["measured_s"] - b["measured_s"]) < 0
        apart = a["high_s"] < b["low_s"] or b["high_s"] < a["low_s"]
        if differs and apart:
            found.append((str(a["placement"]), str(b["placement"])))
    return found


def run_benchmark(profile: Path, iterations: int, rounds: int) -> dict[str, Any]:
    """Predict and measure every placement."""
    from hybridmap.commands.validate import local_facts

    job = load_job(JOB, profile, max(sum(n for _, n in sets) for sets in PLACEMENTS.values()))
    assert job.run is not None, f"{JOB} has a run section"
    config = job.run.model_copy(update={"launcher": "ray"})
    plans = {name: plan_of(job.facts(), sets, 64) for name, sets in PLACEMENTS.items()}
    facts = local_facts(job, config, next(iter(plans.values())))
    load = os.getloadavg()[0]
    times = measure_all(plans, facts, config, iterations, rounds)
    rows = []
    for name, plan in plans.items():
        low, median, high = (float(x) for x in np.quantile(times[name], (0.25, 0.5, 0.75)))
        rows.append(
            {
                "placement": name,
                "predicted_s": simulate(plan, facts).iteration_s,
                "measured_s": median,
                "low_s": low,
                "high_s": high,
                "iterations": len(times[name]),
            }
        )
    return {
        "date": time.strftime("%Y-%m-%d"),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "load_before": load,
        "load_after": os.getloadavg()[0],
        "rows": rows,
        "swapped": swapped(rows),
    }


def main() -> None:
    """Print the placements in predicted order; write them where asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--profile", type=Path, default=Path("hybridmap-profile"))
    parser.add_argument("--iterations", type=int, default=30)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    found = run_benchmark(options.profile, options.iterations, options.rounds)
    print("placement         predicted ms   measured ms   middle half")
    for row in sorted(found["rows"], key=lambda r: r["predicted_s"]):
        times = [1e3 * row[k] for k in ("predicted_s", "measured_s", "low_s", "high_s")]
        print(f"{row['placement']:16s} {times[0]:13.1f} {times[1]:13.1f}   {times[2]:.1f} to {times[3]:.1f}")
    print(f"pairs in the wrong order beyond the spread: {found['swapped'] or 'none'}")
    print(f"load average {found['load_before']:.2f} before, {found['load_after']:.2f} after")
    if options.out:
        options.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
