"""Timelines from files: a ``timeline.json`` of any source, or the prediction that a ``plan.json`` stands for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hybridmap.files.plan import parse_plan_file, read_json, unedited, validated
from profiles.errors import FileFormatError
from simulator.plan.timeline import Timeline

if TYPE_CHECKING:
    from pathlib import Path

    from simulator.plan.plan import Plan

LEAST_S = 1e-9


def read_timeline(path: Path) -> Timeline:
    """Read ``timeline.json``; errors as in ``files.plan.read_record``."""
    content = read_json(path)
    if not isinstance(content, dict) or "spans" not in content:
        raise FileFormatError(f"{path}: not a timeline: it has no 'spans'")
    timeline = unedited(validated(content, Timeline, path), path)
    if timeline.iteration_s < LEAST_S:  # its speed would be no number
        raise FileFormatError(f"{path}: iteration_s: got {timeline.iteration_s}, expected at least {LEAST_S:g}")
    return timeline


def read_any_timeline(path: Path) -> tuple[Timeline, Plan | None]:
    """The timeline in a file; a ``plan.json`` is simulated again, and its plan comes along.

    Errors as in ``read_timeline``; ``InfeasibleError`` if the plan cannot run.
    """
    content = read_json(path)
    if isinstance(content, dict) and "spans" in content:
        return read_timeline(path), None
    from hybridmap.job.load import job_from_document
    from simulator.play.simulate import simulate

    file = parse_plan_file(content, path)
    return simulate(file.plan, job_from_document(file.job, f"{path}: job").facts()), file.plan
