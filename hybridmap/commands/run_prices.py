"""The prices of a job as its run section has it executed: engines, launcher, and functions timed on this machine.

A door to torch, like ``run``.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from simulator.plan.algorithms import ALGORITHMS

if TYPE_CHECKING:
    from executor.run_config import RunConfig
    from hybridmap.job.job import Job
    from simulator.facts import Facts
    from simulator.plan.plan import Plan


def local_facts(job: Job, config: RunConfig, plan: Plan) -> Facts:
    """The job's facts with what the run section adds: timed functions, the launcher's dispatch, learning from text."""
    from executor.launch.choice import runs_here

    facts = job.facts()
    training, generation = facts.training, facts.generation
    if runs_here(plan, config):
        training = replace(
            training,
            dispatch_s=training.dispatch_local_s,
            dispatch_iteration_s=training.dispatch_local_iteration_s,
            dispatch_rank_s=0.0,
            dispatch_pool_rank_s=0.0,
        )
    else:  # ranks of their own wait for the controller between calls
        training = replace(training, call_s=training.call_s + training.wake_s)
        generation = replace(generation, call_s=generation.call_s + generation.wake_s)
    learns_text = ALGORITHMS[job.document["algorithm"]].pretraining_loss and config.learning.pretrain_coefficient > 0
    work, roles = replace(facts.workload, pretrain_update=learns_text), dict(facts.roles)
    for role in ("reward", "cost"):
        function = config.function_of(role)
        if function is None:
            continue
        # no wake_s: that is weights and operators to read anew, of which a function has none (docs/log.md, 2026-11-27)
        seconds = _function_s(function, config, facts, Path(job.cluster[0].device))
        if role in roles:
            roles[role] = replace(roles[role], function_s_per_sample=seconds)
        else:
            work = replace(work, reward_s_per_sample=seconds)
    return replace(facts, training=training, generation=generation, workload=work, roles=roles)


def engines_of(config: RunConfig, plan: Plan) -> dict[str, str]:
    """The engines of a run as prices name them; of a role where it has one of its own."""
    from executor.engines.registry import GENERATION, TRAINING

    names = {"training": TRAINING[config.engines.training].priced_as or config.engines.training}
    if any(entry.generation is not None for entry in plan.roles):
        names["generation"] = GENERATION[config.engines.generation].priced_as or config.engines.generation
    return names | {role: TRAINING[name].priced_as or name for role, name in config.engines.roles.items()}


def _function_s(function: str, config: RunConfig, facts: Facts, profile: Path) -> float:
    """Seconds for each sample of a reward function, timed on prompts of the run, at the profile's pace."""
    from executor.profiling.core_pace import OwnPace, pace_of
    from executor.profiling.functions import time_function

    work = facts.workload
    counts = work.num_samples, work.prompt_length, work.response.maximum
    pace_s = pace_of(profile)
    if pace_s is None:
        return time_function(function, config, *counts)
    core = OwnPace()
    return time_function(function, config, *counts, lambda: core.measure_s() / pace_s)
