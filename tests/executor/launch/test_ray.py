"""Protects this machine: a Ray cluster of our own, through which anybody could run code, is reached from here alone."""

import os

import psutil
import pytest

from executor.controller.controller import Controller
from executor.controller.pools import ResourcePool
from executor.launch.own_cluster import LOOPBACK
from executor.launch.ray import RayLauncher
from simulator.plan.groups import Degrees
from tests.executor.workers import Probe

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.slow]


def listening():
    """Name and address of everything that processes below this one listen on."""
    return {
        (process.name(), connection.laddr.ip)
        for process in psutil.Process().children(recursive=True)
        for connection in process.net_connections(kind="inet")
        if connection.status == psutil.CONN_LISTEN
    }


def cores_of_ranks():
    """The cores that each rank may use, in any order of ranks."""
    below = psutil.Process().children(recursive=True)
    return sorted(process.cpu_affinity() for process in below if "RankActor" in " ".join(process.cmdline()))


def test_everything_that_ray_and_its_ranks_open_listens_on_the_loopback_address_alone():
    before = {name: os.environ.get(name) for name in LOOPBACK}
    launcher = RayLauncher(cpu_ranks=2, pin_cores=True)
    with Controller(launcher) as controller:
        controller.start([ResourcePool("A", 2)])
        idle, cores = listening(), cores_of_ranks()
        group = controller.add_group("actor", "A", Probe, Degrees(1, 1, 2, 1, 1), {})
        assert [future.first() for future in group.meet()] == [2, 2]
        met = listening()
    usable = sorted(os.sched_getaffinity(0))
    assert cores == [[usable[0]], [usable[1 % len(usable)]]]  # asked for: each on one of its own
    assert len(idle) >= 3  # the head, the raylet, a rank
    assert {ip for _, ip in met} <= {"127.0.0.1", "::ffff:127.0.0.1", "::1"}, met
    assert {name: os.environ.get(name) for name in LOOPBACK} == before
