"""A run of another system as a job and a plan, from what its settings say; the other way round of an export."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hybridmap.exports.export import Source
from hybridmap.job.load import job_from_mapping
from profiles.engine_facts import engine_names
from profiles.errors import InputError
from profiles.store import device_called
from profiles.units import DTYPE_BYTES
from simulator.cost import engine_memory
from simulator.cost.speculation import draft_weight_bytes
from simulator.plan.layouts import GenerationLayouts
from simulator.plan.plan import GenerationLayout, ParallelLayout, Plan, Pool, RolePlan, placement_name

if TYPE_CHECKING:
    from hybridmap.job.job import Job
    from simulator.facts import Facts
    from simulator.plan.plan import Schedule

NOT_IN_SETTINGS = ("response_length", "prompt_tokens", "reward_s_per_sample", "pretrain_update")
"""What of a job's work no system's settings say."""


@dataclass(frozen=True)
class Given:
    """What no configuration says: the GPU, its network, and what lengths really are.

    ``device`` is a name of the catalogue, what people call it, or the path of a device folder.
    """

    device: str
    inter_node_gbps: float | None = None
    mean_response_length: int | None = None
    prompt_tokens: float | None = None
    models: Mapping[str, str] | None = None

    def __post_init__(self) -> None:
        if not Path(self.device).is_dir():
            name = device_called(self.device, "(or give the path of a device folder)")
            object.__setattr__(self, "device", name)


@dataclass(frozen=True)
class Imported:
    """The job and the plan of a run, and what could not be read as it is meant."""

    job: Job
    plan: Plan
    notes: tuple[str, ...]

    @property
    def source(self) -> Source:
        return Source(self.plan, self.job)


@dataclass(frozen=True)
class Engine:
    """The engines of a run: degrees of one, and the share of a GPU's memory that it takes.

    ``static_share``: whether that is of weights and cache alone, as SGLang's, or of the workspace too, as vLLM's.
    """

    tp: int
    pp: int = 1
    ep: int = 1
    attention_dp: int = 1
    max_num_seqs: int | None = None
    memory_share: float | None = None
    static_share: bool = False


@dataclass(frozen=True)
class Setup:
    """A run as its settings say it.

    Parameters
    ----------
    source
        The name of its file, for messages.
    algorithm, models
        As in a job; models by role.
    workload
        The keys of a job's ``workload`` that the settings say; ``response_length`` is the limit.
    gpus_per_node
        GPUs of a node.
    pools
        Roles and number of GPUs of each pool in the order of the GPUs; engines of their own have no roles.
    engines, implementation
        As in a job: engine families without a release.
    layouts
        Training and scoring layout of each role; ``None`` where it has none.
    engine
        The rollout engines.
    offload
        States in host memory by role.
    schedule, steps_in_flight, in_flight_updates
        As in a plan.
    drafts
        Tokens that its engines draft in a step; how many of them are kept no settings say.
    notes
        What is read another way than it is meant.
    """

    source: str
    algorithm: str
    models: Mapping[str, str | dict[str, str]]
    workload: Mapping[str, Any]
    gpus_per_node: int
    pools: tuple[tuple[tuple[str, ...], int], ...]
    engines: Mapping[str, str]
    implementation: Mapping[str, Any]
    layouts: Mapping[str, tuple[ParallelLayout | None, ParallelLayout | None]]
    engine: Engine
    offload: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    schedule: Schedule = "sync"
    steps_in_flight: int = 1
    in_flight_updates: bool = False
    drafts: int = 0
    notes: tuple[str, ...] = ()


def import_setup(setup: Setup, given: Given) -> Imported:
    """The job and the plan of a run; ``InputError`` for what a job cannot say."""
    gpus = sum(num for _, num in setup.pools)
    cluster: dict[str, Any] = {
        "device": given.device,
        "nodes": -(-gpus // setup.gpus_per_node),
        "gpus_per_node": setup.gpus_per_node,
    }
    if given.inter_node_gbps is not None:
        cluster["inter_node_gbps"] = given.inter_node_gbps
    work = dict(setup.workload)
    if given.mean_response_length is not None:
        longest = work["response_length"]
        work["response_length"] = {"distribution": "lognormal", "mean": given.mean_response_length, "max": longest}
    if given.prompt_tokens is not None:
        work["prompt_tokens"] = given.prompt_tokens
    document = {
        "algorithm": setup.algorithm,
        "models": {role: (given.models or {}).get(role, name) for role, name in setup.models.items()},
        "workload": work,
        "cluster": [cluster],
        "engines": {kind: newest(kind, name) for kind, name in setup.engines.items()},
        "implementation": dict(setup.implementation),
    }
    job = job_from_mapping(document, setup.source, Path())
    return Imported(job, plan_of(setup, job, job.facts().group.device), (*of_lengths(given, job), *setup.notes))


def setup_as_read(setup: Setup, source: Source) -> Source:
    """The run whose job is known: what no settings say comes from there, everything else from the settings."""
    known = source.job.document
    work = dict(setup.workload) | {k: known["workload"][k] for k in NOT_IN_SETTINGS if k in known["workload"]}
    sections: dict[str, Any] = {
        "algorithm": source.facts.algorithm,  # of several that one estimator stands for
        "models": {role: known["models"][role] for role in setup.models},
        "workload": {**known["workload"], **work},
        "implementation": {**known["implementation"], "packed_tokens": None, **setup.implementation},
    }
    if not setup.drafts:
        sections["speculation"] = None
    job = job_from_mapping({**known, **sections}, setup.source, Path())
    return drafting(Source(plan_of(setup, job, source.plan.pools[0].device), job), setup.drafts)


def drafting(source: Source, tokens: int) -> Source:
    """The run with what its settings say of drafts, where its job knows how many are kept."""
    return source if source.job.speculation is None else source.with_plan(draft_tokens=tokens)


def tokens_of(value: object) -> int:
    """Tokens of a draft in vLLM's ``speculative_config``, or in the setting that holds the number itself."""
    found = value.get("num_speculative_tokens") if isinstance(value, Mapping) else value
    return found if isinstance(found, int) else 0


