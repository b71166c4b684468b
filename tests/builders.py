"""Small builders for tests: facts of a job without a job file, hand-written plans, and made-up search instances."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np

from mapper.candidates.relaxation import Credit
from mapper.candidates.table import RoleTable
from mapper.candidates.weight_sync import WeightSync
from mapper.execution_mode import GENERATOR, SYNC, ExecutionMode, search_flow
from mapper.model.instance import Instance
from mapper.pins import Share
from mapper.problem import ColocationGroup, Sets, set_partitions
from profiles.engine_facts import load_generation_engine, load_training_engine
from profiles.hardware import ClusterGroup
from profiles.models.catalogue import load_model
from profiles.models.shape import ModelShape
from profiles.store import load_device
from profiles.workload import LengthDistribution, Workload
from simulator.cost.kv_budget import with_kv_budget
from simulator.cost.role_layouts import RoleLayouts
from simulator.facts import Facts, RoleSpec
from simulator.plan.algorithms import ALGORITHMS
from simulator.plan.dataflow import CONTROLLER, Call, Dataflow, build_dataflow
from simulator.plan.layouts import GenerationLayouts, Layouts
from simulator.plan.plan import GenerationLayout, ParallelLayout, Plan, Pool, RolePlan, placement_name

TINY = ModelShape(
    name="tiny",
    architecture="llama",
    hidden=1024,
    num_layers=8,
    vocab=32000,
    num_heads=8,
    num_kv_heads=4,
    head_dim=128,
    ffn=2816,
    max_position=4096,
)
"""A model small enough that one GPU holds four of it."""

MOE = "qwen1.5-moe-a2.7b"

RL_CELLS = {
    "id": "r",
    "row_kind": "step",
    "spec_level": "A",
    "system": "NeMo-RL v0.5.0",
    "gpu_kind": "H100-SXM-80GB",
    "num_gpus": "16",
    "gpus_per_node": "8",
    "model": "meta-llama/Llama-3.1-8B-Instruct",
    "algorithm": "GRPO",
    "train_backend": "Megatron-Core",
    "gen_backend": "vLLM",
    "precision_train": "BF16",
    "precision_gen": "BF16",
    "prompts_per_step": "64",
    "samples_per_prompt": "32",
    "max_seq_len": "4096",
    "max_response_len": "4096",
    "mean_prompt_len": "100",
    "mean_response_len": "1000",
    "train_tp": "1",
    "train_pp": "2",
    "gen_tp": "1",
    "micro_batch": "1",
    "logprob_micro_batch": "2",
    "global_batch": "512",
    "placement": "colocated",
    "schedule": "sync",
    "recompute": "full",
    "seq_packing": "on, 4096 tokens per micro-batch",
    "gen_gpu_mem_util": "0.6",
    "logprob_passes": "policy+reference",
    "step_time_s": "90",
}
"""A complete row of an RL table, of 2048 samples on two nodes."""


def workload(
    prompts: int = 1024,
    prompt_length: int = 1024,
    response: int | LengthDistribution = 1024,
    *,
    samples_per_prompt: int = 1,
    epochs: int = 1,
    minibatches: int = 8,
    prompt_tokens: float | None = None,
    reward_s_per_sample: float = 0.0,
) -> Workload:
    """The work of the HybridFlow paper's runs, unless told otherwise."""
    lengths = LengthDistribution.fixed(response) if isinstance(response, int) else response
    return Workload(
        prompts, samples_per_prompt, prompt_length, lengths, epochs, minibatches, reward_s_per_sample, prompt_tokens
    )


def make_facts(
    algorithm: str = "ppo",
    model: str | ModelShape = "llama-2-7b",
    *,
    nodes: int = 1,
    gpus_per_node: int = 8,
    roles: dict[str, str | ModelShape] | None = None,
    work: Workload | None = None,
    device: str = "a100-80gb-sxm",
    inter_node_bytes_per_s: float = 25e9,
    memory_bytes: int | None = None,
    training: str = "megatron-core@0.6",
    generation: str = "vllm@0.3.1",
    zero_stages: tuple[int, ...] | None = None,
    reserve_bytes: float | None = None,
) -> Facts:
    """Facts of a job: one model for every role of ``algorithm``, or ``roles`` by name; the paper's cluster."""
    record = ALGORITHMS[algorithm]
    usual = (*record.roles, *record.optional_roles) if algorithm in {"ppo", "remax"} else record.roles
    named = roles if roles is not None else dict.fromkeys(usual, model)
    specs = {role: RoleSpec(load_model(m) if isinstance(m, str) else m) for role, m in named.items()}
    profile = load_device(device)
    if memory_bytes is not None:
        profile = profile.with_spec(replace(profile.spec, memory_bytes=memory_bytes))
    trainer, engine = load_training_engine(training), load_generation_engine(generation)
    if zero_stages is not None:
        trainer = replace(trainer, zero_stages=zero_stages)
    if reserve_bytes is not None:
        trainer = replace(trainer, memory_reserve_bytes=reserve_bytes)
        engine = replace(engine, memory_reserve_bytes=0.0)  # in the trainer's process
    group = ClusterGroup(device, nodes, gpus_per_node, inter_node_bytes_per_s, gpus_per_node)
    return Facts(algorithm, specs, work or workload(), group, profile, trainer, engine)


