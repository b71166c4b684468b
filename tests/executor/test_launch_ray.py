"""Protects this machine: a Ray cluster of our own, through which anybody could run code, is reached from here alone."""

import os

import psutil
import pytest

from executor.controller import Controller
from executor.launch_ray import LOOPBACK, RayLauncher
from executor.pools import ResourcePool

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.slow]


def test_everything_that_ray_starts_listens_on_the_loopback_address_alone():
    before = {name: os.environ.get(name) for name in LOOPBACK}
    launcher = RayLauncher(cpu_ranks=1)
    with Controller(launcher) as controller:
        controller.start([ResourcePool("A", 1)])
        listening = {
            (process.name(), connection.laddr.ip)
            for process in psutil.Process().children(recursive=True)
            for connection in process.net_connections(kind="inet")
            if connection.status == psutil.CONN_LISTEN
        }
    assert len(listening) >= 3  # the head, the raylet, a rank
    assert {ip for _, ip in listening} <= {"127.0.0.1", "::ffff:127.0.0.1", "::1"}, listening
    assert {name: os.environ.get(name) for name in LOOPBACK} == before
