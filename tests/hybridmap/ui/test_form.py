"""Protects the page's form: it shows any job, and stands for the same job again; no browser needed."""

from dataclasses import replace

import pytest

from hybridmap.job.load import job_from_document, load_job
from hybridmap.ui import answer
from hybridmap.ui.answer import answer_of, frontier_of
from hybridmap.ui.form import NUMBERS, Form, document_of, form_of
from simulator.plan.algorithms import ALGORITHMS
from tests.hybridmap.exports.plans import GRPO
from tests.work import HANGS_S


def test_every_example_is_the_same_job_behind_the_form(examples):
    for path in examples:
        document = load_job(path).document
        again = job_from_document(document_of(form_of(document))).document
        if isinstance(document["workload"]["response_length"], dict):  # the page has no p99
            document = {**document, "workload": {**document["workload"], "response_length": None}}
            again = {**again, "workload": {**again["workload"], "response_length": None}}
        assert again == document


def test_a_change_is_a_change_of_the_job():
    form = replace(Form(), nodes=4, response_length=512, mean_response_length=200, goal="gpus", target_iteration_s=99.0)
    document = job_from_document(document_of(form)).document
    assert document["cluster"][0]["nodes"] == 4
    assert document["workload"]["response_length"]["mean"] == 200
    assert document["objective"] == {"minimise": "gpus", "target_iteration_s": 99.0}


def test_a_new_device_brings_its_own_network():
    form = form_of(job_from_document(GRPO).document)
    other = document_of(replace(form, device="a100-80gb-sxm"))["cluster"][0]
    assert "inter_node_gbps" not in other


@pytest.mark.parametrize("algorithm", sorted(ALGORITHMS))
def test_every_algorithm_has_the_models_it_needs(algorithm):
    form = Form().with_algorithm(algorithm)
    assert set(ALGORITHMS[algorithm].roles) <= set(form.models)
    assert job_from_document(document_of(form)).document["algorithm"] == algorithm


def test_an_answer_or_its_one_error(monkeypatch):
    for limit in ("SEARCH_S", "FRONTIER_S"):
        monkeypatch.setattr(answer, limit, HANGS_S)
    small = form_of(job_from_document(GRPO).document)
    found = answer_of(small)
    assert found.result.status == "optimal"
    assert found is answer_of(small)  # searched once
    whole = answer_of(small, runners_up=True)
    assert (found.result.runners_up, whole.result.plan) == ((), found.result.plan)
    assert whole.result.runners_up
    assert frontier_of(small)[-1].iteration_s == pytest.approx(found.result.iteration_s)
    several = form_of(job_from_document(GRPO | {"schedule": {"kind": "any"}}).document)
    assert frontier_of(several)[-1].iteration_s == pytest.approx(answer_of(several).result.iteration_s)
    large = replace(small, models={"actor": "llama-3.1-405b"})
    assert "no plan fits" in answer_of(large).error
    assert answer_of(large).job.facts().roles["actor"].shape.name == "llama-3.1-405b"  # for the title
    assert frontier_of(large) == ()


PLACES = {
    "nodes": "cluster[0].nodes",
    "mean_response_length": "workload.response_length.mean",
    "target_iteration_s": "objective",
}
"""Where the job has what the page's field is called, if not below ``workload``."""
NUMBER_FIELDS = [*NUMBERS, "nodes", "target_iteration_s"]
CANNOT_BE = [
    *((field, entry) for field in NUMBER_FIELDS for entry in (0, -3)),
    *((field, 1.5) for field in NUMBER_FIELDS if field not in ("mean_response_length", "target_iteration_s")),
    *((field, None) for field in NUMBER_FIELDS if field != "mean_response_length"),  # all are of the longest length
]


@pytest.mark.parametrize(("field", "entry"), CANNOT_BE)
def test_an_entry_that_cannot_be_is_an_error_and_no_other_number(field, entry):
    answer = answer_of(replace(Form(goal="gpus"), **{field: entry}))
    assert answer.job is None
    assert answer.result is None
    assert PLACES.get(field, f"workload.{field}") in answer.error
    given = "nothing" if entry is None else entry
    assert f"got {given}," in answer.error or "needs target_iteration_s" in answer.error


def test_the_first_answer_is_the_fastest_plan_and_the_whole_one_what_the_job_prefers():
    """Its plain plan is a hundredth slower at most: what `plan` gives for the same job."""
    form = replace(Form(), prompts=512)
    first, whole = answer_of(form).result, answer_of(form, runners_up=True).result
    assert first.plain is None
    assert whole.faster is not None
    assert first.iteration_s == pytest.approx(whole.faster.iteration_s)
    assert first.iteration_s < whole.iteration_s <= 1.01 * first.iteration_s
