"""Candidate tables: for each role, every configuration on every pool size, priced, filtered and pruned."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from mapper import layout_space
from mapper.pareto import non_dominated
from profiles.units import DTYPE_BYTES, MIB
from simulator import generation, memory, pricing, resharding
from simulator.layouts import GenerationLayouts, Layouts
from simulator.plan import GenerationLayout, ParallelLayout
from simulator.pricing import RoleLayouts

if TYPE_CHECKING:
    from mapper.problem import Problem
    from profiles.records import Floats, Ints
    from simulator.dataflow import Call
    from simulator.facts import Facts

RECOMPUTE_INDICES = (0, 1, 2)


@dataclass(frozen=True, eq=False)
class RoleTable:
    """Configurations of one role, one per row ``[C]``, for all pool sizes together.

    Parameters
    ----------
    num_gpus
        Pool size that the row is for.
    durations_s
        Seconds of each of the role's calls, by call key.
    resident_bytes, transient_bytes
        What the role keeps on each GPU, and the most that one of its calls adds.
    layouts
        The layouts themselves, row by row; ``kv_bytes`` the KV budget where the role generates.
    num_priced
        Configurations priced before filtering and pruning.
    """

    role: str
    num_gpus: Ints
    durations_s: dict[str, Floats]
    resident_bytes: Floats
    transient_bytes: Floats
    layouts: RoleLayouts
    kv_bytes: Floats
    num_priced: int

    def __len__(self) -> int:
        return len(self.num_gpus)

    def take(self, index: Ints) -> RoleTable:
        """The rows at ``index``."""
        x = self.layouts
        return replace(
            self,
            num_gpus=self.num_gpus[index],
            durations_s={key: value[index] for key, value in self.durations_s.items()},
            resident_bytes=self.resident_bytes[index],
            transient_bytes=self.transient_bytes[index],
            layouts=RoleLayouts(
                x.training.take(index) if x.training else None,
                x.inference.take(index) if x.inference else None,
                x.generation.take(index) if x.generation else None,
            ),
            kv_bytes=self.kv_bytes[index],
        )

    def records(self, row: int) -> tuple[ParallelLayout | None, ParallelLayout | None, GenerationLayout | None]:
        """The row's training, inference and generation layouts as a plan carries them."""
        x, made = self.layouts, None
        if x.generation is not None:
            made = GenerationLayout(
                dp=int(x.generation.dp[row]), tp=int(x.generation.tp[row]), pp=int(x.generation.pp[row]),
                max_num_seqs=int(x.generation.max_num_seqs[row]), kv_cache_bytes=int(np.ceil(self.kv_bytes[row])),
            )  # fmt: skip
        return (x.training.record(row) if x.training else None, x.inference.record(row) if x.inference else None, made)


def role_table(problem: Problem, role: str, prune: bool = True) -> RoleTable:
    """Price every configuration of ``role`` on every pool size; drop what cannot fit alone and what is dominated."""
    facts = problem.facts
    table = _weights_table(facts, role, problem.sizes)
    if facts.dataflow.generates(role):
        table = _with_generation(facts, role, problem.sizes, table, prune)
    fits = (
        table.resident_bytes + table.transient_bytes + facts.generation.memory_reserve_bytes
        <= facts.memory_capacity_bytes
    )
    table = table.take(np.flatnonzero(fits))
    return table.take(_pruned(table)) if prune else table


