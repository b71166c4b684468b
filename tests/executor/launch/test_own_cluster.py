"""Protects a run from the death of Ray's own daemons: it is told at once, and a cluster in its place works."""

import os
import signal

import pytest

from executor.controller.controller import Controller
from executor.controller.pools import ResourcePool
from executor.errors import RankFailedError
from executor.launch.own_cluster import (
    KEPT_SESSIONS,
    LEAST_STORE_BYTES,
    MARK,
    DaemonLostError,
    prune_sessions,
    store_bytes_for,
)
from executor.launch.ray import RayLauncher
from simulator.plan.groups import Degrees
from tests.executor.workers import Probe


def daemon(launcher, name):
    (process,) = launcher.own_cluster.node().all_processes[name]
    return process.process


def started(launcher):
    controller = Controller(launcher)
    controller.start([ResourcePool("A", 1)])
    return controller.add_group("actor", "A", Probe, Degrees(1, 1, 1, 1, 1), {})


@pytest.mark.filterwarnings("ignore")
@pytest.mark.thorough
@pytest.mark.parametrize(("name", "error"), [("gcs_server", DaemonLostError), ("raylet", RankFailedError)])
def test_a_daemon_that_ends_fails_the_call_and_another_cluster_takes_over(name, error, tmp_path):
    launcher = RayLauncher(cpu_ranks=1)
    try:
        group = started(launcher)
        futures = group.wait_for(gate=str(tmp_path))
        daemon(launcher, name).send_signal(signal.SIGKILL)
        daemon(launcher, name).wait()
        with pytest.raises(error):
            [future.first() for future in futures]
        with pytest.raises(DaemonLostError):  # Ray would end this process, without a word
            launcher.put("anything")
        launcher.clear()
        assert launcher.own_cluster.lost_daemon() is None
        assert [future.first() for future in started(launcher).no_op()] == [None]
    finally:
        launcher.stop()


def test_old_sessions_of_ours_are_removed_and_no_others(tmp_path):
    for number in range(KEPT_SESSIONS + 2):
        session = tmp_path / f"session_{number}"
        session.mkdir()
        (session / MARK).write_text("999999999")
        os.utime(session / MARK, (number, number))
    for name, mark in (("session_strangers", None), ("session_running", str(os.getpid())), ("session_odd", "x")):
        (tmp_path / name).mkdir()
        if mark:
            (tmp_path / name / MARK).write_text(mark)
    prune_sessions(tmp_path)
    left = {folder.name for folder in tmp_path.iterdir()}
    assert {"session_strangers", "session_running"} <= left
    assert not {"session_0", "session_1"} & left and f"session_{KEPT_SESSIONS + 1}" in left


@pytest.mark.parametrize(
    ("batch_bytes", "most_bytes", "expected"),
    [
        (0, 8 << 30, LEAST_STORE_BYTES),
        (1 << 30, 8 << 30, 2 << 30),
        (6 << 30, 8 << 30, 8 << 30),
        (0, 0, LEAST_STORE_BYTES),
    ],
)
def test_the_object_store_holds_two_batches_where_the_machine_gives_as_much(batch_bytes, most_bytes, expected):
    assert store_bytes_for(batch_bytes, most_bytes) == expected
