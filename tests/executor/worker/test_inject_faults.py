"""Protects faults on purpose: each strikes at its call, rank and start, does what it says, and only there."""

import os

import pytest
import torch
from tensordict import TensorDict

from executor.faults import Fault, InjectedFaultError, process_of
from executor.records import CallRequest, Identity
from executor.run_config import RunConfig
from executor.worker.inject_faults import FaultInjector, flip_bit, weights_of, without_numbers
from executor.worker.worker import Worker, invoke
from profiles.errors import InputError
from tests.executor.plans import config
from tests.work import Clock


class Echo:
    def double(self, batch=None):
        return (
            batch
            if batch is None
            else TensorDict({"y": batch["x"] * 2.0, "uid": batch["uid"]}, batch_size=batch.batch_size)
        )


def injector(*faults, rank=1, pool="B"):
    return FaultInjector(Identity(pool, rank, 2), faults, invoke)


REQUEST = CallRequest(0, "double", "critic", "double", None)
BATCH = TensorDict({"x": torch.ones(2), "uid": torch.arange(2)}, batch_size=[2])


def test_a_fault_strikes_at_its_call_rank_and_pool_alone():
    fault = Fault("critic", "double", call=1, rank=1)
    mine = injector(fault)
    assert mine(Echo(), REQUEST, ()) is None
    with pytest.raises(InjectedFaultError, match=r"critic.double number 1 was told to fail on rank 1"):
        mine(Echo(), REQUEST, ())
    mine(Echo(), REQUEST, ())
    others = [
        injector(fault, rank=0),
        injector(Fault("critic", "double", rank=1, pool="A")),
        injector(Fault("actor", "double", rank=1)),
    ]
    for other in others:
        other(Echo(), REQUEST, ())
        other(Echo(), REQUEST, ())


def test_nan_takes_the_numbers_of_what_a_call_reads_or_returns():
    made = injector(Fault("critic", "double", rank=1, kind="nan"))(Echo(), REQUEST, (BATCH,))
    assert made["y"].isnan().all()
    assert made["uid"].tolist() == [0, 1]
    assert not BATCH["x"].isnan().any()  # a copy is spoiled, not what others read
    assert without_numbers(BATCH)["x"].isnan().all()


def test_a_delay_is_a_delay(monkeypatch):
    clock = Clock()
    monkeypatch.setattr("executor.faults.time", clock.module)
    before_s = clock.now_s
    injector(Fault("critic", "double", rank=1, kind="delay", delay_s=0.05))(Echo(), REQUEST, ())
    assert clock.now_s - before_s == pytest.approx(0.05)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_one_bit_of_one_weight_flips(dtype):
    weights = {"b": torch.ones(4, dtype=dtype), "a": torch.ones(4, dtype=dtype)}
    flip_bit(weights)
    assert weights["a"].tolist() == [1.5, 1.0, 1.0, 1.0]
    assert weights["b"].tolist() == [1.0] * 4
    with pytest.raises(InputError, match="critic has no weights on its device to flip a bit of when double begins"):
        weights_of(Worker(), Fault("critic", "double"))


def test_a_run_section_lists_faults_and_refuses_what_is_none():
    section = config(faults=[{"role": "actor", "api": "update_actor", "call": 2, "kind": "kill", "attempt": 1}])
    assert section.faults == (Fault("actor", "update_actor", call=2, kind="kill", attempt=1),)
    assert RunConfig.model_validate(section.model_dump()).faults == section.faults
    for wrong, told in [
        ({"kind": "explode"}, "faults.0.kind"),
        ({"wen": 1}, "faults.0.wen"),
        ({"call": -1}, "faults.0.call"),
    ]:
        with pytest.raises(InputError, match=told):
            config(faults=[{"role": "actor", "api": "update_actor", **wrong}])


def test_a_daemon_is_one_of_the_cluster_that_started_the_rank():
    assert process_of("rank") == os.getpid()
    for victim in ("raylet", "gcs", "agent"):
        with pytest.raises(InputError, match=f"ends Ray's {victim}, but this rank was started by no Ray cluster"):
            process_of(victim)
