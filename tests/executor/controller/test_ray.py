"""Protects the controller on real processes: order within a pool, overlap between pools, failures, bytes, nodes."""

import os

import pytest
import ray
import torch
from tensordict import TensorDict

from executor.controller.controller import Controller
from executor.controller.pools import ResourcePool
from executor.errors import RankFailedError, WorkerInputError
from executor.launch import ray as launch_ray
from simulator.plan.groups import Degrees
from tests.executor.workers import OPEN, Probe
from tests.work import wait_until

pytestmark = pytest.mark.filterwarnings("ignore")
TWO, PAIR = Degrees(1, 1, 2, 1, 1), Degrees(1, 2, 1, 1, 2)


RELAYED = pytest.param(1, id="relayed", marks=pytest.mark.long)


@pytest.fixture(scope="module", params=[pytest.param(16, id="direct"), RELAYED])
def controller(request, warm):
    """Two pools; with a fan-out of one, every call goes through relays."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(launch_ray, "FAN_OUT", request.param)
        yield from two_pools(warm)


def two_pools(warm):
    with Controller(warm) as controller:
        controller.start([ResourcePool("A", 2), ResourcePool("B", 2)])
        yield controller


@pytest.fixture(scope="module")
def groups(controller):
    return (
        controller.add_group("actor", "A", Probe, TWO, {}),
        controller.add_group("reference", "A", Probe, TWO, {}),
        controller.add_group("critic", "B", Probe, PAIR, {}),
    )


def rows(num):
    return TensorDict({"uid": torch.arange(num), "x": torch.arange(2.0 * num).reshape(num, 2)}, batch_size=[num])


def test_rows_travel_between_pools_of_different_degrees(controller, groups):
    actor, _, critic = groups
    prompts = controller.put(rows(5))  # uneven over two replicas
    doubled = actor.double(prompts)
    assert torch.equal(doubled.get()["doubled"], rows(5)["x"] * 2)
    assert critic.total(doubled).first() == 2 * float(rows(5)["x"].sum())
    assert doubled.get().keys() == {"doubled", "uid"}  # the padding is gone


def test_colocated_roles_share_processes_and_take_turns_in_call_order(controller, groups, tmp_path):
    pids = [[future.first() for future in group.init_model()] for group in groups]
    assert pids[0] == pids[1]
    assert not {*pids[0], os.getpid()} & set(pids[2])
    prompts, first = controller.put(rows(4)), len(controller.records)
    gates = {role: tmp_path / role for role in ("actor", "reference", "critic")}
    for gate in gates.values():
        gate.mkdir()
    calls = [group.double(prompts, gate=str(gates[role])) for role, group in zip(gates, groups, strict=True)]
    for role in ("actor", "critic"):  # pools overlap; futures have come, though no call is through
        wait_until(lambda role=role: len(list(gates[role].iterdir())) == 2, f"both ranks of {role}")
    assert list(gates["reference"].iterdir()) == []
    for gate in gates.values():
        (gate / OPEN).touch()
    for call in calls:
        call.wait()
    controller.wait_all()
    of = {role: [r for r in controller.records[first:] if r.role == role] for role in ("actor", "reference", "critic")}
    assert {role: len(records) for role, records in of.items()} == {"actor": 2, "reference": 2, "critic": 2}
    for before, after in zip(
        sorted(of["actor"], key=lambda r: r.rank), sorted(of["reference"], key=lambda r: r.rank), strict=True
    ):
        assert after.start_s >= before.end_s  # turns


def test_tensors_do_not_pass_through_the_controller(controller, groups, monkeypatch):
    """Counted outside our own code, at Ray's own get and put in this process."""
    actor, _, critic = groups
    seen = []
    real_get, real_put = ray.get, ray.put
    monkeypatch.setattr(ray, "get", lambda refs, **kw: seen.append(real_get(refs, **kw)) or seen[-1])
    monkeypatch.setattr(ray, "put", lambda value, **kw: seen.append(value) or real_put(value, **kw))
    batch = controller.put(rows(4))
    large = actor.big(batch, megabytes=4)
    total = critic.double(large)
    controller.wait_all()
    assert total.parts  # it ran, its value was never read here
    moved = sum(len(ray.cloudpickle.dumps(value)) for value in seen)
    assert sum(r.bytes_in for r in controller.records if r.key == "double") > 7_000_000
    assert moved < 20_000


def test_a_rank_that_raises_fails_the_call_with_its_traceback(controller, groups):
    actor, _, critic = groups
    doomed = critic.fail(controller.put(rows(2)), rank=1)
    with pytest.raises(
        RankFailedError, match=r"critic.fail failed on rank 1 of pool B: RuntimeError: rank 1 has had"
    ) as caught:
        actor.double(doomed)
        controller.wait_all()  # rank 0 answers, and may be through before rank 1 is heard to have failed
    assert "in broken_on_purpose" in str(caught.value)
    assert actor.only_first().first() == 0  # the ranks live on


def test_a_worker_that_cannot_load_its_model_fails_with_the_reason(controller):
    broken = controller.add_group("reward", "B", Probe, PAIR, {"broken_rank": 1})
    with pytest.raises(WorkerInputError, match=r"reward.init_model, rank 1 of pool B: weights/nowhere: no such folder"):
        for future in broken.init_model():
            future.wait()


def test_a_rank_that_dies_fails_the_run_at_once_and_is_named(controller, groups, tmp_path):
    """Not when the other rank is through: that waits until we know. Last, since pool B does not survive it."""
    _, _, critic = groups
    with pytest.raises(RankFailedError, match=r"critic.fail failed on rank 1 of pool B: its process ended"):
        critic.fail(controller.put(rows(2)), rank=1, how="kill", gate=str(tmp_path)).wait()
    (tmp_path / OPEN).touch()