def _weights_table(facts: Facts, role: str, sizes: tuple[int, ...]) -> RoleTable:
    """Training and inference configurations, without generation."""
    flow, spec = facts.dataflow, facts.roles[role]
    kinds = {call.kind: call for call in flow.calls_of(role)}
    trained = "train" in kinds
    samples = facts.workload.minibatch_samples if trained else facts.workload.num_samples
    spread = [(n, x) for n in sizes for x in layout_space.degrees(facts, spec.shape, n, samples)]
    degrees = [x for _, x in spread]
    per_rank = np.asarray([-(-samples // x[0]) for x in degrees], dtype=np.int64)
    scored_per_rank = np.asarray([-(-facts.workload.num_samples // x[0]) for x in degrees], dtype=np.int64)
    zero = facts.training.zero_stages if trained else tuple(z for z in facts.training.zero_stages if z == 3) or (0,)
    inference, scored_owner = layout_space.cross(degrees, zero, (0,), scored_per_rank)
    priced: dict[str, tuple[Layouts, Ints, Floats, Floats]] = {}
    if trained:
        training, owner = layout_space.cross(degrees, zero, RECOMPUTE_INDICES, per_rank)
        priced["train"] = _priced(facts, kinds["train"], RoleLayouts(training=training), training, owner)
    if "forward" in kinds:
        priced["forward"] = _priced(facts, kinds["forward"], RoleLayouts(inference=inference), inference, scored_owner)
    gpus = np.asarray([n for n, _ in spread], dtype=np.int64)
    return _joined(facts, role, priced, gpus)


def _priced(
    facts: Facts, call: Call, layouts: RoleLayouts, columns: Layouts, owner: Ints
) -> tuple[Layouts, Ints, Floats, Floats]:
    """Layouts, owners, seconds and transient bytes of a call, without those that another of its owner dominates."""
    shape, logits = facts.roles[call.role].shape, pricing.head_of(call.role) == "lm"
    if call.kind == "train":
        need = memory.total(memory.training_bytes(facts, shape, columns, logits))
    else:
        need = memory.total(memory.inference_bytes(facts, shape, columns, logits))
    fits = np.flatnonzero(need + facts.generation.memory_reserve_bytes <= facts.memory_capacity_bytes)
    columns, owner, need = columns.take(fits), owner[fits], need[fits]
    seconds = pricing.call_cost(
        facts, call, replace(layouts, **{"training" if call.kind == "train" else "inference": columns})
    ).time.s
    kept = [
        rows[non_dominated(np.stack([seconds[rows], need[rows]], axis=1))]
        for rows in _by_group(owner * 4 + columns.zero_stage)
    ]
    index = np.sort(np.concatenate(kept)) if kept else np.zeros(0, dtype=np.int64)
    return columns.take(index), owner[index], seconds[index], need[index]


def _joined(facts: Facts, role: str, priced: dict[str, tuple[Layouts, Ints, Floats, Floats]], gpus: Ints) -> RoleTable:
    """Pair training and inference rows that spread the weights alike."""
    flow, spec = facts.dataflow, facts.roles[role]
    if len(priced) == 1:
        (_layouts, owner, _, _), left, right = next(iter(priced.values())), None, None
        rows = np.arange(len(owner))
        left = right = rows
    else:
        left, right = _pairs(
            priced["train"][1] * 4 + priced["train"][0].zero_stage,
            priced["forward"][1] * 4 + priced["forward"][0].zero_stage,
        )
        owner = priced["train"][1][left]
    train = priced.get("train")
    forward = priced.get("forward")
    weights = (train or forward)[0].take(left)  # type: ignore[index]
    durations, needs = {}, []
    for call in flow.calls_of(role):
        if call.kind == "train" and train is not None:
            durations[call.key] = train[2][left]
        elif call.kind == "forward" and forward is not None:
            durations[call.key] = forward[2][right]
    needs = [x[3][i] for x, i in ((train, left), (forward, right)) if x is not None]
    resident = memory.resident_bytes(facts, spec.shape, pricing.head_of(role), weights, flow.is_trained(role))
    if len(priced) == 2:
        owner = owner
    return RoleTable(
        role=role,
        num_gpus=gpus[owner],
        durations_s=durations,
        resident_bytes=memory.total(resident),
        transient_bytes=np.max(needs, axis=0),
        layouts=RoleLayouts(
            training=weights if train is not None else None,
            inference=forward[0].take(right) if forward is not None else None,
        ),
        kv_bytes=np.zeros(len(owner)),
        num_priced=sum(len(x[1]) for x in priced.values()),
    )


def _with_generation(facts: Facts, role: str, sizes: tuple[int, ...], table: RoleTable, prune: bool) -> RoleTable:
    """Pair every weights configuration with every engine configuration of the same pool size."""
    spec, flow = facts.roles[role], facts.dataflow
    parts = [layout_space.generation_layouts(facts, spec.shape, n) for n in sizes]
    engine = GenerationLayouts(
        *(np.concatenate([getattr(x, f) for x in parts]) for f in ("dp", "tp", "pp", "max_num_seqs"))
    )
    copy = memory.generation_weight_bytes(spec.shape, engine, DTYPE_BYTES[spec.precision])
    kv = generation.kv_cache_bytes(facts, spec.shape, engine)
    work = memory.generation_working_bytes(facts, spec.shape, engine)
    room = facts.memory_capacity_bytes - facts.generation.memory_reserve_bytes
    index = np.flatnonzero(kv + work <= room)
    engine, copy, kv, work = engine.take(index), copy[index], kv[index], work[index]
    seconds = generation.generation_cost(facts, spec.shape, engine, spec.precision).time.s
    if prune:
        key = (engine.num_gpus * 1024 + engine.tp) * 1024 + engine.pp
        kept = [r[non_dominated(np.stack([seconds[r], kv[r] + work[r]], axis=1))] for r in _by_group(key)]
        index = np.sort(np.concatenate(kept)) if kept else np.zeros(0, dtype=np.int64)
        engine, copy, kv, work, seconds = engine.take(index), copy[index], kv[index], work[index], seconds[index]
        table = table.take(_pruned(table, keep_apart=True))
    left, right = _pairs(table.num_gpus, engine.num_gpus)
    paired, chosen = table.take(left), engine.take(right)
    training = paired.layouts.weights
    same = (training.tp == chosen.tp) & (training.pp == chosen.pp) & (training.zero_stage < 3)
    transition = resharding.transition_cost(facts, spec.shape, training, chosen, spec.precision).time.s
    durations = dict(paired.durations_s)
    for call in flow.calls_of(role):
        if call.kind == "transition":
            durations[call.key] = transition
        elif call.kind == "generate":
            durations[call.key] = seconds[right]
    need = np.where(same, 0.0, copy[right]) + kv[right] + work[right]
    return replace(
        paired,
        durations_s=durations,
        transient_bytes=np.maximum(paired.transient_bytes, need),
        layouts=replace(paired.layouts, generation=chosen),
        kv_bytes=kv[right],
        num_priced=paired.num_priced + len(engine) + len(left),
    )


def _pruned(table: RoleTable, keep_apart: bool = False) -> Ints:
    """Rows that no other row of the same pool size dominates in every call's time and both memory needs.

    ``keep_apart`` compares only rows of equal tensor and pipeline degrees, which the transition depends on.
    """
    columns = [*_merged_durations(table), table.resident_bytes, table.transient_bytes]
    values = np.stack(columns, axis=1)
    key = table.num_gpus
    if keep_apart:
        weights = table.layouts.weights
        key = ((key * 1024 + weights.tp) * 1024 + weights.pp) * 64 + weights.cp * 4 + weights.zero_stage
    kept = [rows[non_dominated(values[rows])] for rows in _by_group(key)]
    return np.sort(np.concatenate(kept)) if kept else np.zeros(0, dtype=np.int64)


def _merged_durations(table: RoleTable) -> list[Floats]:
    """Durations by call, the transition added to the generation that always follows it directly on the same pool."""
    out = {key: value for key, value in table.durations_s.items() if key != "transition"}
    if "transition" in table.durations_s:
        out["generate_sequences"] = out["generate_sequences"] + table.durations_s["transition"]
    return list(out.values())


def _by_group(key: Ints) -> list[Ints]:
    """Row indices by equal key."""
    order = np.argsort(key, kind="stable")
    cuts = np.flatnonzero(np.diff(key[order])) + 1
    return [part for part in np.split(order, cuts) if len(part)]


def _pairs(left: Ints, right: Ints) -> tuple[Ints, Ints]:
    """Index pairs ``(i, j)`` with ``left[i] == right[j]``."""
    at: dict[int, list[int]] = {}
    for j, key in enumerate(right.tolist()):
        at.setdefault(key, []).append(j)
    pairs = [(i, j) for i, key in enumerate(left.tolist()) for j in at.get(key, ())]
    array = np.asarray(pairs, dtype=np.int64).reshape(-1, 2)
    return array[:, 0], array[:, 1]


def to_mib(num_bytes: Floats) -> Ints:
    """Whole MiB, rounded up, so that what fits in MiB fits in bytes."""
    return np.asarray(np.ceil(num_bytes / MIB), dtype=np.int64)
