"""Protects placement over several nodes, on Ray's own cluster of several nodes in one machine."""

import pytest

from executor.controller.controller import Controller
from executor.controller.pools import Devices, ResourcePool
from executor.launch import reservation
from executor.launch.choice import count_devices
from executor.launch.ray import RayLauncher
from executor.recovery.scale_down import scale_down
from executor.run import run
from profiles.errors import InfeasibleError, InputError
from simulator.plan.groups import Degrees
from tests.executor.plans import colocated, config, generating_apart, job
from tests.executor.workers import Probe

pytest.importorskip("ray")
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.slow, pytest.mark.thorough]


def test_tensor_parallel_groups_stay_in_a_node_and_pools_lie_where_the_plan_has_them():
    """Nodes of three and five slots: a pair never lies on both, four and four do not fit, the second node is meant."""
    from ray.cluster_utils import Cluster

    nodes = Cluster()
    try:
        for slots in (3, 5):
            nodes.add_node(num_cpus=slots, object_store_memory=100 << 20)
        launcher = RayLauncher(nodes.address)
        with Controller(launcher) as controller:
            with pytest.raises(InfeasibleError, match=r"2 groups of 4 devices that must share a node; .* which hold 1"):
                controller.start([ResourcePool("A", 8, together=4)])
            controller.start([ResourcePool("B", 6, together=2)])
            group = controller.add_group("actor", "B", Probe, Degrees(1, 2, 3, 1, 2), {})
            places = [future.first() for future in group.node()]
            assert [places[i] == places[i + 1] for i in (0, 2, 4)] == [True] * 3
            assert len(set(places)) == 2
            launcher.clear()
            sizes = {node["NodeID"]: int(node["Resources"]["CPU"]) for node in launcher._ray.nodes()}  # noqa: SLF001
            order = [sizes[node.name] for node in launcher._reservations._nodes_of(None)]  # noqa: SLF001
            controller.start([ResourcePool("C", 2, together=2, first_device=order[0])])
            group = controller.add_group("actor", "C", Probe, Degrees(1, 2, 1, 1, 2), {})
            assert {sizes[future.first()] for future in group.node()} == {order[1]}
    finally:
        nodes.shutdown()


@pytest.mark.long
def test_pools_spread_over_the_nodes_of_a_cluster(monkeypatch):
    """Two nodes of two slots: a pool of four takes both, and consecutive ranks stay together."""
    from ray.cluster_utils import Cluster

    nodes = Cluster()
    try:
        for _ in range(2):
            nodes.add_node(num_cpus=2, object_store_memory=100 << 20)
        launcher = RayLauncher(nodes.address)
        assert launcher.num_devices == 4
        with Controller(launcher) as controller:
            controller.start([ResourcePool("A", 4)])
            assert "columns go " in controller.transport_note  # between nodes: which way, and what is missing
            degrees = Degrees(1, 2, 2, 1, 2)
            group = controller.add_group("actor", "A", Probe, degrees, {})
            places = [future.first() for future in group.node()]
            assert places[0] == places[1] != places[2] == places[3]
            monkeypatch.setattr(reservation, "PLACEMENT_TIMEOUT_S", 2.0)  # for what never fits, not for what does
            with pytest.raises(InfeasibleError, match=r"pool B found no 1 free CPU slots in \d+ s"):
                controller.start([ResourcePool("B", 1)])
            with pytest.raises(InputError, match="connected to the Ray cluster at"):
                RayLauncher("127.0.0.1:1")
    finally:
        nodes.shutdown()


def test_pools_go_to_nodes_of_their_kind(monkeypatch, tmp_path):
    """Two nodes of two kinds; each pool's ranks are on the node of its kind, in whatever order pools start."""
    from ray.cluster_utils import Cluster

    nodes = Cluster()
    try:
        made = {}
        for kind in ("h100-80gb-sxm", "a100-80gb-sxm"):
            node = nodes.add_node(num_cpus=4, resources={kind: 2}, object_store_memory=100 << 20)
            made[node.node_id] = kind
        launcher = RayLauncher(nodes.address)
        assert launcher.kinds == {"h100-80gb-sxm": 2, "a100-80gb-sxm": 2}
        with Controller(launcher) as controller:
            pools = [ResourcePool("B", 2, kind="a100-80gb-sxm"), ResourcePool("A", 1, kind="h100-80gb-sxm")]
            controller.start(pools)
            for pool in pools:
                x = Degrees(1, 1, pool.num_ranks, 1, 1)
                group = controller.add_group("actor", pool.name, Probe, x, {})
                assert {made[future.first()] for future in group.node()} == {pool.kind}
            monkeypatch.setattr(reservation, "PLACEMENT_TIMEOUT_S", 2.0)  # for what never fits, not for what does
            with pytest.raises(
                InfeasibleError, match=r"pool C found no 2 free CPU slots of kind h100-80gb-sxm in \d+ s"
            ):
                controller.start([ResourcePool("C", 2, kind="h100-80gb-sxm")])
            short = generating_apart(colocated("ppo"), (1, 1, 3))
            kinds = dict(zip(short.pools, made.values(), strict=True))
            short = short.model_copy(
                update={"pools": tuple(p.model_copy(update={"device": kind}) for p, kind in kinds.items())}
            )
            with pytest.raises(InfeasibleError, match="asks for 3 x a100-80gb-sxm, 1 x h100-80gb-sxm"):
                run(job("ppo"), short, config(launcher="ray"), tmp_path)
            found = count_devices(short, config(launcher="ray"))
            assert found == Devices(8, launcher.kinds)
            assert scale_down(short, found).gpus == {"h100-80gb-sxm": 1, "a100-80gb-sxm": 1}
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
