"""Does the predicted order of placements equal the measured one? One tiny PPO job, placed in several ways.

    python -m benchmarks.placements [--profile DIR] [--iterations 12] [--visits 4] [--loops 1] [--out FILE.json]

The job is ``ppo-tiny.yaml`` with ``PROMPTS``. Placements run behind a Ray controller, in turns, their ranks on cores
of their own. Iterations are brought to the pace that these cores had when profiled, and visits that do not repeat are
made again (``executor.profiling.visits``).
Two placements count as swapped only if they are predicted and measured in different order and the middle halves of
their measured times do not overlap.

``calibrated`` are predictions with what ten iterations of one placement say of the prices, by the fit of ``hybridmap
calibrate``; the other four hold where they are within ``LIMIT`` of what was measured, in its order. The ten are spread
over the visits as what they are to predict is. Each loop measures and calibrates anew.

Stages are held, too, with the calibrated prices: each within ``STAGE_LIMIT``, or too small a share of its iteration to
tell, or disturbed: its visits lie further apart than that, or the placement's cores were further from the profile's
pace, or changed it by more while they were looked at (``pace_apart``). Iterations are brought to the profile's pace as
wholes, and what waits in them does not follow a core's speed as what computes does.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import os
import platform
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from executor.profiling.core_pace import CorePace, pace_of
from executor.profiling.visits import Made, visit, visit_until_calm
from hybridmap.job.load import load_job
from hybridmap.validation.comparison import compare
from simulator.calibration.factors import calibrated, layer_of, without_dispatch
from simulator.plan.plan import GenerationLayout, ParallelLayout, Plan, Pool, RolePlan, placement_name
from simulator.play.simulate import simulate

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from executor.profiling.visits import Kept, Visit
    from executor.run_config import RunConfig
    from simulator.facts import Facts
    from simulator.plan.timeline import Timeline

JOB = Path(__file__).parents[1] / "examples" / "run" / "ppo-tiny.yaml"
PROMPTS = 256
"""Twice the example's: with its 128 what lies between calls is two fifths of an iteration."""
BASE, CALIBRATED_ON = "mixed", 10
"""Placement and number of its iterations that a calibration learns from: one with calls alone and calls in company."""
LIMIT = 0.10
"""Relative error that the other placements are to stay within."""
STAGE_LIMIT, LEAST_SHARE = 0.15, 0.03
"""Relative error of a stage, and the share of an iteration from which on it counts."""
PLACEMENTS: dict[str, tuple[tuple[tuple[str, ...], int], ...]] = {
    "colocate": ((("actor", "critic", "reference", "reward"), 1),),
    "colocate on 2": ((("actor", "critic", "reference", "reward"), 2),),
    "split": ((("actor", "reference"), 1), (("critic", "reward"), 1)),
    "mixed": ((("actor",), 1), (("critic", "reference", "reward"), 1)),
    "standalone": ((("actor",), 1), (("critic",), 1), (("reference",), 1), (("reward",), 1)),
}


def doubled(facts: Facts) -> Facts:
    """The job with ``PROMPTS``."""
    return replace(facts, workload=replace(facts.workload, prompts=PROMPTS))


def plan_of(
    facts: Facts, sets: Sequence[tuple[tuple[str, ...], int]], micro_batch: int, kv_cache_bytes: int = 1 << 24
) -> Plan:
    """Data parallelism over each pool; every model as the job's example plan has it."""
    pools, entries, first = [], [], 0
    for letter, (roles, size) in zip("ABCD", sets, strict=False):
        pools.append(Pool(name=letter, device=facts.group.device, first_gpu=first, num_gpus=size, roles=roles))
        first += size
        layout = ParallelLayout(dp=size, micro_batch=micro_batch)
        engine = GenerationLayout(dp=size, max_num_seqs=facts.workload.num_samples, kv_cache_bytes=kv_cache_bytes)
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


def made(plan: Plan, facts: Facts, config: RunConfig, iterations: int, cores: CorePace) -> Made:
    """A visit as the profile makes them: no slots but the plan's, for which Ray would start processes, and cores."""
    slots = config.model_copy(update={"cpu_ranks": plan.num_gpus, "pin_cores": True})
    return visit(facts, plan, slots, iterations, cores)


def calibrated_by(measured: Sequence[Timeline], plan: Plan, facts: Facts) -> Facts:
    """Facts with what a few iterations of one plan, of all its visits, say of the prices."""
    from hybridmap.calibration.learn import learn
    from hybridmap.runlogs.read import log_of

    log = log_of(spread_over(measured, CALIBRATED_ON), BASE)
    return calibrated(facts, layer_of([learn(log, plan, facts).file]))