def of_lengths(given: Given, job: Job) -> list[str]:
    """What is taken for lengths that no key says."""
    if given.mean_response_length is not None:
        return []
    longest = job.facts().workload.response.maximum
    return [
        f"every response is taken to reach the limit of {longest:,} tokens; most runs are far from it: give --log with "
        "a log of the run, or --mean-response-length"
    ]


def newest(kind: str, family: str) -> str:
    """The newest release of an engine that is known."""
    return [name for name in engine_names(kind) if name.split("@")[0] == family][-1]  # type: ignore[arg-type]


# Long by what a plan says: a line for each.
def plan_of(setup: Setup, job: Job, device: str) -> Plan:
    """The plan that a run's settings say."""
    facts, pools, first = job.facts(), list[Pool](), 0
    for letter, (roles, num) in zip("ABCDEFGH", setup.pools, strict=False):
        pools.append(Pool(name=letter, device=device, first_gpu=first, num_gpus=num, roles=roles))
        first += num
    home = {role: pool for pool in pools for role in pool.roles}
    own = next((pool for pool in pools if not pool.roles), None)
    entries = []
    for role in facts.dataflow.roles:
        training, inference = setup.layouts[role]
        generates = facts.dataflow.generates(role)
        scores = any(call.kind == "forward" for call in facts.dataflow.calls_of(role))
        entries.append(
            RolePlan(
                role=role,
                pool=home[role].name,
                training=training if facts.dataflow.is_trained(role) else None,
                inference=inference if scores else None,
                generation=_generation(setup, own or home[role], facts) if generates else None,
                generation_pool=own.name if own and generates else None,
                offload=setup.offload.get(role, ()),  # type: ignore[arg-type]
            )
        )
    return Plan(
        algorithm=facts.algorithm,
        placement=placement_name(tuple(pool.roles for pool in pools if pool.roles)),
        pools=tuple(pools),
        roles=tuple(entries),
        schedule=setup.schedule,
        steps_in_flight=setup.steps_in_flight,
        in_flight_updates=setup.in_flight_updates,
    )


def _generation(setup: Setup, pool: Pool, facts: Facts) -> GenerationLayout:
    engine = setup.engine
    replica = engine.tp * engine.pp
    if pool.num_gpus % replica:
        raise InputError(f"{setup.source}: {pool.num_gpus} GPUs do not divide into engines of {replica}")
    most = int(facts.generation.max_num_seqs)
    layout = GenerationLayout(
        dp=pool.num_gpus // replica,
        tp=engine.tp,
        pp=engine.pp,
        ep=engine.ep,
        attention_dp=engine.attention_dp,
        max_num_seqs=min(engine.max_num_seqs or most, most),
        kv_cache_bytes=0,
    )
    share = 0.9 if engine.memory_share is None else engine.memory_share
    return layout.model_copy(update={"kv_cache_bytes": cache_of_share(facts, layout, share, engine.static_share)})


def cache_of_share(facts: Facts, layout: GenerationLayout, share: float, static: bool = False) -> int:
    """What an engine's share of a GPU's memory leaves for its cache beside weights, drafts' and workspace, bytes."""
    spec, columns = facts.roles["actor"], GenerationLayouts.of([layout])
    precision = DTYPE_BYTES[spec.precision]
    weights = float(engine_memory.generation_weight_bytes(spec.shape, columns, precision)[0])
    if facts.speculation is not None:
        weights += float(draft_weight_bytes(facts, spec.shape, columns, precision)[0])
    workspace = 0.0 if static else float(engine_memory.generation_working_bytes(facts, spec.shape, columns)[0])
    return max(int(share * facts.memory_capacity_bytes - weights - workspace), 0)
