"""Tiny runs that are killed at random: their plans, where and when they are hit, and what is compared afterwards."""

from __future__ import annotations

import datetime
import json
import os
import platform
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from executor.controller.pools import CONTROLLER_POOL
from executor.faults import Fault
from executor.profiling.plans import ProbeJob
from executor.run import run
from executor.run_config import RunConfig, parse_run
from executor.worker.inject_faults import LOADING
from simulator.plan.dataflow import CONTROLLER, build_dataflow
from simulator.plan.plan import GenerationLayout, ParallelLayout, Plan, Pool, RolePlan, placement_name

if TYPE_CHECKING:
    import random
    from collections.abc import Mapping, Sequence

TINY = Path(__file__).parents[1] / "examples" / "run" / "tiny-config.json"
SAVING = "begin_save"
Sets = tuple[tuple[tuple[str, ...], tuple[int, int, int]], ...]
"""Roles that share a pool, with the (p, t, d) of all of them."""
ALL = {
    "ppo": ("actor", "critic", "reference", "reward"),
    "remax": ("actor", "reference", "reward"),
    "grpo": ("actor", "reference"),
    "safe-rlhf": ("actor", "critic", "reference", "reward", "cost"),
}
WIDE: dict[str, Sets] = {
    "ppo colocate": ((ALL["ppo"], (1, 2, 1)),),
    "ppo split": ((("actor", "reference"), (1, 1, 2)), (("critic", "reward"), (1, 1, 1))),
    "remax colocate": ((ALL["remax"], (2, 1, 1)),),
    "remax split": ((("actor",), (1, 1, 2)), (("reference", "reward"), (1, 1, 1))),
    "grpo colocate": ((ALL["grpo"], (1, 1, 2)),),
    "grpo split": ((("actor",), (1, 2, 1)), (("reference",), (1, 1, 1))),
    "safe-rlhf colocate": ((ALL["safe-rlhf"], (1, 1, 2)),),
    "safe-rlhf split": ((("actor", "reference"), (1, 2, 1)), (("critic", "reward", "cost"), (1, 1, 1))),
}
"""What is killed a hundred times: data, tensor and pipeline parallelism over two or three ranks."""
NARROW: dict[str, Sets] = {
    "ppo colocate": ((ALL["ppo"], (1, 1, 1)),),
    "remax split": ((("actor",), (1, 1, 1)), (("reference", "reward"), (1, 1, 1))),
    "grpo colocate": ((ALL["grpo"], (1, 1, 1)),),
    "safe-rlhf split": ((("actor", "reference"), (1, 1, 1)), (("critic", "reward", "cost"), (1, 1, 1))),
}
"""What is killed once each where it must be quick."""
TOLERANCE = 1e-5
"""Of a value, relative. The same plan on the same ranks sums in the same order, so equal bits are expected."""
MINIBATCHES = 2
CLOCKED = ("iteration_s", "tokens_per_s", "seconds/", "checkpoint/", "checks/")


def job_of(algorithm: str) -> ProbeJob:
    """Eight responses of three tokens, two optimizer steps an iteration."""
    return ProbeJob.of(algorithm, 8, 4, 3, per_prompt=2 if algorithm == "grpo" else 1, minibatches=MINIBATCHES)


def plan_of(algorithm: str, sets: Sets) -> Plan:
    """Every model of a pool in the pool's layout."""
    pools, entries, first = [], [], 0
    flow = build_dataflow(algorithm, tuple(role for roles, _ in sets for role in roles))
    for letter, (roles, (p, t, d)) in zip("ABCDE", sets, strict=False):
        pools.append(Pool(name=letter, device="cpu", first_gpu=first, num_gpus=p * t * d, roles=roles))
        first += p * t * d
        layout = ParallelLayout(dp=d, tp=t, pp=p, micro_batch=4, zero_stage=1)
        engine = GenerationLayout(dp=p * t * d, tp=1, pp=1, max_num_seqs=64, kv_cache_bytes=0)
        for role in roles:
            scores = any(call.kind == "forward" for call in flow.calls_of(role))
            entries.append(
                RolePlan(
                    role=role,
                    pool=letter,
                    training=layout if flow.is_trained(role) else None,
                    inference=layout if scores else None,
                    generation=engine if role == "actor" else None,
                )
            )
    name = placement_name(tuple(roles for roles, _ in sets))
    return Plan(algorithm=algorithm, placement=name, pools=tuple(pools), roles=tuple(entries))


def config_of(weights: Path = TINY, **changes: Any) -> RunConfig:
    """A run section for sorting digits, on one thread a rank, so that equal runs are equal to the bit."""
    document = {
        "weights": {"actor": str(weights)},
        "dtype": "fp32",
        "learning_rate": 1e-3,
        "seed": 1,
        "cpu_ranks": 4,
        "data": {"task": "sorted-digits", "digits": 4, "alphabet": "0123456789=+"},
        "reward": {"function": "per-character"},
        "cost": {"function": "first-is-even"},
        "launcher": "ray",
    }
    return parse_run(document | changes)