def tiny_facts(
    algorithm: str = "ppo", gpus: int = 2, memory_gib: float = 8.0, roles: dict[str, str | ModelShape] | None = None
) -> Facts:
    """A job of ``TINY`` models on one node, small enough for brute force, short of memory on purpose."""
    return make_facts(
        algorithm,
        TINY,
        gpus_per_node=gpus,
        memory_bytes=int(memory_gib * 2**30),
        roles=roles,
        reserve_bytes=1e9,
        work=workload(16, 512, 512, minibatches=2),
    )


def make_plan(facts: Facts, sets: Sets, sizes: tuple[int, ...], *, tp: int = 1, slots: int = 8) -> Plan:
    """A plain plan: every role in plain data and tensor parallelism on its pool, pools one after another."""
    pools, entries, first = [], [], 0
    for i, (roles, n) in enumerate(zip(sets, sizes, strict=True)):
        name = "ABCDE"[i]
        pools.append(Pool(name=name, device=facts.group.device, first_gpu=first, num_gpus=n, roles=roles))
        entries += [_role_plan(facts, role, name, n, tp, slots) for role in roles]
        first += n
    return Plan(
        algorithm=facts.algorithm,
        placement=placement_name(sets),
        pools=tuple(pools),
        roles=tuple(sorted(entries, key=lambda e: facts.dataflow.roles.index(e.role))),
    )


