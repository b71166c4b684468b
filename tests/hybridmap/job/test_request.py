"""Protects that every command asks the search for the whole job: one request, made in one place."""

import ast
from pathlib import Path

import pytest

from hybridmap.job.load import job_from_document, job_from_mapping
from hybridmap.job.request import modes_of, schedule_of
from mapper.execution_mode import SYNC, ExecutionMode
from mapper.search.find_plan import find_plan
from profiles.errors import InputError
from simulator.plan.plan import TokenBudget

FACE = Path(__file__).parents[3] / "hybridmap"


def test_a_request_holds_all_that_a_job_asks(small_job, tmp_path):
    small_job |= {
        "schedule": {"kind": "async", "steps_in_flight": 3},
        "search": {"offload": True},
        "objective": {"minimise": "cost", "price_per_gpu_hour": {"h100-80gb-sxm": 3.6}},
        "pin": {"critic": {"training": {"tp": 2}}, "share": {"forbid": [["actor", "critic"]]}},
    }
    job = job_from_mapping(small_job, "job", tmp_path)
    request = job.request()
    assert request.facts is job.facts()
    assert len(request.pins) == 2
    assert request.modes == (ExecutionMode("async", True, 3),)
    assert request.options.offload and not request.options.interleaving
    assert request.objective.goal == "cost"


def test_no_command_makes_a_request_of_its_own():
    makers = {
        path.relative_to(FACE).as_posix()
        for path in FACE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and getattr(node.func, "id", None) == "SearchRequest"
    }
    assert makers == {"job/request.py"}


@pytest.mark.parametrize(
    "mode",
    [
        SYNC,
        ExecutionMode(dedicated_rollout=True),
        ExecutionMode("one-step-off", True),
        ExecutionMode("async", True, 4),
        ExecutionMode("async", True, 2, True),
    ],
)
def test_a_schedule_written_down_is_read_as_it_was(mode):
    assert modes_of(schedule_of(mode)) == (mode,)


def test_a_job_takes_on_the_schedule_of_a_plan(small_job, tmp_path):
    job = job_from_mapping(small_job | {"schedule": "one-step-off"}, "job", tmp_path)
    plan = find_plan(job.request()).plan
    sync = job_from_mapping(small_job, "job", tmp_path)
    moved = sync.scheduled_as(plan)
    assert sync.request().modes == (SYNC,)
    assert moved.request().modes == (ExecutionMode("one-step-off", True),)
    assert job_from_document(moved.document).document == moved.document


def test_micro_batches_are_pinned_in_samples_or_tokens(small_job, tmp_path):
    given = {"training": {"micro_batch": [4, {"tokens": 16384}]}, "inference": {"micro_batch": {"tokens": 8192}}}
    job = job_from_mapping(small_job | {"pin": {"critic": given}}, "job", tmp_path)
    (pin,) = job.request().pins
    assert pin.training == {"micro_batch": (4, TokenBudget(tokens=16384))}
    assert pin.inference == {"micro_batch": TokenBudget(tokens=8192)}
    assert job_from_document(job.document).document == job.document
    for wrong in ({"tokens": 0}, {"tokens": "8k"}, {"samples": 4}, "many"):
        with pytest.raises(InputError, match="micro_batch"):
            pin = {"critic": {"training": {"micro_batch": wrong}}}
            job_from_mapping(small_job | {"pin": pin}, "job", tmp_path)
