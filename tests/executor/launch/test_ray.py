"""Protects this machine: a Ray cluster of our own, through which anybody could run code, is reached from here alone;
and its object store holds the batches of a run.
"""

import os
from types import SimpleNamespace

import psutil
import pytest

from executor.controller.controller import Controller
from executor.controller.pools import ResourcePool
from executor.launch.own_cluster import LOOPBACK, most_store_bytes, store_bytes_for
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


@pytest.fixture(scope="module")
def seen():
    """One start: the environment, what listens before and after ranks have met, their cores, the bytes of the store."""
    found, batch_bytes = SimpleNamespace(before={name: os.environ.get(name) for name in LOOPBACK}), 300 << 20
    launcher = RayLauncher(cpu_ranks=2, pin_cores=True, batch_bytes=batch_bytes)
    with Controller(launcher) as controller:
        controller.start([ResourcePool("A", 2)])
        found.idle, found.cores = listening(), cores_of_ranks()
        group = controller.add_group("actor", "A", Probe, Degrees(1, 1, 2, 1, 1), {})
        found.sums = [future.first() for future in group.meet()]
        found.met = listening()
        found.store_bytes = launcher.own_cluster.node().get_resource_and_label_spec().object_store_memory
        found.asked_bytes = store_bytes_for(batch_bytes, most_store_bytes())
    found.after = {name: os.environ.get(name) for name in LOOPBACK}
    return found


def test_everything_that_ray_and_its_ranks_open_listens_on_the_loopback_address_alone(seen):
    assert seen.sums == [2, 2]
    assert len(seen.idle) >= 3  # the head, the raylet, a rank
    assert {ip for _, ip in seen.met} <= {"127.0.0.1", "::ffff:127.0.0.1", "::1"}, seen.met
    assert seen.after == seen.before


def test_ranks_that_ask_for_it_have_a_core_each(seen):
    usable = sorted(os.sched_getaffinity(0))
    assert seen.cores == [[usable[0]], [usable[1 % len(usable)]]]


def test_ray_starts_with_a_store_of_two_batches(seen):
    assert seen.store_bytes == seen.asked_bytes == 600 << 20