def curve_of(folder: Path) -> list[dict[str, float]]:
    """The lines of ``metrics.jsonl``."""
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def recoveries_of(folder: Path) -> list[dict[str, Any]]:
    """The lines of ``failures.jsonl``, which is not there where nothing failed."""
    path = folder / "failures.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def about_this_run() -> dict[str, Any]:
    """What a result file begins with: when and where it was made."""
    machine = {"machine": platform.machine(), "cores": os.cpu_count(), "load_average": os.getloadavg()}
    return {"date": datetime.date.today().isoformat(), **machine}


@dataclass(frozen=True)
class Survived:
    """What became of a run that was killed on purpose, beside the same run undisturbed.

    ``down_s``: seconds from notice to loaded models, by kill; ``wrong_steps``: iterations whose optimizer steps are not
    those that they should be; ``largest_difference`` of a metric, relative.
    """

    faults: tuple[Fault, ...]
    noticed_in: tuple[str, ...]
    down_s: tuple[float, ...]
    iterations: int
    lost_iterations: int
    wrong_steps: int
    largest_difference: float
    seconds: float


def survived(
    plan: Plan, iterations: int, kills: int, calls: range, draw: random.Random, folder: Path, **section: Any
) -> Survived:
    """Run a plan undisturbed, then killed ``kills`` times in one of the ``calls`` of a call's kind in each start.

    ``section``: keys of the run section, which must let it go on.
    """
    expected, durations_s = undisturbed(plan, folder / "undisturbed", iterations)
    faults = tuple(random_kill(plan, durations_s, attempt, calls, draw) for attempt in range(kills))
    return outlived(plan, expected, faults, folder / "killed", **section)


def outlived(
    plan: Plan, expected: list[dict[str, float]], faults: tuple[Fault, ...], folder: Path, **section: Any
) -> Survived:
    """Run a plan with these faults, beside the curve of the same run undisturbed."""
    config = config_of(on_failure="restart", **section).model_copy(update={"faults": faults})
    started_s = time.time()
    run(job_of(plan.algorithm), plan, config, folder, len(expected))
    seconds = time.time() - started_s
    curve, recoveries = curve_of(folder), recoveries_of(folder)
    return Survived(
        faults=faults,
        noticed_in=tuple(r["call"] for r in recoveries),
        down_s=tuple(r["down_s"] for r in recoveries),
        iterations=len(curve),
        lost_iterations=sum(r["lost_iterations"] for r in recoveries),
        wrong_steps=num_steps_wrong(curve, trained_roles(plan), MINIBATCHES),
        largest_difference=largest_difference(curve, expected),
        seconds=seconds,
    )


Durations = dict[tuple[str, str], float]
"""Seconds of each role's calls."""


def undisturbed(plan: Plan, folder: Path, iterations: int) -> tuple[list[dict[str, float]], Durations]:
    """The curve of a run that nothing happens to, and how long its calls take."""
    launcher = "local" if all(pool.num_gpus == 1 for pool in plan.pools) else "ray"
    timelines = run(job_of(plan.algorithm), plan, config_of(launcher=launcher), folder, iterations)
    return curve_of(folder), {(span.role, span.api): span.duration_s for span in timelines[-1].spans}


def random_kill(plan: Plan, durations_s: Durations, attempt: int, calls: range, draw: random.Random) -> Fault:
    """A rank, a call that it makes, which time, and how far into it, all drawn evenly.

    The calls are those of an iteration, and loading and saving. The rank dies that far into the call as it takes on
    the mean, or a little later where this one is quicker: inside a collective, between two calls, while it waits.
    """
    spans = dict(durations_s)
    for entry in plan.roles:
        spans[entry.role, SAVING] = 0.02
        if 0 in calls:  # each start makes it once
            spans[entry.role, LOADING] = 0.1
    role, api = draw.choice(sorted(spans))
    pool = CONTROLLER_POOL
    if role in [entry.role for entry in plan.roles]:
        pool = plan.pool_of(role).name
    num_ranks = next((p.num_gpus for p in plan.pools if p.name == pool), 1)
    return Fault(
        role,
        api,
        call=0 if api == LOADING else draw.choice(calls),
        rank=draw.randrange(num_ranks),
        kind="kill",
        delay_s=draw.uniform(0.0, spans[role, api]),
        attempt=attempt,
    )


def num_steps_wrong(curve: Sequence[Mapping[str, float]], trained: Sequence[str], steps: int) -> int:
    """Iterations after which a trained role's optimizer has not taken ``steps`` more than after the one before."""
    return sum(
        line[f"{role}/optimizer_steps"] != steps * (i + 1) or line["iteration"] != i
        for role in trained
        for i, line in enumerate(curve)
    )


def largest_difference(
    found: Sequence[Mapping[str, float]], expected: Sequence[Mapping[str, float]], least: float = 1e-12
) -> float:
    """The largest difference of a metric that no clock decides, relative to its larger value, or to ``least``."""
    worst = 0.0
    for mine, theirs in zip(found, expected, strict=True):
        for name, value in theirs.items():
            if not name.startswith(CLOCKED):
                worst = max(worst, abs(mine[name] - value) / max(abs(mine[name]), abs(value), least))
    return worst


def trained_roles(plan: Plan) -> list[str]:
    """Roles with an optimizer."""
    return [entry.role for entry in plan.roles if entry.training is not None and entry.role != CONTROLLER]
