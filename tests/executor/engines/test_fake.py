"""Protects the fake: it takes the time of a timeline, and fails where it is told to."""

import pytest

from executor.engines.fake import FakeEngine, FakeSpec
from executor.errors import RankFailedError
from executor.faults import Fault, InjectedFaultError
from executor.run import run
from tests.executor.plans import ROLES, colocated, config, job
from tests.work import Clock


def fakes(durations_s, *faults):
    return {role: FakeSpec(role, durations_s, faults) for role in ROLES["ppo"]}


def test_a_run_of_fakes_takes_what_their_calls_take_and_its_timeline_plays_again(tmp_path, monkeypatch):
    """On a clock that sleeping alone moves."""
    clock = Clock()
    for module in ("executor.engines.fake", "executor.worker.worker", "executor.iterations"):
        monkeypatch.setattr(f"{module}.time", clock.module)
    durations_s = {"generate_sequences": 0.05, "update_actor": 0.03, "compute_reward": 0.02}
    timeline = run(job("ppo"), colocated("ppo"), config(), tmp_path, 1, engines=fakes(durations_s))[0]
    for api, duration_s in durations_s.items():
        assert [span.duration_s for span in timeline.spans if span.api == api] == [pytest.approx(duration_s)]
    assert timeline.iteration_s == pytest.approx(0.1)


def test_a_fault_strikes_once_at_its_call_and_rank():
    fault = Fault("actor", "transition", call=1, rank=2)
    engine = FakeEngine(2, FakeSpec("actor", {}, faults=(fault,)))
    engine.to_generation()
    with pytest.raises(InjectedFaultError, match=r"actor.transition number 1 was told to fail on rank 2"):
        engine.to_generation()
    engine.to_generation()
    other = FakeEngine(1, FakeSpec("actor", {}, faults=(fault,)))
    other.to_generation()
    other.to_generation()


def test_a_delay_is_a_fault_too(monkeypatch):
    engine = FakeEngine(0, FakeSpec("actor", {}, faults=(Fault("actor", "transition", kind="delay", delay_s=0.05),)))
    clock = Clock()
    monkeypatch.setattr("executor.faults.time", clock.module)
    before_s = clock.now_s
    engine.to_generation()
    assert clock.now_s - before_s == pytest.approx(0.05)


def test_a_fault_in_the_middle_of_a_run_stops_it_and_keeps_what_was_written(tmp_path):
    fault = Fault("critic", "update_critic", call=1)
    with pytest.raises(RankFailedError, match=r"critic.update_critic failed on rank 0 of pool A: InjectedFaultError"):
        run(job("ppo"), colocated("ppo"), config(), tmp_path, 5, engines=fakes({}, fault))
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 1
    assert not (tmp_path / "timeline.json").exists()
