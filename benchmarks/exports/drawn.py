"""Plans that are drawn and not searched, written for a system and read back as it reads them."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hybridmap.exports.export import Source
from hybridmap.exports.followed import FOLLOWED
from hybridmap.exports.imported import newest
from hybridmap.exports.systems import WRITTEN, export_plan
from hybridmap.files.plan import PlanFile
from hybridmap.job.load import job_from_document
from profiles.errors import HybridmapError, InputError
from profiles.units import GIB
from simulator.feasibility import check_plan
from simulator.plan.plan import GenerationLayout, ParallelLayout, Plan, Pool, RolePlan, TokenBudget, placement_name
from simulator.play.simulate import simulate
from simulator.systems.targets import TARGETS, Target

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hybridmap.job.job import Job

MODELS = ("qwen2.5-1.5b", "llama-3.2-1b", "qwen3-4b", "qwen3-30b-a3b")
SCHEDULES: tuple[dict[str, Any], ...] = (
    {"schedule": "sync"},
    {"schedule": "one-step-off"},
    {"schedule": "async", "steps_in_flight": 2},
    {"schedule": "async", "in_flight_updates": True},
)


def drawn_job(draw: random.Random, training: str) -> Job:
    """A job of any algorithm that some system runs, on one to four nodes."""
    algorithm = draw.choice(("grpo", "grpo", "dapo", "rloo", "reinforce++", "ppo"))
    roles = ["actor", *(["critic"] if algorithm == "ppo" else [])]
    roles += ["reference"] if algorithm != "dapo" and draw.random() < 0.6 else []
    roles += ["reward"] if draw.random() < 0.3 else []
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
            "engines": {"training": newest("training", training)},
            "implementation": {
                "old_log_prob": draw.choice((None, "trainer", "engine")),
                "lora_rank": draw.choice((0, 0, 0, 16)),
            },
        }
    )


def drawn_source(seed: int, training: str) -> Source | None:
    """A plan that fits, drawn and not searched, for a family of trainers; ``None`` for a draw that does not."""
    draw = random.Random(seed)
    try:
        job = drawn_job(draw, training)
        source = Source(drawn_plan(draw, job), job)
        return source if not check_plan(source.plan, source.facts) else None
    except HybridmapError:
        return None


# Long by what a plan may say: a draw for each.
def drawn_plan(draw: random.Random, job: Job) -> Plan:
    """A plan of a job, which need not fit: all roles in one layout, engines beside or among them."""
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
                inference=_scoring(draw, shared, role) if "forward" in kinds else None,
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
        **(draw.choice(SCHEDULES) if apart else {}),
    )


def _scoring(draw: random.Random, shared: ParallelLayout, role: str) -> ParallelLayout:
    """The shared layout going forward; a reward model in micro-batches of its own."""
    own = {"micro_batch": draw.choice((1, 2))} if role == "reward" else {}
    return shared.model_copy(update={"recompute": "none", **own})


def drawn_layout(draw: random.Random, gpus: int, fsdp: bool, mixture: bool) -> ParallelLayout:
    """Degrees that a trainer has on so many GPUs."""
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


@dataclass(frozen=True)
class RoundTrip:
    """A drawn plan as a system runs it, and what its script or recipe says when it is read back.

    Parameters
    ----------
    target, seed
        For whom, and from which draw.
    written, read
        The plan and the job on both sides.
    written_s, read_s
        Seconds of an iteration of both.
    said_s
        What the export says it takes.
    """

    target: str
    seed: int
    written: Source
    read: Source
    written_s: float
    read_s: float
    said_s: float

    @property
    def off(self) -> float:
        """By how much the time that is read, or the one that the export says, is another than what was written."""
        return max(abs(each / self.written_s - 1) for each in (self.read_s, self.said_s))


def round_trips(name: str, most: int, draws: int = 10_000) -> Iterator[RoundTrip]:
    """Drawn plans that a target's system runs, written and read back: ``most`` of them, of at most so many draws."""
    target, found = TARGETS[name], 0
    for seed in range(draws):
        source = drawn_source(seed, target.trainers[seed % len(target.trainers)])
        trip = None if source is None else _round_trip(target, seed, source)
        if trip is not None:
            found += 1
            yield trip
        if found == most:
            return


def _round_trip(target: Target, seed: int, source: Source) -> RoundTrip | None:
    """One plan there and back; ``None`` where the system runs nothing near it."""
    try:
        ours, _ = FOLLOWED[target.system](source)
    except InputError:
        return None
    file = PlanFile.model_construct(plan=source.plan, job=source.job.document)
    export = export_plan(file, "drawn", target.name.partition("/")[0])
    name = next(name for name in export.files if name in WRITTEN)
    back = WRITTEN[name](export.files[name], name, ours)
    read_s = simulate(back.plan, back.facts).iteration_s
    return RoundTrip(target.name, seed, ours, back, ours.iteration_s(), read_s, export.times.written_s)
