"""hybridmap: which models of an RL post-training job share which GPUs, and how each is parallelised.

    import hybridmap

    job = hybridmap.load_job("job.yaml")
    result = hybridmap.plan(job)
    timeline = hybridmap.simulate(result.plan, job)

The same three steps as ``hybridmap plan`` and ``hybridmap simulate``. The solver and the profile tables are
imported on first use, so that ``import hybridmap`` costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import os

    from hybridmap.config import Job
    from mapper.result import Result
    from simulator.plan import Plan
    from simulator.timeline import Timeline

__version__ = "0.1.0"

__all__ = ["__version__", "load_job", "plan", "simulate"]


def load_job(path: str | os.PathLike[str]) -> Job:
    """Read a ``JOB.yaml``; raises ``profiles.errors.InputError`` with one message for whatever is wrong in it."""
    from hybridmap import config

    return config.load_job(path)


def plan(
    job: Job,
    *,
    placement: str = "any",
    even: bool = False,
    seed: int = 0,
    time_limit_s: float = 60.0,
    runners_up: bool = True,
    hint: Plan | None = None,
) -> Result:
    """Find the best plan of a job under its objective, schedule and pins.

    ``mapper.search.find_plan`` has the parameters and errors.
    """
    from mapper.search import find_plan

    return find_plan(
        job.facts(), placement=placement, even=even, seed=seed, time_limit_s=time_limit_s, runners_up=runners_up,
        pins=job.pins(), objective=job.objective(), hint=hint, modes=job.modes(), space=job.space(),
    )  # fmt: skip


def simulate(plan: Plan, job: Job) -> Timeline:
    """Predict one iteration of ``plan``; raises ``InfeasibleError`` with every reason if it cannot run."""
    from simulator.simulate import simulate as simulate_plan

    return simulate_plan(plan, job.facts())
