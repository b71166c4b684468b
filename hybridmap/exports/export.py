"""What an export is: settings of another system, files to run it, and every point where it cannot follow the plan."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from profiles.catalogue import hf_id, model_names
from simulator.dataflow import CONTROLLER

if TYPE_CHECKING:
    from collections.abc import Mapping

    from simulator.facts import Facts
    from simulator.plan import Plan, Pool, RolePlan


@dataclass(frozen=True)
class Point:
    """Where the system cannot do what the plan says: ``place`` in the plan, such as ``reward.inference``, and why."""

    place: str
    text: str


@dataclass(frozen=True)
class Source:
    """What is exported: a plan, the facts of its job, and the job's document."""

    plan: Plan
    facts: Facts
    job: Mapping[str, Any]

    def has(self, role: str) -> bool:
        """Whether the job has this role."""
        return role in self.facts.roles

    def model(self, role: str) -> str:
        """The model of a role as a Hugging Face id, or the name of its config for one outside the catalogue."""
        shape = self.job["models"][role]["shape"]
        if isinstance(shape, str):
            return hf_id(shape) if shape in model_names() else shape
        return str(shape["name"])

    def nodes(self, pool: Pool) -> tuple[int, int]:
        """Nodes of a pool and GPUs on each of them."""
        per_node = self.facts.on(pool.device).group.gpus_per_node
        return (1, pool.num_gpus) if pool.num_gpus < per_node else (pool.num_gpus // per_node, per_node)

    @property
    def actor(self) -> RolePlan:
        return self.plan.role("actor")

    @property
    def minibatch_prompts(self) -> int:
        """Prompts of one optimizer step, rounded up to whole ones."""
        work = self.facts.workload
        return -(-work.minibatch_samples // work.samples_per_prompt)

    @property
    def old_log_prob_by_engine(self) -> bool:
        """Whether the generation engine's log-probs stand for a pass of the trainer."""
        return not any(call.key == "compute_log_prob" for call in self.facts.dataflow.calls if call.role != CONTROLLER)


@dataclass
class Settings:
    """Settings by key in the order they were given, and the points that came up; keys are written once."""

    values: dict[str, Any] = field(default_factory=dict)
    points: list[Point] = field(default_factory=list)

    def put(self, values: Mapping[str, Any], prefix: str = "") -> None:
        """Add settings below ``prefix``."""
        for key, value in values.items():
            name = f"{prefix}.{key}" if prefix else key
            assert name not in self.values, f"{name} is set twice"
            self.values[name] = value

    def cannot(self, place: str, text: str) -> None:
        """Note a point where the system cannot follow."""
        self.points.append(Point(place, text))


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
        Where the system cannot follow the plan.
    script
        The name, in ``files``, of what starts the run.
    files
        File contents by name.
    """

    system: str
    version: str
    settings: Mapping[str, Any]
    points: tuple[Point, ...]
    script: str
    files: Mapping[str, str]


def note_scoring_layouts(source: Source, out: Settings) -> None:
    """Note trained roles that score on a copy in another layout: these systems score with the trainer's shards."""
    for entry in source.plan.roles:
        a, b = entry.training, entry.inference
        if a is not None and b is not None and (a.dp, a.tp, a.pp, a.cp, a.ep) != (b.dp, b.tp, b.pp, b.cp, b.ep):
            planned = f"t{b.tp} p{b.pp} d{b.dp}"
            out.cannot(f"{entry.role}.inference", f"it scores as it is trained; the plan scores on a copy in {planned}")


def notes_text(export: Export, title: str) -> str:
    """The notes beside a script, as Markdown."""
    lines = [f"# {title} on {export.system} {export.version}", ""]
    if export.points:
        lines += ["Where this system cannot follow the plan:", ""]
        lines += [f"- **{point.place}**: {point.text}" for point in export.points]
    else:
        lines.append("This system can follow the plan in every point.")
    return "\n".join([*lines, ""])


def largest_divisor(limit: int, *totals: int) -> int:
    """The largest number of at most ``limit`` that divides all totals."""
    return next(n for n in range(limit, 0, -1) if all(total % n == 0 for total in totals))
