"""What an export is: settings of another system, files to run it, and where that is not the plan or the job."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from hybridmap.job.load import job_from_document
from profiles.models.catalogue import hf_id, model_names
from simulator.plan.dataflow import CONTROLLER
from simulator.play.simulate import simulate

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hybridmap.job.job import Job
    from simulator.facts import Facts
    from simulator.plan.plan import ParallelLayout, Plan, Pool, RolePlan


@dataclass(frozen=True)
class Point:
    """Where the system cannot do what the plan says: ``place`` in the plan, such as ``reward.inference``, and why."""

    place: str
    text: str


@dataclass(frozen=True)
class Source:
    """What is exported: a plan and its job."""

    plan: Plan
    job: Job

    @property
    def facts(self) -> Facts:
        return self.job.facts().drafting(self.plan.draft_tokens)

    @property
    def draft_tokens(self) -> int:
        """Tokens that engines draft in a step: as many as the plan says; 0 for none."""
        drafts = self.facts.speculation
        return 0 if drafts is None else drafts.drafted

    def has(self, role: str) -> bool:
        """Whether the job has this role."""
        return role in self.facts.roles

    def model(self, role: str) -> str:
        """The model of a role as a Hugging Face id, or the name of its config for one outside the catalogue."""
        shape = self.job.models[role].shape
        if isinstance(shape, str):
            return hf_id(shape) if shape in model_names() else shape
        return shape.name

    def nodes(self, pool: Pool) -> tuple[int, int]:
        """Nodes of a pool and GPUs on each of them."""
        per_node = self.facts.on(pool.device).group.gpus_per_node
        return (1, pool.num_gpus) if pool.num_gpus < per_node else (pool.num_gpus // per_node, per_node)

    def with_job(self, **sections: Any) -> Source:
        """The same plan for a job of which whole sections are others."""
        return replace(self, job=job_from_document({**self.job.document, **sections}))

    def with_plan(self, **fields: Any) -> Source:
        """The same job with some of the plan changed."""
        return replace(self, plan=self.plan.model_copy(update=fields))

    def with_entry(self, role: str, **fields: Any) -> Source:
        """The same job with fields of a role's layouts changed."""
        return self.with_role(self.plan.role(role).model_copy(update=fields))

    def with_role(self, entry: RolePlan) -> Source:
        """The same job with a role laid out otherwise."""
        return self.with_plan(roles=tuple(entry if e.role == entry.role else e for e in self.plan.roles))

    @property
    def actor(self) -> RolePlan:
        return self.plan.role("actor")

    @property
    def minibatch_prompts(self) -> int:
        """Prompts of one optimizer step, rounded up to whole ones."""
        work = self.facts.workload
        return -(-work.minibatch_samples // work.samples_per_prompt)

    @property
    def asked_old_log_prob(self) -> str | None:
        """Who the job says gives the old log-probs; ``None`` where it leaves that open."""
        return self.job.implementation.old_log_prob

    @property
    def old_log_prob_by_engine(self) -> bool:
        """Whether the generation engine's log-probs stand for a pass of the trainer."""
        return not any(call.key == "compute_log_prob" for call in self.facts.dataflow.calls if call.role != CONTROLLER)

    @property
    def packed_tokens(self) -> int | None:
        """Tokens of a pack, where micro-batches are packs."""
        return self.facts.implementation.packed_tokens

    def tokens_of(self, layout: ParallelLayout) -> int | None:
        """Tokens of a micro-batch where it is a budget of them, or packs; ``None`` where it is a number of samples."""
        packed = self.packed_tokens
        return layout.token_budget or (None if packed is None else packed * layout.micro_samples)

    def iteration_s(self) -> float:
        """The time of an iteration; ``InfeasibleError`` if it does not fit."""
        return simulate(self.plan, self.facts).iteration_s


@dataclass
class Settings:
    """Settings by key in the order they were given; keys are written once."""

    values: dict[str, Any] = field(default_factory=dict)

    def put(self, values: Mapping[str, Any], prefix: str = "") -> None:
        """Add settings below ``prefix``."""
        for key, value in values.items():
            name = f"{prefix}.{key}" if prefix else key
            assert name not in self.values, f"{name} is set twice"
            self.values[name] = value


@dataclass
class Points:
    """Points as they come up."""

    found: list[Point] = field(default_factory=list)

    def cannot(self, place: str, text: str) -> None:
        """Note a point where the system cannot follow."""
        self.found.append(Point(place, text))

    def instead(self, place: str, text: str) -> None:
        """As ``cannot``, in place of what was noted there before."""
        self.found = [point for point in self.found if point.place != place]
        self.cannot(place, text)


@dataclass(frozen=True)
class AlgorithmKey:
    """A setting of the algorithm that is not what the system would do by itself, and what asked for it."""

    key: str
    value: Any
    default: Any
    why: str


@dataclass(frozen=True)
class Default:
    """What a system does about the algorithm by itself: the value of a key, and where its source says so."""

    value: Any
    source: str
    why: str
    """What in a job makes an export set it otherwise."""


def algorithm_keys(values: Mapping[str, Any], defaults: Mapping[str, Default]) -> tuple[AlgorithmKey, ...]:
    """The settings that change the system's own algorithm."""
    names = {key.lstrip("+"): value for key, value in values.items()}
    return tuple(
        AlgorithmKey(key, names[key], default.value, default.why)
        for key, default in defaults.items()
        if key in names and names[key] != default.value
    )


@dataclass(frozen=True)
class Times:
    """Seconds of an iteration by one count: of the plan that was asked for, and of what the system will run."""

    planned_s: float
    written_s: float

    @property
    def differ(self) -> bool:
        """Whether the two are not the same to the digits that are shown."""
        return abs(self.written_s / self.planned_s - 1) >= 5e-4

    def __str__(self) -> str:
        how = f"{100 * (self.written_s / self.planned_s - 1):+.1f} % against the plan" if self.differ else "as planned"
        return f"plan {self.planned_s:,.2f} s an iteration, as written {self.written_s:,.2f} s ({how})"


@dataclass(frozen=True)
class Export:
    """One plan for one system.

    Parameters
    ----------
    system, version
        Which system, and the version whose keys these are.
    settings
        Every key that is set, with its value.
    points
        Where the system cannot follow the plan, and does something else.
    algorithm
        Settings with which it runs another algorithm than it would by itself.
    times
        The plan's time beside the time of what is written.
    script
        The name, in ``files``, of what starts the run.
    files
        File contents by name.
    """

    system: str
    version: str
    settings: Mapping[str, Any]
    points: tuple[Point, ...]
    algorithm: tuple[AlgorithmKey, ...]
    times: Times
    script: str
    files: Mapping[str, str]


def said_aloud(export: Export) -> list[str]:
    """What must not be overlooked: the algorithm's settings, and where it is not the job's algorithm."""
    lines = [
        f"ALGORITHM: {each.key}={each.value} ({export.system}'s default: {each.default}), since {each.why}"
        for each in export.algorithm
    ]
    return lines + [f"ANOTHER ALGORITHM: {p.text}" for p in export.points if p.place in ("algorithm", "cost")]


def header(export: Export) -> list[str]:
    """Comment lines at the top of a script: the times, the algorithm, the points."""
    lines = [str(export.times), *said_aloud(export)]
    lines += [f"Cannot follow: {p.place}: {p.text}" for p in export.points if p.place not in ("algorithm", "cost")]
    return [f"# {line}" for line in lines]


def notes_text(export: Export, title: str) -> str:
    """The notes beside a script, as Markdown."""
    lines = [f"# {title} on {export.system} {export.version}", "", f"{export.times}.", ""]
    aloud = said_aloud(export)
    if aloud:
        lines += [*(f"- **{kind}**{rest}" for kind, rest in (line.split(":", 1) for line in aloud)), ""]
    if export.points:
        lines += ["Where this system cannot follow the plan:", ""]
        lines += [f"- **{point.place}**: {point.text}" for point in export.points]
    else:
        lines.append("This system can follow the plan in every point.")
    return "\n".join([*lines, ""])


def largest_divisor(limit: int, *totals: int) -> int:
    """The largest number of at most ``limit`` that divides all totals."""
    return next(n for n in range(limit, 0, -1) if all(total % n == 0 for total in totals))
