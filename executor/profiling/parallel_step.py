"""Calls of two data-parallel ranks, each a process of its own behind a controller: what one rank alone does not show.

Ranks wait for each other in collectives and share the machine. Times are those of a run's recorder, of the rank that
ends last; that it starts late is time between calls. The run is made twice.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from executor.profiling.plans import ProbeJob, run_section
from executor.profiling.statistics import Summary, least_disturbed, summarise

if TYPE_CHECKING:
    from collections.abc import Iterator

    from executor.profiling.cases import Key
    from executor.profiling.engine_step import Probe

CALLS = ("generate_sequences", "update_actor")
WARMUP = 5
ROUNDS = 2
ROWS = "parallel_step"


def measure_parallel(probe: Probe, dtype: str, ranks: int, iterations: int) -> Iterator[tuple[Key, Summary]]:
    """Yield each call's key and times of a GRPO run on ``ranks`` data-parallel ranks; ``InputError`` without Ray.

    ``probe.samples`` are those of all ranks together; its response is one token (the made-up task asks for one).
    """
    from executor.run import run

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.json"
        path.write_text(json.dumps(probe.config))
        config = run_section(path, dtype, ranks, "modular-sum", "exact-match")
        job = ProbeJob.of(
            "grpo", probe.samples, probe.prompt, probe.response, per_prompt=4, minibatches=probe.minibatches
        )
        found: dict[str, list[Summary]] = {call: [] for call in CALLS}
        for _ in range(ROUNDS):
            timelines = run(job, _plan(probe, ranks), config, folder, iterations + WARMUP)
            for call, rounds in found.items():
                spans = [s.rank_s for t in timelines[WARMUP:] for s in t.spans if s.call == call]
                rounds.append(summarise(spans))
    for call, rounds in found.items():
        yield {**probe.key(dtype, call), "ranks": ranks}, least_disturbed(rounds)


def _plan(probe: Probe, ranks: int) -> Any:
    from simulator.plan.plan import GenerationLayout, ParallelLayout, Plan, Pool, RolePlan, placement_name

    entry = RolePlan(
        role="actor",
        pool="A",
        training=ParallelLayout(dp=ranks, micro_batch=probe.micro_batch),
        generation=GenerationLayout(dp=ranks, max_num_seqs=probe.samples, kv_cache_bytes=0),
    )
    return Plan(
        algorithm="grpo",
        placement=placement_name((("actor",),)),
        roles=(entry,),
        pools=(Pool(name="A", device="here", first_gpu=0, num_gpus=ranks, roles=("actor",)),),
    )