def _role_plan(facts: Facts, role: str, pool: str, num_gpus: int, tp: int, slots: int) -> RolePlan:
    kinds = {call.kind for call in facts.dataflow.calls_of(role)}
    layout = ParallelLayout(dp=num_gpus // tp, tp=tp, zero_stage=1 if "train" in kinds else 0, recompute="full")
    plain = layout.model_copy(update={"recompute": "none"})
    return RolePlan(
        role=role,
        pool=pool,
        training=layout if "train" in kinds else None,
        inference=plain if "forward" in kinds else None,
        generation=engine_layout(facts, role, num_gpus // tp, tp, slots=slots) if "generate" in kinds else None,
    )


def engine_layout(facts: Facts, role: str, dp: int, tp: int, pp: int = 1, slots: int = 8) -> GenerationLayout:
    """A generation layout with exactly the KV budget that its engine is given."""
    bare = GenerationLayouts(*np.asarray([[dp], [tp], [pp], [slots]], dtype=np.int64))
    return with_kv_budget(facts, facts.roles[role].shape, bare).record(0)


def replace_role(plan: Plan, role: str, **changes: object) -> Plan:
    """``plan`` with fields of one role's entry replaced."""
    roles = tuple(e.model_copy(update=changes) if e.role == role else e for e in plan.roles)
    return plan.model_copy(update={"roles": roles})


def with_engine_pool(plan: Plan, num_gpus: int, **changes: object) -> Plan:
    """``plan`` whose actor generates on ``num_gpus`` GPUs of its own, pool ``G`` behind the others."""
    engine = plan.role("actor").generation
    assert engine is not None, "the actor generates"
    last = max(pool.first_gpu + pool.num_gpus for pool in plan.pools)
    pool = Pool(name="G", device=plan.pools[0].device, first_gpu=last, num_gpus=num_gpus, roles=())
    spread = engine.model_copy(update={"dp": num_gpus // (engine.tp * engine.pp)})
    moved = replace_role(plan, "actor", generation_pool="G", generation=spread)
    return moved.model_copy(update={"pools": (*plan.pools, pool), **changes})


def toy_instance(
    algorithm: str,
    roles: tuple[str, ...],
    seed: int,
    *,
    num_gpus: int = 4,
    sizes: tuple[int, ...] = (1, 2, 4),
    most_rows: int = 3,
    capacity_mib: int = 24,
    equal_sizes: bool = False,
    second_kind: int = 0,
    mode: ExecutionMode = SYNC,
) -> Instance:
    """A search instance of random small integers: every placement, a few made-up configurations per kind and size.

    ``second_kind``: GPUs of another kind, with two thirds of the memory.
    """
    rng = np.random.default_rng(seed)
    flow = search_flow(build_dataflow(algorithm, roles), mode)
    gpus_of = {TOY: num_gpus} | ({OTHER: second_kind} if second_kind else {})
    tables, ticks, resident, transient = {}, {}, {}, {}
    for role in flow.roles:
        counts = rng.integers(1, most_rows + 1, (len(gpus_of), len(sizes)))
        gpus = np.concatenate([np.repeat(np.asarray(sizes, dtype=np.int64), row) for row in counts])
        own = {c.key: rng.integers(0, 30, len(gpus)) for c in flow.calls_of(role)}
        if role == GENERATOR:
            own["transition"] = rng.integers(0, 30, len(gpus))
        device_type = np.repeat(np.arange(len(gpus_of)), counts.sum(axis=1))
        tables[role] = toy_table(role, gpus, own, device_type)
        ticks[role] = own
        resident[role] = rng.integers(0, 10, len(gpus))
        transient[role] = rng.integers(0, 10, len(gpus))
    beside = {c.key for c in flow.calls if c.role == CONTROLLER and c.kind == "controller"}
    ticks[CONTROLLER] = {key: rng.integers(0, 4, 1) for key in sorted(beside)}
    apart = Share(("actor", GENERATOR), wanted=False)
    partitions = tuple(
        tuple(ColocationGroup(r, device_type) for r, device_type in zip(p, chosen, strict=True))
        for p in set_partitions(flow.roles)
        if not mode.dedicated_rollout or apart.allows(p)
        for chosen in product(gpus_of, repeat=len(p))
    )
    groups = dict.fromkeys(g for p in partitions for g in p)
    return Instance(
        flow=flow,
        partitions=partitions,
        device_types=tuple(gpus_of),
        sizes=dict.fromkeys(groups, sizes),
        gpus=gpus_of,
        weight=dict.fromkeys(gpus_of, 1),
        budget=sum(gpus_of.values()),
        equal_sizes=equal_sizes,
        tables=tables,
        ticks=ticks,
        resident_mib=resident,
        transient_mib=transient,
        capacity_mib={TOY: capacity_mib} | ({OTHER: capacity_mib * 2 // 3} if second_kind else {}),
        tick_s=1.0,
        sync=ToySync() if mode.dedicated_rollout else None,
    )


TOY, OTHER = "toy", "other"
"""Kinds of GPU of made-up instances."""


def on_toy(*sets: tuple[str, ...]) -> tuple[ColocationGroup, ...]:
    """The placement of ``sets`` on GPUs of the one made-up kind."""
    return tuple(ColocationGroup(roles, TOY) for roles in sets)


class ToySync(WeightSync):
    """Transfers at made-up prices that depend on both ends: they grow with the senders, and differ by kind."""

    def __init__(self) -> None:
        pass

    def ticks(self, table: RoleTable, device_type: str, senders: int) -> np.ndarray:
        return np.asarray(
            table.durations_s["transition"] + 3 * senders + 7 * (device_type == OTHER) * table.device_type, np.int64
        )

    def least(self, table: RoleTable, device_type: str, senders: np.ndarray) -> np.ndarray:
        return self.ticks(table, device_type, int(senders.min()))


def on_gpus(instance: Instance, num_gpus: int) -> Instance:
    """A made-up instance of one kind with another number of GPUs."""
    return replace(instance, gpus={TOY: num_gpus}, budget=num_gpus)


def toy_table(
    role: str, gpus: np.ndarray, durations: dict[str, np.ndarray], device_type: np.ndarray | None = None
) -> RoleTable:
    """A candidate table whose weights are spread by data parallelism alone."""
    nothing, one = np.zeros(len(gpus)), np.ones(len(gpus), dtype=np.int64)
    seconds = {key: value.astype(np.float64) for key, value in durations.items()}
    weights = RoleLayouts(training=Layouts(gpus, one, one, one, one, one, one, 0 * one))
    return RoleTable(
        role,
        0 * gpus if device_type is None else device_type,
        gpus,
        seconds,
        nothing,
        nothing,
        weights,
        len(gpus),
        0 * gpus,
        Credit.none(len(gpus)),
    )


def call_of(flow: Dataflow, key: str) -> Call:
    """The call of that key."""
    return flow.calls[flow.index(key)]
