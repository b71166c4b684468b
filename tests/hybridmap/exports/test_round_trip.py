"""Protects that exports lose nothing: the files of any plan, read back as their system reads them, are the plan that
was said to be written, field by field, and take its time."""

import random

import pytest

from hybridmap.exports.export import Source
from hybridmap.exports.systems import SYSTEMS, WRITTEN, export_plan
from hybridmap.exports.target_rules import FOLLOWED
from hybridmap.files.plan import PlanFile
from hybridmap.job.load import job_from_document
from profiles.errors import HybridmapError, InputError
from simulator.feasibility import check_plan
from simulator.plan.plan import GenerationLayout, ParallelLayout, Plan, Pool, RolePlan, TokenBudget, placement_name
from simulator.play.simulate import simulate

MODELS = ("qwen2.5-1.5b", "llama-3.2-1b", "qwen3-4b", "qwen3-30b-a3b")
GIB = 1 << 30


def drawn_job(draw):
    """A job of any algorithm that some system runs, on one to four nodes."""
    algorithm = draw.choice(("grpo", "grpo", "dapo", "rloo", "reinforce++", "ppo"))
    roles = ["actor", *(["critic"] if algorithm == "ppo" else [])]
    roles += ["reference"] if algorithm != "dapo" and draw.random() < 0.6 else []
    model = draw.choice(MODELS)
    lengths = {"distribution": "lognormal", "mean": draw.choice((300, 900)), "max": 2048}
    return job_from_document(
        {
            "algorithm": algorithm,
            "models": dict.fromkeys(roles, model),
            "workload": {
                "prompts": draw.choice((64, 128, 256)),
                "samples_per_prompt": draw.choice((2, 4, 8)),
                "prompt_length": draw.choice((256, 1024)),
                "response_length": draw.choice((1024, lengths)),
                "minibatches": draw.choice((1, 2, 4)),
            },
            "cluster": [{"device": draw.choice(("h100-80gb-sxm", "a100-80gb-sxm")), "nodes": draw.choice((1, 2, 4))}],
            "engines": {"training": draw.choice(("megatron-core@0.16", "fsdp@2.13"))},
            "implementation": {
                "old_log_prob": draw.choice((None, "trainer", "engine")),
                "lora_rank": draw.choice((0, 0, 0, 16)),
            },
        }
    )


def drawn_source(seed):
    """A plan that fits, drawn and not searched; ``None`` for a draw that does not."""
    draw = random.Random(seed)
    try:
        job = drawn_job(draw)
        source = Source(drawn_plan(draw, job), job)
        return source if not check_plan(source.plan, source.facts) else None
    except HybridmapError:
        return None


def drawn_plan(draw, job):
    facts = job.facts()
    gpus = facts.group.num_gpus
    apart = gpus > 8 and draw.random() < 0.3
    size = gpus // 2 if apart else gpus
    roles = facts.dataflow.roles
    fsdp = str(job.engines.training).startswith("fsdp")
    shared = drawn_layout(draw, size, fsdp, facts.roles["actor"].shape.moe is not None)
    tp = draw.choice((1, 2, 4))
    engine = GenerationLayout(
        dp=(gpus - size if apart else gpus) // tp,
        tp=tp,
        max_num_seqs=draw.choice((32, 64, 128)),
        kv_cache_bytes=draw.choice((4, 8, 16)) * GIB + draw.randrange(1 << 20),
    )
    entries = []
    for role in roles:
        kinds = {call.kind for call in facts.dataflow.calls_of(role)}
        entries.append(
            RolePlan(
                role=role,
                pool="A",
                training=shared if "train" in kinds else None,
                inference=shared.model_copy(update={"recompute": "none"}) if "forward" in kinds else None,
                generation=engine if role == "actor" else None,
                generation_pool="B" if apart and role == "actor" else None,
            )
        )
    pools = [Pool(name="A", device=job.cluster[0].device, first_gpu=0, num_gpus=size, roles=roles)]
    if apart:
        pools.append(Pool(name="B", device=job.cluster[0].device, first_gpu=size, num_gpus=gpus - size, roles=()))
    return Plan(
        algorithm=job.algorithm,
        placement=placement_name((roles,)),
        pools=tuple(pools),
        roles=tuple(entries),
        schedule=draw.choice(("sync", "one-step-off")) if apart else "sync",
    )


def drawn_layout(draw, gpus, fsdp, mixture):
    tp = 1 if fsdp else draw.choice((1, 2, 4))
    pp = 1 if fsdp else draw.choice((1, 1, 2))
    cp = draw.choice((1, 1, 2))
    dp = max(gpus // (tp * pp * cp), 1)  # more ranks than there are do not fit, which the draw then is
    tokens = TokenBudget(tokens=draw.choice((4096, 8192)) * cp)
    return ParallelLayout(
        tp=tp,
        pp=pp,
        cp=cp,
        dp=dp,
        ep=draw.choice((1, min(8, dp))) if mixture and not fsdp else 1,
        zero_stage=3 if fsdp else 1,
        micro_batch=draw.choice((1, 2, 4, tokens)),
        recompute=draw.choice(("none", "full")),
    )


def laid_out(plan):
    """Roles and layouts, with the roles of a pool in place of its letter."""
    return [
        entry.model_copy(
            update={"pool": ", ".join(plan.pool_of(entry.role).roles), "generation_pool": entry.separate_generation}
        )
        for entry in plan.roles
    ]


def require_lossless(source, system):
    """Write, read, compare; whether there was anything to write."""
    file = PlanFile.model_construct(plan=source.plan, job=source.job.document)
    try:
        ours, _ = FOLLOWED[system](source)
    except InputError:
        return False
    export = export_plan(file, "drawn", system)
    name = next(name for name in export.files if name in WRITTEN)
    back = WRITTEN[name](export.files[name], name, ours)
    assert laid_out(back.plan) == laid_out(ours.plan)
    assert {pool.roles: pool.num_gpus for pool in back.plan.pools} == {
        pool.roles: pool.num_gpus for pool in ours.plan.pools
    }
    assert (back.plan.schedule, back.plan.steps_in_flight) == (ours.plan.schedule, ours.plan.steps_in_flight)
    assert back.facts.workload == ours.facts.workload
    assert check_plan(back.plan, back.facts) == []
    time_s = simulate(back.plan, back.facts).iteration_s
    assert time_s == pytest.approx(ours.iteration_s(), rel=1e-3)
    assert export.times.written_s == time_s
    return True


def round_trips(seeds):
    written = dict.fromkeys(SYSTEMS, 0)
    for seed in seeds:
        source = drawn_source(seed)
        if source is not None:
            for system in SYSTEMS:
                written[system] += require_lossless(source, system)
    return written


def test_drawn_plans_come_back_from_every_system():
    assert all(round_trips(range(12)).values())


@pytest.mark.long
def test_two_hundred_drawn_plans_come_back_from_every_system():
    seeds = (seed for seed in range(2_000) if drawn_source(seed) is not None)
    written = round_trips(next(seeds) for _ in range(200))
    assert min(written.values()) >= 50, written
