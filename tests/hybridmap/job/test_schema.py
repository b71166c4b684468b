"""Protects the JSON Schema of job files: editors accept what we ship, refuse what we refuse, and explain each key."""

import copy
import json

import jsonschema
import pytest
import yaml

from hybridmap.job.job import Job
from hybridmap.job.load import job_from_mapping
from hybridmap.job.template import Answers, job_text, roles_of
from simulator.plan.algorithms import ALGORITHMS
from tests.hybridmap.test_bad_input import BAD_JOBS

REFUSED_BY_BOTH = """
    unknown algorithm, no prompts, negative length, no nodes, no network, negative reward time, beyond all bounds,
    bool for int, text for int, list for mapping, mapping for list, nothing at all, no cluster, number for a model,
    unknown precision, other distribution, list of lengths, unknown key, unknown top key, unknown role key,
    unknown cluster key, unknown length key, key like nothing, missing key, unknown schedule, misspelt schedule key,
    unknown objective, misspelt objective key, negative price, pin of an unknown key, pin of an unknown degree,
    pin of a text, share with nobody, unknown loss head, unknown role
"""
NAMES = [name.strip() for name in " ".join(REFUSED_BY_BOTH.split()).split(",")]


@pytest.fixture(scope="module")
def validator():
    return jsonschema.Draft202012Validator(Job.json_schema())


def problems(validator, document):
    return [error.message for error in validator.iter_errors(document)]


def test_the_command_prints_it(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = run("init", "--schema")
    assert result.exit_code == 0
    assert json.loads(result.stdout) == Job.json_schema()
    assert not list(tmp_path.iterdir())
    jsonschema.Draft202012Validator.check_schema(Job.json_schema())


def test_it_accepts_every_shipped_example(validator, examples):
    for path in [*examples, *sorted((examples[0].parent / "run").glob("*[!n].yaml"))]:
        assert problems(validator, yaml.safe_load(path.read_text())) == [], path.name


@pytest.mark.parametrize("algorithm", sorted(ALGORITHMS))
def test_it_accepts_what_init_writes(validator, algorithm):
    models = dict.fromkeys(roles_of(algorithm), "llama-3.2-1b")
    answers = Answers(algorithm, models, 64, 1, 256, 1024, 300, 2, "h100-80gb-sxm", 1)
    assert problems(validator, yaml.safe_load(job_text(answers))) == []


def test_it_accepts_the_normal_form_of_a_job(validator, small_job, tmp_path):
    small_job |= {
        "schedule": {"kind": "async", "steps_in_flight": 2},
        "pin": {"spare_nodes": 0, "critic": {"training": {"tp": [1, 2], "recompute": "full"}}},
        "objective": {"minimise": "cost", "price_per_gpu_hour": {"h100-80gb-sxm": 2}},
    }
    assert problems(validator, job_from_mapping(small_job, "job", tmp_path).document) == []


@pytest.mark.parametrize("name", NAMES)
def test_it_refuses_what_reading_a_job_refuses(validator, small_job, name):
    assert problems(validator, BAD_JOBS[name][0](copy.deepcopy(small_job)))


def test_every_key_that_planning_reads_is_explained():
    schema = Job.json_schema()
    unexplained = [
        f"{name}.{key}"
        for name, section in [("", schema), *schema["$defs"].items()]
        if name == "" or not is_of_the_run(name)
        for key, value in section.get("properties", {}).items()
        if "description" not in value and "const" not in value and "$ref" not in value
    ]
    assert not unexplained


def is_of_the_run(name):
    """Whether a definition belongs to the run section, which the executor describes."""
    from executor.run_config import RunConfig

    return name in {"RunConfig", *RunConfig.model_json_schema()["$defs"]} or name.startswith("executor__")
