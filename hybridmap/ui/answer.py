"""From a form to what the page shows: a search, or the one message of why there is none."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hybridmap.job.load import job_from_mapping
from hybridmap.json_text import to_json
from hybridmap.ui.form import document_of
from profiles.errors import HybridmapError
from profiles.models.catalogue import load_known

if TYPE_CHECKING:
    from hybridmap.files.frontier import PointRecord
    from hybridmap.job.job import Job
    from hybridmap.ui.form import Form
    from mapper.result import Result

SEARCH_S = 5.0
"""Longest search of a change; what is known by then is shown with its gap."""

FRONTIER_S = 8.0


@dataclass(frozen=True)
class Answer:
    """The plan of a form, or its error; without a job where the form is none."""

    job: Job | None
    result: Result | None
    error: str = ""


def answer_of(form: Form, *, runners_up: bool = False) -> Answer:
    """Plan the form's job; the same form is planned once. A model is named, by the catalogue or Hugging Face's id.

    Without ``runners_up`` it is the fastest plan alone, sooner: other placements take as long again, and so does the
    plain plan, which takes its place where the job prefers one.
    """
    try:
        for name in form.models.values():
            if name not in form.own_models:
                load_known(name)
    except HybridmapError as error:
        return Answer(None, None, str(error))
    return _answer(to_json(document_of(form)), runners_up)


@lru_cache(maxsize=256)
def _answer(document: str, runners_up: bool) -> Answer:
    from mapper.search.find_plan import find_plan

    job = None
    try:
        job = _job(document)
        request = replace(job.request(), time_limit_s=SEARCH_S, runners_up=runners_up)
        result = find_plan(request if runners_up else request.fastest())
    except HybridmapError as error:
        return Answer(job, None, str(error))
    return Answer(job, result)


def frontier_of(form: Form) -> tuple[PointRecord, ...]:
    """Time against GPUs of the form's job, in the schedule of its plan; empty if nothing fits."""
    return _frontier(to_json(document_of(form)))


@lru_cache(maxsize=64)
def _frontier(document: str) -> tuple[PointRecord, ...]:
    from hybridmap.files.frontier import frontier_file_of
    from mapper.analysis.frontier import frontier
    from mapper.execution_mode import mode_of

    answer = _answer(document, runners_up=False)
    if answer.job is None or answer.result is None:
        return ()
    job, mode = answer.job, mode_of(answer.result.plan)
    try:
        points = frontier(replace(job.request(), modes=(mode,), time_limit_s=FRONTIER_S))
    except HybridmapError:
        return ()
    return frontier_file_of(job, points, 0).points


def _job(document: str) -> Job:
    import json

    raw: dict[str, Any] = json.loads(document)
    return job_from_mapping(raw, "job", Path())
