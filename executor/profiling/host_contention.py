"""Calls of a rank alone on its host, and with a rank of another pool on it: host contention.

These are runs of PPO behind a controller: all models on one rank; actor and reference on one and critic and reward on
another; all models on two ranks of one pool; and, where that is more ranks than cores, each model on a rank of its own,
of which three score at once. In the second, inference and training of the two pools go on at the same
time, beside whatever else a run needs of the host. The third says what ``parallel_step`` says of ranks with GPUs of
their own. What lies between calls is read off all of them, too: what a further rank adds is small beside what starts of
a run differ by, and four ranks show it three times. Times are those of a run's recorder. All are made four times, in
turns, at the pace of the profile's cores, and again where they do not repeat (``visits``).
"""

from __future__ import annotations

import itertools
import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from executor.profiling.core_pace import CorePace
from executor.profiling.dispatch import ROWS as BETWEEN_CALLS
from executor.profiling.dispatch import dispatch_key, gaps
from executor.profiling.parallel_step import ROWS as OF_RANKS
from executor.profiling.plans import ProbeJob, ppo_plan, run_section
from executor.profiling.statistics import Summary, summarise
from executor.profiling.visits import visit, visit_until_calm

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from executor.profiling.cases import Key
    from executor.profiling.engine_step import Probe
    from executor.profiling.visits import Made
    from simulator.plan.plan import Plan
    from simulator.plan.timeline import Timeline

ROWS = "neighbour_step"
CALLS = ("compute_values", "compute_ref_log_prob", "update_critic", "update_actor")
"""Those that run while a call of the other pool does."""
GENERATE = "generate_sequences"
TOGETHER = (GENERATE, "compute_values", "compute_ref_log_prob", "update_actor")
"""Those of two ranks of a pool: without collectives, and with."""
REWARD = "compute_reward"
CROWD = ("compute_values", "compute_ref_log_prob", REWARD)
"""Those that start at once where each model has a rank."""
ROUNDS = 4
"""Visits that repeat: what lies between calls differs by 6 % from start to start."""
SETS = ((("actor", "critic", "reference", "reward"),), (("actor", "reference"), ("critic", "reward")))
"""Roles of each pool, with no neighbour and with one."""
APART = (("actor",), ("critic",), ("reference",), ("reward",))
"""The same, with three."""
ENGINE = "torch-native"


def measure_host_contention(
    probe: Probe, dtype: str, iterations: int, pace_s: float, *, crowded: bool = False
) -> Iterator[tuple[str, Key, Summary]]:
    """Yield tables, keys and times: of calls with ``neighbours`` and on two ranks, of what lies between.

    Neighbours are none and one, and three where the host is ``crowded`` by four ranks. Times are those of cores on
    which a training step takes ``pace_s``.

    ``InputError`` without Ray.
    """
    plans = {str(number): plan for number, plan in enumerate(plans_of(probe, crowded=crowded))}
    ranks = max(plan.num_gpus for plan in plans.values())
    with tempfile.TemporaryDirectory() as folder, CorePace(ranks) as cores:
        path = Path(folder) / "config.json"
        path.write_text(json.dumps(probe.config))
        job = ProbeJob.of("ppo", probe.samples, probe.prompt, probe.response, minibatches=probe.minibatches)

        def make(plan: Plan) -> Made:
            # a slot for each rank and no more: what Ray starts for idle ones takes cores while calls are timed
            config = run_section(path, dtype, plan.num_gpus, "sorted-digits", "per-character")
            return visit(job, plan, config, iterations, cores)

        visits = visit_until_calm(plans, ROUNDS, make, pace_s)
    for name, of_plan in visits.items():
        yield from _rows(probe, dtype, plans[name], list(itertools.chain(*of_plan.visits)))


def _rows(probe: Probe, dtype: str, plan: Plan, timelines: Sequence[Timeline]) -> Iterator[tuple[str, Key, Summary]]:
    """What the iterations of a plan say, by table and key."""
    ranks, pools = plan.num_gpus, len(plan.pools)
    alone = ranks == pools
    for call in calls_with(pools - 1) if alone else TOGETHER:
        times = [s.rank_s for t in timelines for s in t.spans if s.call == call]
        company: Key = {"neighbours": pools - 1} if alone else {"ranks": ranks}
        yield ROWS if alone else OF_RANKS, {**probe.key(dtype, call), **company}, summarise(times)
    for part, summary in gaps(timelines, plan).items():
        yield BETWEEN_CALLS, {**dispatch_key("ray", probe.samples, ranks, pools, ENGINE), "part": part}, summary


def plans_of(probe: Probe, *, crowded: bool = False) -> list[Plan]:
    """One rank, two pools of a rank, one pool of two ranks; ``crowded``: four pools of a rank."""
    size = probe.samples, probe.micro_batch
    apart = [ppo_plan(APART, *size)] if crowded else []
    return [*(ppo_plan(sets, *size) for sets in SETS), ppo_plan(SETS[0], *size, ranks=2), *apart]


def calls_with(neighbours: int) -> tuple[str, ...]:
    """Calls that a run is measured for: generation never has a neighbour."""
    return {0: (GENERATE, *CALLS, REWARD), 1: CALLS, len(APART) - 1: CROWD}[neighbours]


def neighbours_of(*, crowded: bool) -> tuple[int, ...]:
    """With how many neighbours calls are measured."""
    return (0, 1, len(APART) - 1) if crowded else (0, 1)
