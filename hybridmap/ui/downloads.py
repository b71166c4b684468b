"""Files of a plan that the page gives away: each a name and its text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from profiles.yaml_text import yaml_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from hybridmap.job.job import Job
    from mapper.result import Result


def _job(job: Job, result: Result) -> tuple[str, str]:
    return "job.yaml", yaml_of(job.document)


def _plan(job: Job, result: Result) -> tuple[str, str]:
    from hybridmap.files.plan import plan_file_of
    from hybridmap.json_text import to_json

    return "plan.json", to_json(plan_file_of(job, result, "any", False).model_dump(mode="json"))


def _report(job: Job, result: Result) -> tuple[str, str]:
    from hybridmap.files.plan import plan_file_of
    from hybridmap.report.content import content_of
    from hybridmap.report.html import page

    return "report.html", page(content_of(plan_file_of(job, result, "any", False), job))


def _script(system: str) -> Callable[[Job, Result], tuple[str, str]]:
    def write(job: Job, result: Result) -> tuple[str, str]:
        from hybridmap.exports.systems import export_plan
        from hybridmap.files.plan import plan_file_of

        found = export_plan(plan_file_of(job, result, "any", False), "the plan", system)
        return found.script, found.files[found.script]

    return write


DOWNLOADS: Mapping[str, Callable[[Job, Result], tuple[str, str]]] = {
    "job": _job,
    "plan": _plan,
    "report": _report,
    **{f"launch script for {system}": _script(system) for system in ("verl", "nemo-rl", "openrlhf")},
}
"""By what the page's menu says; a script raises ``HybridmapError`` where the system cannot follow the plan."""
