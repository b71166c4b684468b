"""What one ``simulate`` takes of a processor after import, against the targets.

    python -m benchmarks.simulate_speed [--profile]

A PPO job on 128 GPUs, and one on 16,384: plans with one pool for all roles, which no search is needed for. Each
repetition has facts of its own, so that none finds what the one before it kept by them.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import statistics
import time
from dataclasses import dataclass

from profiles.engine_facts import default_engine, load_generation_engine, load_training_engine
from profiles.hardware import ClusterGroup
from profiles.models.catalogue import load_model
from profiles.store import load_device
from profiles.workload import LengthDistribution, Workload
from simulator.facts import Facts, RoleSpec
from simulator.plan.plan import GenerationLayout, ParallelLayout, Plan, Pool, RolePlan, placement_name
from simulator.play.simulate import simulate

ROLES = ("actor", "critic", "reference", "reward")
REPEATS = 21


@dataclass(frozen=True)
class Case:
    """A colocated PPO plan and the processor's time that its simulation may take."""

    num_gpus: int
    model: str
    device: str
    prompts: int
    tp: int
    pp: int
    target_s: float


CASES = (
    Case(num_gpus=128, model="codellama-34b", device="a100-80gb-sxm", prompts=1024, tp=8, pp=2, target_s=0.020),
    Case(num_gpus=16384, model="llama-3.1-70b", device="h100-80gb-sxm", prompts=65536, tp=8, pp=8, target_s=0.020),
)


def facts_of(case: Case) -> Facts:
    """The job of a case."""
    device, shape = load_device(case.device), load_model(case.model)
    return Facts(
        algorithm="ppo",
        roles={role: RoleSpec(shape) for role in ROLES},
        workload=Workload(case.prompts, 1, 1024, LengthDistribution.fixed(1024), epochs=1, minibatches=8),
        group=ClusterGroup.of(device.spec, case.num_gpus // device.spec.gpus_per_node),
        device=device,
        training=load_training_engine(default_engine("training")),
        generation=load_generation_engine(default_engine("generation")),
    )


def plan_of(case: Case) -> Plan:
    """All four roles on all GPUs."""
    dp = case.num_gpus // case.tp // case.pp
    trained = ParallelLayout(dp=dp, tp=case.tp, pp=case.pp)
    frozen = ParallelLayout(dp=dp, tp=case.tp, pp=case.pp, zero_stage=0)
    slots = max(1, min(256, case.prompts * case.tp // case.num_gpus))
    engine = GenerationLayout(dp=case.num_gpus // case.tp, tp=case.tp, max_num_seqs=slots, kv_cache_bytes=8 * 2**30)
    roles = (
        RolePlan(role="actor", pool="all", training=trained, generation=engine),
        RolePlan(role="critic", pool="all", training=trained, inference=trained),
        RolePlan(role="reference", pool="all", inference=frozen),
        RolePlan(role="reward", pool="all", inference=frozen),
    )
    pool = Pool(name="all", device=case.device, first_gpu=0, num_gpus=case.num_gpus, roles=ROLES)
    return Plan(algorithm="ppo", placement=placement_name((ROLES,)), pools=(pool,), roles=roles)


def seconds_of(case: Case) -> tuple[float, float]:
    """``(first, median of the rest)`` in seconds of the processor: the first reads the tables it needs."""
    plan, times = plan_of(case), []
    for facts in [facts_of(case) for _ in range(REPEATS)]:
        start = time.process_time()
        simulate(plan, facts)
        times.append(time.process_time() - start)
    return times[0], statistics.median(times[1:])


def main() -> None:
    """Print each case's time in ms and as a ratio to its target."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--profile", action="store_true", help="show where the time goes")
    options = parser.parse_args()
    for case in CASES:
        first, median = seconds_of(case)
        ratio = median / case.target_s
        print(
            f"{case.num_gpus:>6,} GPUs: first {first * 1e3:7.1f} ms, then {median * 1e3:7.1f} ms, "
            f"target {case.target_s * 1e3:.0f} ms, ratio {ratio:.2f} {'ok' if ratio <= 1 else 'TOO SLOW'}"
        )
        if options.profile:
            _profile(case)


def _profile(case: Case) -> None:
    each, plan = [facts_of(case) for _ in range(10)], plan_of(case)
    with cProfile.Profile() as profile:
        for facts in each:
            simulate(plan, facts)
    pstats.Stats(profile).sort_stats("cumulative").print_stats(30)


if __name__ == "__main__":
    main()
