"""Protects `fit`: its numbers are those of the feasibility check, and what it says would fit does."""

import json
import re
from pathlib import Path

import pytest
import yaml

from tests.hybridmap.conftest import SMALL_JOB, invoke

TOO_LARGE = {
    "models": dict.fromkeys(("actor", "critic", "reference", "reward"), "llama-2-13b"),
    "cluster": [{"device": "h100-80gb-sxm", "nodes": 1, "gpus_per_node": 4}],
}


@pytest.fixture
def too_large(small_job, write_job):
    return write_job(small_job | TOO_LARGE)


def asked(*args):
    result = invoke("fit", *args, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


@pytest.fixture(scope="module")
def answer(planned):
    """What is said of the small job."""
    return asked(planned.job)


@pytest.fixture(scope="module")
def refused(tmp_path_factory):
    """What is said of a job that does not fit."""
    path = tmp_path_factory.mktemp("refused") / "job.yaml"
    path.write_text(yaml.safe_dump(SMALL_JOB | TOO_LARGE))
    return asked(path)


def test_rows_add_up_to_the_peak(answer):
    assert answer["fits"] is True
    for pool in answer["pools"].values():
        there = [row for row in pool["rows"] if row["when"] in ("always", pool["peak_call"])]
        total = sum(sum(row["classes"].values()) for row in there)
        assert total == pytest.approx(pool["used_bytes"], abs=len(there) * 12)
        assert pool["used_bytes"] <= pool["capacity_bytes"]


def test_the_best_plan_is_the_one_that_plan_finds(answer, planned):
    assert answer["plan"] == planned.answer["plan"]


def test_fewest_gpus_is_what_the_objective_finds(answer, run, small_job, write_job):
    job = write_job(small_job | {"objective": {"minimise": "gpus", "target_iteration_s": 1e5}})
    planned_few = run("plan", job, "--out", job.parent / "few", "--json")
    assert answer["fewest_gpus"] == json.loads(planned_few.stdout)["num_gpus"]


def test_a_checkpoint_is_counted_from_parameters(answer):
    sizes = answer["checkpoint_bytes"]
    assert set(sizes) == {"actor", "critic"}
    assert sizes["actor"] == pytest.approx(1_235_814_400 * 14)  # bf16 parameters, fp32 master and two moments


def test_too_large_a_job_says_what_would_do(run, too_large, refused):
    assert refused["fits"] is False
    assert refused["least_memory_bytes"] > 80 * 2**30
    assert refused["fewest_gpus"] > 4
    text = run("fit", too_large).stdout
    assert "does not fit" in text
    assert "what would" in text


def test_what_would_make_it_fit_shrinks_the_need(refused):
    over = max(pool["used_bytes"] - pool["capacity_bytes"] for pool in refused["pools"].values())
    assert over > 0
    assert refused["remedies"]
    assert all(remedy["over_bytes"] < over for remedy in refused["remedies"])


def test_a_plan_that_does_not_fit_is_looked_at(planned, tmp_path):
    content = json.loads(planned.plan.read_text())["plan"]
    actor = next(entry for entry in content["roles"] if entry["role"] == "actor")
    actor["training"] |= {"micro_batch": 32, "recompute": "none"}
    actor["generation"]["kv_cache_bytes"] = 79 * 2**30
    path = tmp_path / "own.json"
    path.write_text(json.dumps(content))
    found = asked(planned.job, "--plan", path)
    assert found["fits"] is False
    assert any(remedy["fits"] for remedy in found["remedies"])


def test_what_happens_at_full_length_is_said_as_plan_says_it(run, write_job):
    """Samples of a micro-batch are counted, so all of them may be long at once."""
    example = Path(__file__).parents[3] / "examples" / "grpo-qwen2.5-7b-8xh100.yaml"
    counted = {"micro_batch": [1, 2, 4, 8]}
    pins = {"actor": {"training": counted}, "reference": {"inference": counted}}
    shown = run("fit", write_job(yaml.safe_load(example.read_text()) | {"pin": pins})).stdout
    assert re.search(
        r"note: pool A at full length throughout: \d+\.\d of 79\.1 GiB, out of memory; 1 micro-batch in", shown
    )
