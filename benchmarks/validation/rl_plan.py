"""The plan that a published RL iteration ran with."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from benchmarks.validation.names import NotPredicted, integer, is_empty, number, per_rank, text_of
from benchmarks.validation.rl_work import gpus_of, is_separate
from benchmarks.validation.trainers import recompute_of, zero_stage
from profiles.units import DTYPE_BYTES
from simulator.cost import engine_memory
from simulator.feasibility import check_plan
from simulator.plan.layouts import GenerationLayouts
from simulator.plan.plan import GenerationLayout, ParallelLayout, Plan, Pool, RolePlan, Schedule, placement_name

if TYPE_CHECKING:
    from collections.abc import Mapping

    from simulator.facts import Facts
    from simulator.plan.plan import Offload

DEFAULT_MEMORY_SHARE = 0.6
"""Share of GPU memory that colocated engines are given where a row does not say."""


def given_plan(cells: Mapping[str, Any], facts: Facts, assumed: list[str]) -> Plan:
    """Pools, layouts and schedule of a row; ``NotPredicted`` where degrees and GPUs do not agree."""
    num_gpus = gpus_of(cells)
    separate = is_separate(cells)
    schedule, steps = schedule_of(text_of(cells.get("schedule")))
    if schedule != "sync" and not separate:
        raise NotPredicted(f"a {schedule} schedule on colocated GPUs")
    train_gpus = integer(cells.get("train_gpus"), num_gpus // 2 if separate else num_gpus)
    gen_gpus = integer(cells.get("gen_gpus"), num_gpus - train_gpus if separate else num_gpus)
    trained = _trained(cells, facts, train_gpus, assumed)
    engine = _engine(cells, facts, gen_gpus, assumed)
    roles = facts.dataflow.roles
    pools = [Pool(name="A", device=facts.group.device, first_gpu=0, num_gpus=train_gpus, roles=roles)]
    if separate:
        pools.append(Pool(name="G", device=facts.group.device, first_gpu=train_gpus, num_gpus=gen_gpus, roles=()))
    plan = Plan(
        algorithm=facts.algorithm,
        placement=placement_name((roles,)),
        pools=tuple(pools),
        schedule=schedule,
        steps_in_flight=steps,
        in_flight_updates=False,  # an engine takes no step while it takes weights in
        roles=tuple(_role(cells, facts, role, trained, engine, separate) for role in roles),
    )
    # What fits and how finely nodes are cut the run has shown; what does not add up is a mistake of the row.
    broken = [v.message for v in check_plan(plan, facts) if v.rule not in ("memory", "granularity")]
    if broken:
        raise NotPredicted(f"the plan that the row states cannot run: {'; '.join(broken)}")
    return plan


def schedule_of(words: str) -> tuple[Schedule, int]:
    """``(schedule, steps in flight)`` by the words of a table."""
    text = words.lower()
    if not text or text.startswith("sync"):
        return "sync", 1
    if re.search(r"one|1[- ]?(step|off)", text):
        return "one-step-off", 1
    if not re.search(r"async|off|stale|step", text):
        raise NotPredicted(f"no schedule known for '{words}'")
    number_of = re.search(r"(\d+)", text)
    return "async", max(1, int(number_of.group(1))) if number_of else 2


def _role(
    cells: Mapping[str, Any], facts: Facts, role: str, trained: ParallelLayout, engine: GenerationLayout, separate: bool
) -> RolePlan:
    calls = {call.kind for call in facts.dataflow.calls_of(role)}
    scoring = per_rank(cells.get("logprob_micro_batch"), trained.dp, trained.micro_batch)
    scored = trained.model_copy(update={"micro_batch": scoring, "recompute": "none"})
    generates = "generate" in calls
    own = re.search(r"critic micro-batch (\d+)", text_of(cells.get("notes")).lower()) if role == "critic" else None
    if own:  # of its update; its values are scored in the same
        trained = trained.model_copy(update={"micro_batch": int(own[1])})
        scored = scored.model_copy(update={"micro_batch": int(own[1])})
    return RolePlan(
        role=role,
        pool="A",
        training=trained if "train" in calls else None,
        inference=scored if "forward" in calls else None,
        generation=engine if generates else None,
        generation_pool="G" if generates and separate else None,
        offload=offload_of(cells, role, separate),
    )


def offload_of(cells: Mapping[str, Any], role: str, separate: bool) -> tuple[Offload, ...]:
    """What a role leaves in host memory.

    NeMo-RL empties the GPU before a colocated engine wakes and keeps the reference's weights on the host; other
    systems do what the row says.
    """
    words = text_of(cells.get("offload")).lower()
    if "nemo" in text_of(cells.get("system")).lower():
        if role == "reference":
            return ("swap",)
        return () if separate else ("parameters", "optimizer")
    if role == "reference":
        return ("parameters",) if re.search(r"ref\w*[^;,]*offload", words) else ()
    if re.search(r"actor[^;,]*not|no offload|none|false", words):
        return ()
    asked: list[Offload] = []
    if re.search(r"param", words) and not re.search(r"ref\w*[^;,]*param", words):
        asked.append("parameters")
    if "optim" in words:
        asked.append("optimizer")
    return tuple(asked)


def _trained(cells: Mapping[str, Any], facts: Facts, num_gpus: int, assumed: list[str]) -> ParallelLayout:
    if is_empty(cells.get("train_tp")) and num_gpus > 1:
        raise NotPredicted("the trainer's layout is not stated")
    tp, pp, cp, ep, vpp = (integer(cells.get(f"train_{name}"), 1) for name in ("tp", "pp", "cp", "ep", "vpp"))
    if num_gpus % (tp * pp * cp):
        raise NotPredicted(f"training tp {tp} x pp {pp} x cp {cp} does not divide {num_gpus} GPUs")
    level, words = recompute_of(text_of(cells.get("recompute")))
    if words:
        assumed.append(words)
    zero: Literal[1, 2, 3] = 3 if facts.training.zero_stages == (3,) else 1
    if facts.training.name.startswith("deepspeed"):
        zero = zero_stage(text_of(cells.get("train_backend")))
    return ParallelLayout(
        dp=num_gpus // (tp * pp * cp),
        tp=tp,
        pp=pp,
        cp=cp,
        ep=ep,
        vpp=vpp,
        zero_stage=zero,
        micro_batch=per_rank(cells.get("micro_batch"), num_gpus // (tp * pp * cp), 1),
        recompute=level,
    )


def _engine(cells: Mapping[str, Any], facts: Facts, num_gpus: int, assumed: list[str]) -> GenerationLayout:
    tp, pp, ep = (integer(cells.get(f"gen_{name}"), 1) for name in ("tp", "pp", "ep"))
    if num_gpus % (tp * pp):
        raise NotPredicted(f"generation tp {tp} x pp {pp} does not divide {num_gpus} GPUs")
    share = number(text_of(cells.get("gen_gpu_mem_util")).rstrip("%"))
    if share is not None and 1 < share <= 100:
        share /= 100  # per cent
    if share is None:
        share = DEFAULT_MEMORY_SHARE
        assumed.append(f"engine memory share not stated: {share}")
    if not 0 < share <= 1:
        raise NotPredicted(f"the engine's memory share is {share:g}, it must lie between 0 and 1")
    spec = facts.roles["actor"]
    layout = GenerationLayout(
        dp=num_gpus // (tp * pp), tp=tp, pp=pp, ep=ep, max_num_seqs=int(facts.generation.max_num_seqs), kv_cache_bytes=0
    )
    columns = GenerationLayouts.of([layout])
    weights = engine_memory.generation_weight_bytes(spec.shape, columns, DTYPE_BYTES[spec.precision])
    work = engine_memory.generation_working_bytes(facts, spec.shape, columns)
    room = share * facts.memory_capacity_bytes - float(np.sum(weights + work)) - facts.generation.memory_reserve_bytes
    if room <= 0:
        raise NotPredicted(f"{share:.0%} of a GPU does not hold the engine's weights")
    return layout.model_copy(update={"kv_cache_bytes": int(room)})
