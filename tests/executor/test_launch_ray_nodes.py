"""Protects placement over several nodes, on Ray's own cluster of several nodes in one machine."""

import pytest

from executor import launch_ray
from executor.controller import Controller
from executor.launch_ray import RayLauncher
from executor.pools import ResourcePool
from profiles.errors import InfeasibleError, InputError
from simulator.groups import Degrees
from tests.executor.workers import Probe

pytest.importorskip("ray")
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.slow]


def test_pools_spread_over_the_nodes_of_a_cluster(monkeypatch):
    """Two nodes of two slots: a pool of four takes both, and consecutive ranks stay together."""
    from ray.cluster_utils import Cluster

    monkeypatch.setattr(launch_ray, "PLACEMENT_TIMEOUT_S", 2.0)
    nodes = Cluster()
    try:
        for _ in range(2):
            nodes.add_node(num_cpus=2, object_store_memory=100 << 20)
        launcher = RayLauncher(nodes.address)
        assert launcher.num_devices == 4
        with Controller(launcher) as controller:
            controller.start([ResourcePool("A", 4)])
            degrees = Degrees(1, 2, 2, 1, 2)
            group = controller.add_group("actor", "A", Probe, degrees, {})
            places = [future.first() for future in group.node()]
            assert places[0] == places[1] != places[2] == places[3]
            with pytest.raises(InfeasibleError, match="pool B found no 1 free CPU slots in 2 s"):
                controller.start([ResourcePool("B", 1)])
            with pytest.raises(InputError, match="connected to the Ray cluster at"):
                RayLauncher("127.0.0.1:1")
    finally:
        nodes.shutdown()


@pytest.mark.slow
def test_a_cluster_of_our_own_is_ours_even_where_another_one_is_named(monkeypatch):
    """Ray joins the cluster that the environment, or a file of the last run, names, dead or alive; unless told."""
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    launcher = RayLauncher(cpu_ranks=2)
    try:
        assert launcher.num_devices == 2
    finally:
        launcher.stop()
