"""What an iteration costs beside its calls: the controller, references and batches in motion, metrics read back.

A PPO iteration on engines that take no time (the fake) is nothing but that. Measured in this process and on Ray.
"""

from __future__ import annotations

import tempfile
from typing import TYPE_CHECKING, Any

from executor.measure.statistics import Summary, summarise

if TYPE_CHECKING:
    from collections.abc import Iterator

    from executor.measure.cases import Key

ROLES = ("actor", "critic", "reference", "reward")
LAUNCHERS = ("local", "ray")
CALLS_ON_PATH = {"local": 8, "ray": 8}
"""Calls that follow one another where all roles share a pool: transition, generation, three scores, advantages, two
updates."""
WARMUP = 3


def measure_dispatch(launcher: str, samples: int, iterations: int) -> tuple[Summary, int]:
    """Seconds between two calls that follow one another, and the peak memory of a rank that holds no model, bytes.

    ``samples`` is the size of the batch that passes; ``InputError`` where Ray is asked for and missing.
    """
    from executor.engines.choice import EngineChoice
    from executor.engines.fake import FakeSpec
    from executor.run import run
    from executor.run_config import parse_run

    config = parse_run(
        {
            "weights": {"actor": "unused"}, "launcher": launcher, "cpu_ranks": 2,
            "data": {"task": "sorted-digits", "digits": 5, "alphabet": "0123456789=+"},
        }
    )  # fmt: skip
    engines = {role: EngineChoice(FakeSpec(role, {})) for role in ROLES}
    with tempfile.TemporaryDirectory() as folder:
        timelines = run(_Job(samples), _plan(), config, folder, iterations + WARMUP, engines=engines)
    gaps = []
    for timeline in timelines[WARMUP:]:
        inside = sum(span.duration_s for span in timeline.spans)
        gaps.append((timeline.iteration_s - inside) / CALLS_ON_PATH[launcher])
    peak = max(memory.used_bytes for memory in timelines[-1].memory.values())
    return summarise(gaps), peak


def dispatch_keys(samples: int) -> Iterator[Key]:
    """Rows of table ``dispatch``."""
    for launcher in LAUNCHERS:
        yield {"launcher": launcher, "samples": samples}


class _Job:
    """The part of a job that a run reads."""

    algorithm = "ppo"

    def __init__(self, samples: int) -> None:
        from profiles.workload import LengthDistribution, Workload

        self.workload = Workload(samples, 1, 4, LengthDistribution.fixed(3))


def _plan() -> Any:
    from simulator.plan import GenerationLayout, ParallelLayout, Plan, Pool, RolePlan, placement_name

    layout = ParallelLayout(dp=1)
    engine = GenerationLayout(dp=1, max_num_seqs=1024, kv_cache_bytes=0)
    trains = {"actor": layout, "critic": layout}
    entries = [
        RolePlan(
            role=role, pool="A", training=trains.get(role), inference=None if role == "actor" else layout,
            generation=engine if role == "actor" else None,
        )
        for role in ROLES
    ]  # fmt: skip
    return Plan(
        algorithm="ppo", placement=placement_name((ROLES,)), roles=tuple(entries),
        pools=(Pool(name="A", device="here", first_gpu=0, num_gpus=1, roles=ROLES),),
    )  # fmt: skip
