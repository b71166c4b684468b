"""Protects runs on somebody else's cluster from waiting for ever once this machine has left it."""

import pytest

from executor.controller.controller import Controller
from executor.controller.pools import ResourcePool
from executor.launch.joined_cluster import MachineLeftError
from executor.launch.ray import RayLauncher
from simulator.plan.groups import Degrees
from tests.executor.workers import Probe

pytest.importorskip("ray")
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.slow, pytest.mark.thorough]


def test_a_machine_that_left_the_cluster_is_said_and_not_waited_for():
    """Ranks and control store live on, on other nodes; what they answer would come through the raylet that is gone."""
    from ray.cluster_utils import Cluster

    nodes = Cluster()
    try:
        head = nodes.add_node(num_cpus=0, object_store_memory=100 << 20)
        nodes.add_node(num_cpus=2, object_store_memory=100 << 20)
        launcher = RayLauncher(nodes.address)
        with pytest.raises(MachineLeftError, match=r"raylet.* --resume"), Controller(launcher) as controller:
            controller.start([ResourcePool("A", 1)])
            group = controller.add_group("actor", "A", Probe, Degrees(1, 1, 1, 1, 1), {})
            assert next(iter(group.node())).first() in {node["NodeID"] for node in launcher._ray.nodes()}  # noqa: SLF001
            head.kill_raylet()
            controller.start([ResourcePool("B", 1)])
    finally:
        nodes.shutdown()
