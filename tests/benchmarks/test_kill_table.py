"""Protects the table of kills: a row for every process and stage, and a controller that is ended is outlived."""

import pytest

from benchmarks.disturbed import MINIBATCHES
from benchmarks.kill_table import MOMENTS, THIRD, fault_of, main, plan
from executor.worker.inject_faults import LOADING
from simulator.plan.dataflow import build_dataflow


def test_every_stage_of_an_iteration_has_its_call():
    roles = tuple(entry.role for entry in plan().roles)
    stages = {call.stage for call in build_dataflow("ppo", roles).calls}
    assert len(MOMENTS) == len(stages) + 1  # saving is no call of the dataflow
    assert LOADING not in {api for _, api in MOMENTS.values()} and MINIBATCHES > 1


def test_a_node_ends_with_its_raylet_in_the_third_iteration():
    assert fault_of("node", "training").victim == "raylet"
    assert {fault_of("gcs", moment).call for moment in MOMENTS} == {THIRD}


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
def test_a_daemon_and_a_controller_may_end_while_it_trains(capsys):
    assert main(["--victim", "gcs", "--victim", "controller", "--moment", "training"]) == 0
    assert "2 of 2 survived" in capsys.readouterr().out
