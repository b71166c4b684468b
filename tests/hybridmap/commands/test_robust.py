"""Protects ``hybridmap robust``: what a person reads, what a program reads, and one line for what cannot be."""

import json

import pytest

from tests.hybridmap.conftest import invoke


@pytest.fixture(scope="module")
def answered(planned):
    return invoke("robust", planned.job, "--draws", "2", "--error", "0.2", "--seed", "3", "--json")


@pytest.fixture(scope="module")
def read(planned):
    """What a person is told of the small job."""
    return invoke("robust", planned.job, "--draws", "2")


def test_json_has_draws_families_and_the_safest(answered, planned):
    answer = json.loads(answered.stdout)
    assert answer["iteration_s"] == pytest.approx(planned.answer["iteration_s"])
    assert len(answer["draws"]) == answer["asked_draws"] == 2
    assert {f["family"] for f in answer["families"]} == {"compute", "memory", "nvlink", "network", "host", "response"}
    assert answer["regret"] is None or 0 <= answer["regret"]["mean"] <= answer["regret"]["worst"]
    assert answer["safest"]["placement"] and answer["measure_first"] in answer["errors"]


def test_people_read_what_is_lost_and_what_to_measure(read):
    assert read.exit_code == 0 and read.stderr == ""
    for phrase in (
        "the plan holds: ",
        "best plan   ",
        "safest      ",
        "prices of",
        "measure ",
    ):
        assert phrase in read.stdout


def test_a_family_that_moves_nothing_has_no_row(read):
    """One node has no network between nodes, and fixed lengths are not uncertain."""
    lines = read.stdout.splitlines()
    assert [line for line in lines if "0.00 %" in line] == []
    assert "unmoved     by communication between nodes: the time stays as it is" in lines


@pytest.mark.parametrize(
    "args", [("--draws", "0"), ("--error", "-0.1"), ("--error", "7"), ("--draws", "many"), ("--seed", "-1")]
)
def test_wrong_options(planned, run, args):
    result = run("robust", planned.job, *args)
    assert result.exit_code == 2
    assert result.stdout == ""


def test_a_job_that_is_not_there(run):
    result = run("robust", "nowhere.yaml")
    assert result.exit_code == 2
    assert result.stderr == "Error: nowhere.yaml: cannot be read (No such file or directory)\n"
