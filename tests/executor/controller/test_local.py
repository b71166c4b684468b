"""Protects the controller without Ray: futures, call order, failures, what a launcher without processes refuses."""

import pytest
import torch
from tensordict import TensorDict

from executor.controller.controller import Controller
from executor.controller.pools import ResourcePool
from executor.errors import RankFailedError, WorkerInputError
from executor.launch.local import LocalLauncher
from profiles.errors import InfeasibleError, UnknownNameError
from simulator.plan.groups import Degrees
from tests.executor.workers import Probe

ONE = Degrees(1, 1, 1, 1, 1)


@pytest.fixture
def controller():
    with Controller(LocalLauncher()) as controller:
        controller.start([ResourcePool("A", 1), ResourcePool("B", 1)])
        yield controller


def rows(num):
    return TensorDict({"uid": torch.arange(num), "x": torch.arange(2.0 * num).reshape(num, 2)}, batch_size=[num])


def test_calls_pass_futures_and_return_values(controller):
    a = controller.add_group("actor", "A", Probe, ONE, {})
    b = controller.add_group("critic", "B", Probe, ONE, {})
    prompts = controller.put(rows(3))
    doubled = prompts | a.double(prompts)
    assert b.total(doubled).first() == 2 * float(rows(3)["x"].sum())
    assert sorted(doubled.get().keys()) == ["doubled", "uid", "x"]
    assert a.only_first().first() == 0
    controller.wait_all()
    assert [(r.key, r.pool) for r in controller.records] == [("double", "A"), ("total", "B"), ("only_first", "A")]
    record = controller.records[0]
    assert (record.num_rows, record.bytes_in, record.bytes_out) == (3, 3 * 8 + 6 * 4, 3 * 8 + 6 * 4)


def test_a_suffix_names_the_second_call_of_an_api(controller):
    a = controller.add_group("actor", "A", Probe, ONE, {})
    a.double(controller.put(rows(1)), suffix="greedy").wait()
    assert controller.records[0].key == "double:greedy"
    assert controller.records[0].api == "double"


def test_a_failure_carries_the_rank_and_its_traceback(controller):
    a = controller.add_group("actor", "A", Probe, ONE, {})
    b = controller.add_group("critic", "B", Probe, ONE, {})
    doomed = a.fail(controller.put(rows(1)))
    later = b.total(doomed)  # its input never comes: a secondary failure
    with pytest.raises(RankFailedError, match=r"actor.fail failed on rank 0 of pool A: RuntimeError") as caught:
        later.wait()
    assert "in broken_on_purpose" in str(caught.value)


def test_an_expected_error_of_a_rank_stays_an_input_error_without_traceback(controller):
    a = controller.add_group("actor", "A", Probe, ONE, {"broken_rank": 0})
    with pytest.raises(WorkerInputError, match=r"actor.init_model, rank 0 of pool A: weights/nowhere") as caught:
        a.init_model()[0].wait()
    assert "Traceback" not in str(caught.value)


def test_unknown_calls_name_what_there_is(controller):
    a = controller.add_group("actor", "A", Probe, ONE, {})
    with pytest.raises(UnknownNameError, match="unknown call of actor 'doubel'; did you mean double"):
        a.doubel()


def test_several_ranks_need_ray():
    with pytest.raises(InfeasibleError, match="pool A has 2 ranks; without Ray a pool is one process"):
        LocalLauncher().start_pool(ResourcePool("A", 2))
