"""Jobs and plans of the runs that measurements make."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from profiles.workload import LengthDistribution, Workload
from simulator.plan.algorithms import algorithm_of
from simulator.plan.dataflow import build_dataflow

if TYPE_CHECKING:
    from pathlib import Path

    from executor.run_config import RunConfig
    from simulator.plan.dataflow import Dataflow
    from simulator.plan.plan import Plan

    Sets = tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class ProbeImplementation:
    """All weights are trained."""

    lora_rank: int = 0
    lora_targets: tuple[str, ...] = ()
    lora_adapters: int = 1


@dataclass(frozen=True)
class ProbeJob:
    """The part of a job that a run reads."""

    algorithm: str
    workload: Workload
    implementation: ProbeImplementation = field(default_factory=ProbeImplementation)
    speculation: None = None

    @property
    def dataflow(self) -> Dataflow:
        """Its calls: policy ratios are against the engine's log-probs."""
        return build_dataflow(self.algorithm, algorithm_of(self.algorithm).roles)

    @classmethod
    def of(
        cls, algorithm: str, samples: int, prompt: int, response: int, *, per_prompt: int = 1, minibatches: int = 1
    ) -> ProbeJob:
        """``samples`` in all, ``per_prompt`` of them of the same prompt; lengths in tokens, the same for all."""
        lengths = LengthDistribution.fixed(response)
        return cls(algorithm, Workload(samples // per_prompt, per_prompt, prompt, lengths, 1, minibatches))


def ppo_plan(sets: Sets, samples: int, micro_batch: int = 1, ranks: int = 1) -> Plan:
    """PPO on ``ranks`` data-parallel ranks a pool, one pool a set of roles."""
    from simulator.plan.plan import GenerationLayout, ParallelLayout, Plan, Pool, RolePlan, placement_name

    layout = ParallelLayout(dp=ranks, micro_batch=micro_batch)
    engine = GenerationLayout(dp=ranks, max_num_seqs=samples, kv_cache_bytes=0)
    pools = tuple(
        Pool(name="ABCD"[i], device="here", first_gpu=i * ranks, num_gpus=ranks, roles=roles)
        for i, roles in enumerate(sets)
    )
    entries = tuple(
        RolePlan(
            role=role,
            pool=pool.name,
            training=layout if role in ("actor", "critic") else None,
            inference=layout if role != "actor" else None,
            generation=engine if role == "actor" else None,
        )
        for pool in pools
        for role in pool.roles
    )
    return Plan(algorithm="ppo", placement=placement_name(sets), pools=pools, roles=entries)


def run_section(config: Path, dtype: str, ranks: int, task: str, reward: str) -> RunConfig:
    """How such a job runs: random weights of a ``config.json``, CPU ranks of Ray, a made-up task."""
    from executor.run_config import parse_run

    return parse_run(
        {
            "weights": {"actor": str(config)},
            "dtype": dtype,
            "launcher": "ray",
            "cpu_ranks": ranks,
            "pin_cores": True,
            "data": {"task": task, "digits": 5, "alphabet": "0123456789=+"},
            "reward": {"function": reward},
            "learning": {"entropy_coefficient": 0.01},
        }
    )
