"""HybridFlow's own bars: what the paper publishes of a plan is pinned, the mapper chooses the rest."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.validation.paper_job import OTHERS, paper_facts, role_sizes
from mapper.pins import Pin
from mapper.request import SearchRequest
from mapper.search.find_plan import find_plan
from profiles.errors import InfeasibleError, UnknownNameError
from simulator.cost import reshard
from simulator.cost.weight_sync import weight_sync_cost
from simulator.plan.layouts import GenerationLayouts, Layouts
from simulator.plan.plan import ParallelLayout
from simulator.systems.run import run_system
from simulator.systems.system import SYSTEMS

if TYPE_CHECKING:
    from simulator.facts import Facts
    from simulator.plan.plan import Resharding
    from simulator.plan.timeline import Timeline

ACTOR_LAYOUTS = {"7B": (8, 1, 2), "13B": (8, 1, 4), "34B": (8, 4, 8), "70B": (8, 8, 8)}
"""``(t, p, t_g)`` of the actor by size, p_g = 1: the captions of Fig 14."""

FEWEST_GPUS = {"7B": 8, "13B": 16, "34B": 32, "70B": 64}
"""Where the paper's curves begin: the smallest count without running out of memory."""

GPUS_PER_STAGE = 8
"""The paper's own rule, not a fit: Algorithm 2 lets p grow to ``N_l / U`` only, at most one stage a machine."""

Outcome = tuple[float, str]
"""Seconds of an iteration, and what had to be assumed."""


def pins(size: str, roles: tuple[str, ...], how: str) -> tuple[Pin, ...]:
    """Pins of a run whose actor has ``size``.

    ``published``: the actor's layouts as in Fig 14. ``tensor``: its tensor parallel size and at most its number of
    stages, for pools that the published layout does not divide. ``free``: the paper's search space alone.
    """
    t, p, tg = ACTOR_LAYOUTS[size]
    actor = {"published": {"tp": t, "pp": p}, "tensor": {"tp": t, "pp": tuple(range(1, p + 1))}, "free": {}}[how]
    engine = {"tp": tg, "pp": 1} if how == "published" else {}
    out = []
    for role in roles:
        train = actor if role == "actor" else {}
        out.append(Pin(role, train, {}, engine if role == "actor" else {}, min_gpus_per_stage=GPUS_PER_STAGE))
    return tuple(out)


@cache
def hybridflow(algorithm: str, models: str, num_gpus: int, placement: str | None = None) -> Outcome:
    """Iteration of HybridFlow's plan.

    The published layouts where no placement is named (Figs 9 to 11), else as much of them as its pools divide.
    ``placement`` as in ``SearchRequest``; a split of equal models is even, as the paper says of Fig 12.
    Raises ``InfeasibleError`` where nothing fits.
    """
    facts = paper_facts(algorithm, models, num_gpus)
    roles = facts.dataflow.roles
    sizes = role_sizes(models, roles)
    ways = ("published", "tensor", "free") if placement is None else ("tensor", "free")
    even = placement == "split" and facts.group.nodes % 2 == 0 and len(set(sizes.values())) == 1
    for how in ways:
        fixed = pins(sizes["actor"], roles, how)
        try:
            result = find_plan(
                SearchRequest(facts, placement=placement or "any", even=even, runners_up=False, pins=fixed)
            )
        except InfeasibleError:
            if how == ways[-1]:
                raise
            continue
        note = {"published": "", "tensor": "actor: t pinned, p at most as published", "free": "actor layout free"}[how]
        return result.iteration_s, note
    raise AssertionError("the last way returns or raises")


def baseline(system: str, algorithm: str, models: str, num_gpus: int) -> Outcome:
    """Iteration of another system on the same job."""
    timeline, note = baseline_run(system, algorithm, models, num_gpus)
    return timeline.iteration_s, note


@cache
def baseline_run(system: str, algorithm: str, models: str, num_gpus: int) -> tuple[Timeline, str]:
    """What another system does on the same job, and what had to be assumed.

    A batch that recipes state for a GPU is the one that is fastest for PPO on the fewest GPUs, where it is tuned, and
    kept: for more GPUs, and for the other algorithms, unless it does not fit.
    """
    facts = paper_facts(algorithm, models, num_gpus, OTHERS)
    fewest = max(FEWEST_GPUS[size] for size in role_sizes(models, facts.dataflow.roles).values())
    batch = None
    if SYSTEMS[system].device_batches and (num_gpus, algorithm) != (fewest, "ppo"):
        batch = run_system(system, paper_facts("ppo", models, fewest, OTHERS)).device_batch
    try:
        run = run_system(system, facts, batch)
    except InfeasibleError:
        run, batch = run_system(system, facts), None
    return run.timeline, f"{batch} sequences a GPU, as for PPO on {fewest} GPUs" if batch else ""


def transition_s(system: str, algorithm: str, models: str, num_gpus: int) -> float:
    """Transition of a system in the layouts of Fig 14; OpenRLHF's is the sync of halves of the cluster."""
    facts = paper_facts(algorithm, models, num_gpus)
    t, p, tg = ACTOR_LAYOUTS[role_sizes(models, facts.dataflow.roles)["actor"]]
    spec, dp = facts.roles["actor"], max(1, num_gpus // (t * p))
    engine = GenerationLayouts(*np.asarray([[num_gpus // tg], [tg], [1], [1]], dtype=np.int64))
    if system == "openrlhf":
        facts = run_facts(system, algorithm, models, num_gpus)
        half = max(1, num_gpus // 2)
        engine = GenerationLayouts(*np.asarray([[max(1, half // tg)], [tg], [1], [1]], dtype=np.int64))
        return float(weight_sync_cost(facts, spec.shape, half, engine, spec.precision).time.s[0])
    methods: dict[str, Resharding] = {
        "hybridflow": "hybridflow",
        "hybridflow-v": "hybridflow-v",
        "deepspeed-chat": "ds-chat",
    }
    if system not in methods:
        raise UnknownNameError("system with a transition", system, [*methods, "openrlhf"])
    training = Layouts.of([ParallelLayout(dp=dp, tp=t, pp=p)])
    cost = reshard.transition_cost(facts, spec.shape, training, engine, spec.precision, methods[system])
    return float(cost.time.s[0])


def run_facts(system: str, algorithm: str, models: str, num_gpus: int) -> Facts:
    """The job with a system's own engines."""
    return SYSTEMS[system].facts_of(paper_facts(algorithm, models, num_gpus, OTHERS))


@cache
def generation_sweep(models: str, num_gpus: int, t_g: int) -> tuple[float, float]:
    """``(generation s, transition s)`` of Fig 15: every model in p1 t8, all colocated, best-effort KV cache."""
    facts = paper_facts("ppo", models, num_gpus)
    trained = {"tp": 8, "pp": 1}
    fixed = tuple(
        Pin(role, trained, {}, {"tp": t_g, "pp": 1})
        if role == "actor"
        else Pin(role, trained)
        if role == "critic"
        else Pin(role, inference={"tp": 8, "pp": 1})
        for role in facts.dataflow.roles
    )
    stages = find_plan(SearchRequest(facts, placement="colocate", runners_up=False, pins=fixed)).timeline.stages
    return stages["generation"], stages["transition"]
