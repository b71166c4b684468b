"""Calls of a rank alone on its host, and beside a rank of another pool: what sharing a host costs.

Both are runs of PPO behind a controller, with all models on one rank, and with actor and reference on one and critic
and reward on another. In the second, inference and training of the two pools go on at the same time, beside whatever
else a run needs of the host. Times are those of a run's recorder.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from executor.measure.statistics import Summary, summarise

if TYPE_CHECKING:
    from collections.abc import Iterator

    from executor.measure.cases import Key
    from executor.measure.engine_step import Probe
    from simulator.plan import Plan

ROWS = "neighbour_step"
CALLS = ("compute_values", "compute_ref_log_prob", "update_critic", "update_actor")
"""Those that have a call of the other pool beside them."""
WARMUP = 5
SETS = ((("actor", "critic", "reference", "reward"),), (("actor", "reference"), ("critic", "reward")))
"""Roles of each pool, with no neighbour and with one."""


def measure_beside(probe: Probe, dtype: str, iterations: int) -> Iterator[tuple[Key, Summary]]:
    """Yield each call's key and times, with 0 and with 1 ``neighbours``; ``InputError`` without Ray."""
    from executor.run import run
    from executor.run_config import parse_run

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.json"
        path.write_text(json.dumps(probe.config))
        config = parse_run(
            {
                "weights": {"actor": str(path)}, "dtype": dtype, "launcher": "ray", "cpu_ranks": 2,
                "data": {"task": "sorted-digits", "digits": 5, "alphabet": "0123456789=+"},
                "reward": {"function": "per-character"}, "learning": {"entropy_coefficient": 0.01},
            }
        )  # fmt: skip
        for neighbours, sets in enumerate(SETS):
            timelines = run(_Job(probe), plan_of(probe, sets), config, folder, iterations + WARMUP)
            for call in CALLS:
                times = [s.duration_s for t in timelines[WARMUP:] for s in t.spans if s.call == call]
                yield {**probe.key(dtype, call), "neighbours": neighbours}, summarise(times)


class _Job:
    """The part of a job that a run reads."""

    algorithm = "ppo"

    def __init__(self, probe: Probe) -> None:
        from profiles.workload import LengthDistribution, Workload

        response = LengthDistribution.fixed(probe.response)
        self.workload = Workload(probe.samples, 1, probe.prompt, response, 1, probe.minibatches)


def plan_of(probe: Probe, sets: tuple[tuple[str, ...], ...]) -> Plan:
    """One rank a pool, one pool a set of roles."""
    from simulator.plan import GenerationLayout, ParallelLayout, Plan, Pool, RolePlan, placement_name

    layout = ParallelLayout(dp=1, micro_batch=probe.micro_batch)
    engine = GenerationLayout(dp=1, max_num_seqs=probe.samples, kv_cache_bytes=0)
    pools = tuple(
        Pool(name="AB"[i], device="here", first_gpu=i, num_gpus=1, roles=roles) for i, roles in enumerate(sets)
    )
    entries = tuple(
        RolePlan(
            role=role, pool=pool.name, training=layout if role in ("actor", "critic") else None,
            inference=layout if role != "actor" else None, generation=engine if role == "actor" else None,
        )
        for pool in pools
        for role in pool.roles
    )  # fmt: skip
    return Plan(algorithm="ppo", placement=placement_name(sets), pools=pools, roles=entries)
