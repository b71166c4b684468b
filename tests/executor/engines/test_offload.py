"""Protects offload: states really leave and come back, the curve stays, and copies are counted to the byte."""

import pytest
import torch

from executor.engines.model_spec import ModelSpec, OptimizerConfig
from executor.engines.native.engine import TorchNativeEngine
from executor.engines.offload import HostMemory
from executor.records import Identity
from executor.run import run
from simulator.plan.groups import Degrees
from tests.executor.plans import TINY, colocated, config, job, learned, metrics

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
BOTH = ("parameters", "optimizer")


def offloaded(plan, role, away):
    entries = tuple(e.model_copy(update={"offload": away}) if e.role == role else e for e in plan.roles)
    return plan.model_copy(update={"roles": entries})


def test_a_state_leaves_comes_back_and_its_views_live_on():
    state = torch.arange(6.0)
    view = state[2:4]
    host = HostMemory({"parameters": lambda: [state]}, ["parameters"])
    host.send_away()
    assert state.untyped_storage().nbytes() == 0
    with host.present("parameters"):
        assert view.tolist() == [2.0, 3.0]
    assert state.untyped_storage().nbytes() == 0
    with host.present("parameters", changed=True):
        view += 10
    with host.present("parameters"):
        assert state.tolist() == [0.0, 1.0, 12.0, 13.0, 4.0, 5.0]
    assert host.num_bytes == (1 + 1 + 2 + 1) * 24  # out; in; in and out; in: unchanged states leave without a copy


def test_a_state_stays_until_all_who_hold_it_let_go():
    state = torch.arange(6.0)
    host = HostMemory({"parameters": lambda: [state]}, ["parameters"])
    host.send_away()
    host.hold("parameters")
    with host.present("parameters", changed=True):
        state += 1
    assert state.tolist() == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    host.let_go("parameters")
    assert state.untyped_storage().nbytes() == 0
    with host.present("parameters"):
        assert state.tolist() == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]  # the change within was not lost
    assert host.num_bytes == (1 + 1 + 1 + 1) * 24  # out; in once for both; out again changed; in


def test_memory_on_the_host_is_taken_once():
    """Pinning gigabytes takes the system seconds, and two copies of an optimizer may be more than a host has."""
    state = torch.arange(6.0)
    host = HostMemory({"parameters": lambda: [state]}, ["parameters"])
    host.send_away()
    (copy,) = host._copies["parameters"]  # noqa: SLF001
    with host.present("parameters", changed=True):
        state += 1
    assert host._copies["parameters"][0] is copy  # noqa: SLF001
    with host.present("parameters"):
        assert state.tolist() == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]


def test_states_that_stay_are_left_alone():
    state = torch.arange(3.0)
    host = HostMemory({"optimizer": lambda: [state]}, [])
    host.send_away()
    with host.present("optimizer", changed=True):
        state += 1
    assert (host.num_bytes, state.tolist()) == (0, [1.0, 2.0, 3.0])


@pytest.mark.parametrize("away", [("parameters",), ("optimizer",), BOTH], ids="+".join)
def test_offload_changes_no_number_and_shows_in_the_timeline(away, tmp_path):
    plain = colocated("ppo")
    run(job("ppo"), plain, config(), tmp_path / "plain", 2)
    moving = offloaded(offloaded(plain, "actor", away), "critic", away)
    timeline = run(job("ppo"), moving, config(), tmp_path / "moving", 2)[-1]
    assert [learned(m) for m in metrics(tmp_path / "moving")] == [learned(m) for m in metrics(tmp_path / "plain")]
    actor, critic = (sizes(value_head) for value_head in (False, True))
    moved = {"update_actor": 2 * sum(actor[s] for s in away), "update_critic": 2 * sum(critic[s] for s in away)}
    if "parameters" in away:
        moved |= {"transition": actor["parameters"], "compute_values": critic["parameters"]}
    assert copied(timeline) == moved
    for span in timeline.spans:
        assert (span.counts.host_s > 0) == (span.call in moved)
        assert span.counts.host_s <= span.comm_s < span.duration_s or span.call not in moved


def test_a_frozen_model_is_fetched_and_dropped(tmp_path):
    plan = offloaded(colocated("ppo"), "reference", ("parameters",))
    timeline = run(job("ppo"), plan, config(), tmp_path, 1)[0]
    assert copied(timeline) == {"compute_ref_log_prob": sizes(False)["parameters"]}


def copied(timeline):
    """Bytes between device and host by call."""
    return {span.call: span.counts.host_bytes for span in timeline.spans if span.counts.host_bytes}


def sizes(value_head: bool) -> dict[str, int]:
    """Bytes of the states of a whole model on one rank; after a step the optimizer has two moments."""
    made = TorchNativeEngine(
        Identity("A", 0, 1),
        "",
        Degrees(1, 1, 1, 1, 1),
        ModelSpec(str(TINY), value_head=value_head, optimizer=OptimizerConfig(1e-3)),
    )
    made.load()
    parameters = made.flat.num_elements * 4
    return {"parameters": parameters, "optimizer": 3 * parameters}
