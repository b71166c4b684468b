"""Protects that what a profile and a calibration put on calls is in the search: dispatch, late ranks, factors by call.

The search warns where its price of a plan is not the simulator's; warnings are errors here.
"""

from dataclasses import replace

import pytest

from mapper.execution_mode import ExecutionMode
from mapper.request import SearchRequest
from mapper.search.find_plan import find_plan
from mapper.search_options import SearchOptions
from profiles.calibration import Calibration
from simulator.play.simulate import simulate
from tests.builders import TINY, make_facts, workload

MODES = [
    ExecutionMode(),
    ExecutionMode(dedicated_rollout=True),
    ExecutionMode("async", dedicated_rollout=True, steps_in_flight=2),
]


def job(algorithm="grpo", **engine):
    facts = make_facts(algorithm, TINY, gpus_per_node=4, work=workload(32, 128, 128, minibatches=2))
    return replace(facts, training=replace(facts.training, **engine))


@pytest.mark.parametrize("mode", MODES, ids=str)
@pytest.mark.parametrize("cost", ["dispatch_s", "call_rank_s"])
def test_what_comes_before_every_call_is_searched_with(cost, mode):
    found = find_plan(SearchRequest(job(**{cost: 0.05}), modes=(mode,), runners_up=False))
    assert found.status == "optimal"


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_a_calibration_is_searched_with(mode):
    facts = job("remax")
    for api in {call.api for call in facts.dataflow.calls}:
        calibrated = replace(facts, calibration=Calibration({api: 1.7}, "x"))
        found = find_plan(SearchRequest(calibrated, modes=(mode,), runners_up=False))
        assert found.status == "optimal"
        assert found.iteration_s == simulate(found.plan, calibrated).iteration_s


def test_copies_of_offloaded_states_are_calibrated_once():
    facts = replace(job(call_rank_s=0.01), calibration=Calibration({"transition": 1.7}, "x"))
    facts = replace(facts, device=facts.device.with_spec(replace(facts.device.spec, memory_bytes=6 * 2**30)))
    found = find_plan(SearchRequest(facts, options=SearchOptions(offload=True), runners_up=False))
    assert found.iteration_s == simulate(found.plan, facts).iteration_s