def spread_over(measured: Sequence[Any], num: int) -> list[Any]:
    """So many of the iterations, evenly from the first to the last; all where there are fewer."""
    if len(measured) <= num:
        return list(measured)
    return [measured[i * len(measured) // num] for i in range(num)]


def apart(seconds: Sequence[Sequence[float]]) -> float:
    """Slowest over fastest median of several visits, less one."""
    medians = [float(np.median(visit)) for visit in seconds]
    return max(medians) / min(medians) - 1.0 if min(medians) else 0.0


def swapped(rows: Sequence[Mapping[str, Any]], by: str = "predicted_s") -> list[tuple[str, str]]:
    """Pairs whose predicted and measured order differ by more than their spread."""
    found = []
    for a, b in itertools.combinations(rows, 2):
        differs = (a[by] - b[by]) * (a["measured_s"] - b["measured_s"]) < 0
        apart = a["high_s"] < b["low_s"] or b["high_s"] < a["low_s"]
        if differs and apart:
            found.append((str(a["placement"]), str(b["placement"])))
    return found


# Long by what is written of a loop: a line for each.
def run_benchmark(profile: Path, iterations: int, visits: int) -> dict[str, Any]:
    """Predict and measure every placement."""
    from hybridmap.commands.run_prices import local_facts

    job = load_job(JOB, profile, max(sum(n for _, n in sets) for sets in PLACEMENTS.values()))
    assert job.run is not None, f"{JOB} has a run section"
    config = job.run.model_copy(update={"launcher": "ray"})
    plans = {name: plan_of(doubled(job.facts()), sets, 64) for name, sets in PLACEMENTS.items()}
    facts = doubled(local_facts(job, config, next(iter(plans.values()))))
    load = os.getloadavg()[0]
    pace_s, ranks = pace_of(profile), max(plan.num_gpus for plan in plans.values())
    assert pace_s is not None, f"{profile} is of a CPU's cores"
    with CorePace(ranks) as cores:
        make = functools.partial(made, facts=facts, config=config, iterations=iterations, cores=cores)
        kept = visit_until_calm(plans, visits, make, pace_s)
    measured = {name: of_plan.visits for name, of_plan in kept.items()}
    learned = calibrated_by(list(itertools.chain(*measured[BASE])), plans[BASE], facts)
    rows = [row_of(name, plan, facts, learned, measured[name]) for name, plan in plans.items()]
    for row in rows:
        row["disturbed"] = changes_pace(kept[row["placement"]], pace_s)
    others = [row for row in rows if row["placement"] != BASE]
    far = [row["placement"] for row in others if abs(row["calibrated_s"] / row["measured_s"] - 1.0) > LIMIT]
    after = swapped(others, "calibrated_s")
    stages = [stage | {"disturbed": stage["disturbed"] or row["disturbed"]} for row in rows for stage in row["stages"]]
    stages_far = [stage for stage in stages if stage["far"] and not stage["disturbed"]]
    return {
        "date": time.strftime("%Y-%m-%d"),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "profiled_pace_s": pace_s,
        "pace_s": {name: of_plan.pace_s for name, of_plan in kept.items()},
        "load_before": load,
        "load_after": os.getloadavg()[0],
        "rows": rows,
        "pace_apart": {name: of_plan.pace_apart for name, of_plan in kept.items()},
        "other_visits": {name: of_plan.others for name, of_plan in kept.items()},
        "swapped": swapped(rows),
        "calibrated": {"on": BASE, "far": far, "swapped": after, "holds": not far and not after},
        "stages_far": stages_far,
        "stages_disturbed": sum(stage["far"] and stage["disturbed"] for stage in stages),
    }


def changes_pace(kept: Kept, profiled_s: float) -> bool:
    """Whether a placement's cores were not at one pace, that of the profile."""
    return kept.pace_apart > STAGE_LIMIT or abs(kept.pace_s / profiled_s - 1.0) > STAGE_LIMIT


def row_of(name: str, plan: Plan, facts: Facts, learned: Facts, visits: Sequence[Visit]) -> dict[str, Any]:
    """A placement's predictions, without and with what was learned, beside the quartiles of what was measured."""
    seconds = [m.iteration_s for m in itertools.chain(*visits)]
    low, median, high = (float(x) for x in np.quantile(seconds, (0.25, 0.5, 0.75)))
    predicted = {
        "predicted_s": simulate(plan, facts).iteration_s,
        "calibrated_s": simulate(plan, learned).iteration_s,
    }
    return {
        "placement": name,
        **predicted,
        "measured_s": median,
        "low_s": low,
        "high_s": high,
        "iterations": len(seconds),
        "visits_apart": apart([[m.iteration_s for m in visit] for visit in visits]),
        "stages": stages_of(name, plan, learned, visits),
    }


def seconds_of(stage: str, iteration: Timeline) -> float:
    """Of one stage; what is between calls is what all others leave."""
    seconds: dict[str, float] = {str(name): s for name, s in iteration.stages.items() if name != "other"}
    return iteration.iteration_s - sum(seconds.values()) if stage == "other" else seconds.get(stage, 0.0)


def stages_of(name: str, plan: Plan, learned: Facts, visits: Sequence[Visit]) -> list[dict[str, Any]]:
    """Stages that count of a placement, calibrated and measured, and which are far off or were disturbed."""
    measured = list(itertools.chain(*visits))
    found = compare(simulate(plan, without_dispatch(learned)), simulate(plan, learned).iteration_s, measured)
    out = []
    for timing in found.stages:
        if timing.error is None or timing.measured_s < LEAST_SHARE * found.iteration.measured_s:
            continue
        moved = apart([[seconds_of(timing.name, t) for t in visit] for visit in visits])
        out.append(
            {
                "placement": name,
                "stage": timing.name,
                "calibrated_s": timing.predicted_s,
                "measured_s": timing.measured_s,
                "error": timing.error,
                "far": abs(timing.error) > STAGE_LIMIT,
                "disturbed": moved > STAGE_LIMIT,
            }
        )
    return out


def show(found: Mapping[str, Any]) -> None:
    """Print the placements in predicted order, and whether the calibrated ones hold."""
    print("placement         predicted ms  calibrated ms   measured ms   middle half   visits apart")
    for row in sorted(found["rows"], key=lambda r: r["predicted_s"]):
        times = [1e3 * row[k] for k in ("predicted_s", "calibrated_s", "measured_s", "low_s", "high_s")]
        columns = f"{times[0]:13.1f}  {times[1]:13.1f} {times[2]:13.1f}   {times[3]:.1f} to {times[4]:.1f}"
        print(f"{row['placement']:16s} {columns}   {row['visits_apart']:.0%}")
    slowest, fastest = max(found["pace_s"].values()), min(found["pace_s"].values())
    print(f"visits that did not repeat: {sum(found['other_visits'].values())}")
    print(
        f"a training step: {1e3 * fastest:.1f} to {1e3 * slowest:.1f} ms, {1e3 * found['profiled_pace_s']:.1f} profiled"
    )
    print(f"pairs in the wrong order beyond the spread: {found['swapped'] or 'none'}")
    by = found["calibrated"]
    far, order = by["far"] or "none", by["swapped"] or "none"
    print(f"calibrated on {by['on']}: further off than {LIMIT:.0%}: {far}, in the wrong order: {order}")
    for stage in found["stages_far"]:
        print(f"stage further off than {STAGE_LIMIT:.0%}: {stage['placement']} {stage['stage']} {stage['error']:+.1%}")
    print(f"stages further off that were disturbed: {found['stages_disturbed']}")
    changed = [row["placement"] for row in found["rows"] if row["disturbed"]]
    print(f"placements whose cores were not at the profile's pace throughout: {', '.join(changed) or 'none'}")
    print(f"load average {found['load_before']:.2f} before, {found['load_after']:.2f} after")


def main() -> None:
    """Print the placements of each loop in predicted order; write them where asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--profile", type=Path, default=Path("hybridmap-profile"))
    parser.add_argument("--iterations", type=int, default=12, help="of a visit")
    parser.add_argument("--visits", type=int, default=4, help="of each placement that repeat")
    parser.add_argument("--loops", type=int, default=1)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    loops = []
    for _ in range(options.loops):
        loops.append(run_benchmark(options.profile, options.iterations, options.visits))
        show(loops[-1])
    print(f"loops that hold: {sum(found['calibrated']['holds'] for found in loops)} of {len(loops)}")
    print(f"loops whose stages hold: {sum(not found['stages_far'] for found in loops)} of {len(loops)}")
    if options.out:
        options.out.write_text(json.dumps({"loops": loops}, indent=1) + "\n")


if __name__ == "__main__":
    main()
