"""Small plans and jobs for executor tests."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from executor.run_config import RunConfig, parse_run
from profiles.workload import LengthDistribution, Workload
from simulator.facts import Implementation
from simulator.plan.dataflow import Dataflow, build_dataflow
from simulator.plan.plan import GenerationLayout, ParallelLayout, Plan, Pool, RolePlan, placement_name

if TYPE_CHECKING:
    from simulator.speculation import Speculation

EXAMPLES = Path(__file__).parents[2] / "examples" / "run"
TINY = EXAMPLES / "tiny-config.json"
ROLES = {
    "ppo": ("actor", "critic", "reference", "reward"),
    "remax": ("actor", "reference", "reward"),
    "grpo": ("actor",),
    "safe-rlhf": ("actor", "critic", "reference", "reward", "cost"),
    "dapo": ("actor",),
    "rloo": ("actor", "reference"),
    "reinforce++": ("actor", "reference"),
}

Layout = tuple[int, int, int]
"""(p, t, d)."""


@dataclass(frozen=True)
class JobFacts:
    """What a run reads of a job."""

    algorithm: str
    workload: Workload
    old_log_prob: str = "engine"
    implementation: Implementation = field(default_factory=Implementation)
    speculation: Speculation | None = None

    @property
    def dataflow(self) -> Dataflow:
        return build_dataflow(self.algorithm, ROLES[self.algorithm], self.old_log_prob == "trainer")


def job(
    algorithm: str,
    *,
    prompts: int = 8,
    samples: int = 1,
    response: int = 3,
    minibatches: int = 1,
    old_log_prob: str = "engine",
) -> JobFacts:
    work = Workload(prompts, samples, 4, LengthDistribution.fixed(response), 1, minibatches)
    return JobFacts(algorithm, work, old_log_prob)


def plan(
    algorithm: str,
    pools: dict[str, tuple[tuple[str, ...], Layout]],
    *,
    generation: tuple[int, int] | None = None,
    scoring: Layout | None = None,
    micro_batch: int = 4,
    zero_stage: int = 1,
) -> Plan:
    """Pools by name, each with its roles and the (p, t, d) of all of them.

    ``generation`` is the actor's (p_g, t_g), ``scoring`` the layout of all forward passes, where it is another one.
    """
    made, entries, first = [], [], 0
    flow = build_dataflow(algorithm, tuple(r for roles, _ in pools.values() for r in roles))
    for name, (roles, (p, t, d)) in pools.items():
        made.append(Pool(name=name, device="cpu", first_gpu=first, num_gpus=p * t * d, roles=roles))
        first += p * t * d
        for role in roles:
            layout = ParallelLayout(dp=d, tp=t, pp=p, micro_batch=micro_batch, zero_stage=zero_stage)
            ps, ts, ds = scoring or (p, t, d)
            forward = ParallelLayout(dp=ds, tp=ts, pp=ps, micro_batch=micro_batch)
            pg, tg = generation or (p, t)
            engine = GenerationLayout(dp=p * t * d // (pg * tg), tp=tg, pp=pg, max_num_seqs=64, kv_cache_bytes=0)
            entries.append(
                RolePlan(
                    role=role,
                    pool=name,
                    training=layout if flow.is_trained(role) else None,
                    inference=forward if any(call.kind == "forward" for call in flow.calls_of(role)) else None,
                    generation=engine if role == "actor" else None,
                )
            )
    return Plan(
        algorithm=algorithm,
        placement=placement_name(tuple(roles for roles, _ in pools.values())),
        pools=tuple(made),
        roles=tuple(entries),
    )


def colocated(algorithm: str, layout: Layout = (1, 1, 1), **options: object) -> Plan:
    return plan(algorithm, {"A": (ROLES[algorithm], layout)}, **options)  # type: ignore[arg-type]


def generating_apart(base: Plan, layout: Layout, schedule: str = "sync", steps: int = 1) -> Plan:
    """``base`` with one more pool, where the actor generates in ``layout`` (p, t, d)."""
    pg, tg, dg = layout
    pool = Pool(name="G", device="cpu", first_gpu=base.num_gpus, num_gpus=pg * tg * dg, roles=())
    made = GenerationLayout(dp=dg, tp=tg, pp=pg, max_num_seqs=64, kv_cache_bytes=0)
    actor = base.role("actor").model_copy(update={"generation": made, "generation_pool": "G"})
    roles = tuple(actor if entry.role == "actor" else entry for entry in base.roles)
    changes = {"pools": (*base.pools, pool), "roles": roles, "schedule": schedule, "steps_in_flight": steps}
    return base.model_copy(update=changes)


def config(weights: Path = TINY, **changes: object) -> RunConfig:
    document = {
        "weights": {"actor": str(weights)},
        "dtype": "fp32",
        "learning_rate": 1e-3,
        "seed": 1,
        "data": {"task": "sorted-digits", "digits": 4, "alphabet": "0123456789=+"},
        "reward": {"function": "per-character"},
        "cost": {"function": "first-is-even"},
    }
    return parse_run(document | changes)


def config_for_all_engines(folder: Path) -> Path:
    """The tiny model with what every engine takes: vLLM's CPU kernels want heads of 32."""
    changes = {
        "num_hidden_layers": 4,
        "head_dim": 32,
        "num_key_value_heads": 4,
        "bos_token_id": None,
        "eos_token_id": None,
    }
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(TINY.read_text()) | changes))
    return file


def metrics(folder: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def learned(line: dict[str, float]) -> dict[str, float]:
    """The metrics of an iteration that no clock decides."""
    timed = ("iteration_s", "tokens_per_s", "seconds/", "checkpoint/", "checks/")
    return {name: value for name, value in line.items() if not name.startswith(timed)}
