"""Protects the layouts of an export against verl itself: its own engines, built from the written settings on eight CPU
ranks, have the degrees and the groups of ranks that the plan has. Needs the environment of `make check-all`."""

import pytest

from benchmarks.exports.check import write_models
from benchmarks.exports.engine_states import CASES, expected, plan_file, states, table
from hybridmap.exports.systems import export_plan
from simulator.feasibility import check_plan
from tests.benchmarks.exports.test_check import PEERS, READY


@pytest.mark.parametrize("name", CASES)
def test_the_plans_are_ones_that_run_and_keep_their_degrees(name):
    file, job = plan_file(name)
    assert check_plan(file.plan, job.facts()) == []
    assert not [point for point in export_plan(file, name, "verl").points if "layout" in point.text]


def test_a_state_that_is_not_the_plans_is_marked():
    """Both engines have six plans; a pipeline that came out in one stage is no pipeline."""
    assert sum(name.startswith("fsdp") for name in CASES) == len(CASES) / 2 == 6
    right = expected("megatron, pipeline", "actor")
    assert right["pipeline_group"] == [0, 4]
    wrong = {**right, "pp": 1}
    lines = table({"megatron, pipeline": {"actor": right, "reference": wrong}})
    assert [line.rsplit("|", 2)[1].strip() for line in lines[-2:]] == ["yes", "**no**"]
    assert "tp 2, pp 2, dp 2" in lines[-2]


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("engines")
    write_models(folder / "models")
    return states(PEERS / "bin" / "python", folder, folder / "models")


@pytest.mark.external
@pytest.mark.skipif(not READY, reason="no environment with verl and OpenRLHF; `make check-all` makes it")
@pytest.mark.parametrize("name", CASES)
def test_verls_own_engines_have_the_plans_parallel_state(found, name):
    assert set(found[name]) == set(plan_file(name)[0].plan.pools[0].roles)
    for role, state in found[name].items():
        assert state == expected(name, role)
