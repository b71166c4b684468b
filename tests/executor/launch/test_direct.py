"""Protects columns that ranks read from each other: equal to what the store gives, and nothing of them stays."""

import importlib.util
from dataclasses import dataclass
from pathlib import Path

import pytest
import ray
import torch
from ray.experimental.rdt.tensor_transport_manager import (
    CommunicatorMetadata,
    TensorTransportManager,
    TensorTransportMetadata,
)
from tensordict import TensorDict

from executor.controller.controller import Controller
from executor.controller.pools import ResourcePool
from executor.launch import direct
from executor.run import run
from executor.worker.protocols import register
from executor.worker.worker import Worker
from profiles.errors import InputError
from simulator.plan.groups import Degrees
from tests.executor.plans import config, job, learned, metrics, plan
from tests.work import wait_until

pytestmark = pytest.mark.filterwarnings("ignore")
SHARED = Path("/dev/shm")
SPLIT = {"A": (("actor", "reference"), (1, 1, 1)), "B": (("critic", "reward"), (1, 1, 2))}
NIXL = pytest.param(
    "nixl", marks=pytest.mark.skipif(importlib.util.find_spec("nixl") is None, reason="pip install nixl")
)


@dataclass
class InFile(TensorTransportMetadata):
    """Where a buffer lies."""

    path: str = ""


class FileTransport(TensorTransportManager):
    """One-sided, as NIXL: a reader takes the buffer without the rank that made it. Through files, for tests alone."""

    def tensor_transport_backend(self):
        return "FILES"

    @staticmethod
    def is_one_sided():
        return True

    @staticmethod
    def can_abort_transport():
        return True

    def actor_has_tensor_transport(self, actor):
        return True

    def extract_tensor_transport_metadata(self, obj_id, rdt_object):
        path = SHARED / f"hybridmap-test-{obj_id}"
        torch.save(list(rdt_object), path)
        return InFile([(t.shape, t.dtype) for t in rdt_object], "cpu", str(path))

    def get_communicator_metadata(self, src_actor, dst_actor, backend=None):
        return CommunicatorMetadata()

    def recv_multiple_tensors(self, obj_id, metadata, communicator, target_buffers=None):
        return torch.load(metadata.path)

    def send_multiple_tensors(self, tensors, metadata, communicator):
        raise AssertionError("nobody sends on a one-sided transport")

    def garbage_collect(self, obj_id, metadata, tensors):
        Path(metadata.path).unlink()

    def abort_transport(self, obj_id, communicator):
        raise AssertionError("nothing is aborted here")


def add_transport(*_):
    """In this process: here, or in a rank."""
    from ray.experimental.rdt.util import register_tensor_transport, transport_manager_info

    if "FILES" not in transport_manager_info:
        register_tensor_transport("FILES", ["cpu"], FileTransport, torch.Tensor)


class Columns(Worker):
    """Makes columns of every type, and writes into its own tensors afterwards."""

    def __init__(self, identity, **_options):
        self.rank, self.mine = identity.rank, torch.zeros(0)

    @register(protocol="DP_PROTO")
    def make(self, prompts):
        rows = prompts["n"].shape[0]
        self.mine = prompts["n"].clone()
        columns = {"n": self.mine, "half": torch.full((rows, 3), 0.5, dtype=torch.bfloat16)}
        empty = torch.zeros(rows, 0)
        return TensorDict({**columns, "even": prompts["n"] % 2 == 0, "empty": empty}, batch_size=[rows])

    @register(protocol="DP_PROTO")
    def double(self, batch):
        self.mine += 100  # what others read of ``make`` stays
        types = (batch["half"].dtype, batch["even"].dtype, batch["empty"].shape[1])
        assert types == (torch.bfloat16, torch.bool, 0)
        return TensorDict({"twice": batch["n"] * 2 * batch["half"].float().mean()}, batch_size=batch.batch_size)

    @register(protocol="ONE_TO_ALL")
    def kept(self):
        manager = ray._private.worker.global_worker.rdt_manager  # noqa: SLF001
        return manager.rdt_store.get_num_objects(), len(manager._managed_rdt_metadata)  # noqa: SLF001


@pytest.fixture
def launcher(request, warm, on_ray, monkeypatch):
    """The product's on the ranks that live through all files; they have the test's transport, too."""

    def without_transport(ranks):
        add_transport()
        warm._all_of([rank.__ray_call__.remote(add_transport) for rank in ranks])  # noqa: SLF001
        return []

    monkeypatch.setattr(direct, "NIXL", request.param)
    monkeypatch.setattr(direct, "is_installed", lambda: True)
    monkeypatch.setattr(warm, "transport", "direct")
    monkeypatch.setattr(warm, "_without_transport", without_transport)
    return warm


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["files", NIXL], indirect=True)
def test_columns_read_from_another_rank_are_what_it_made_and_nothing_of_them_stays(launcher):
    with Controller(launcher) as controller:
        controller.start([ResourcePool("A", 2), ResourcePool("B", 2)])
        assert "from rank to rank" in controller.transport_note
        degrees = Degrees(1, 1, 2, 1, 1)
        makes = controller.add_group("maker", "A", Columns, degrees, {})
        reads = controller.add_group("reader", "B", Columns, degrees, {})
        numbers = torch.arange(8)
        for _ in range(3):
            made = makes.make(controller.put(TensorDict({"n": numbers}, batch_size=[8])))
            again = makes.double(made)
            twice = reads.double(made | again).get()["twice"]
            assert torch.equal(twice, numbers.float())
            assert isinstance(launcher._ray.get(made.parts[0].sources[0].data), direct.Held)  # noqa: SLF001
            assert made.get()["even"].tolist() == [n % 2 == 0 for n in range(8)]
        del made, again
        of_ranks = lambda: [future.first() for group in (makes, reads) for future in group.kept()]  # noqa: E731
        wait_until(lambda: of_ranks() == [(0, 0)] * 4, "the end of all buffers and of what Ray keeps of them")
        assert not launcher._ray._private.worker.global_worker.rdt_manager._managed_rdt_metadata  # noqa: SLF001


@pytest.mark.thorough
@pytest.mark.parametrize("launcher", ["files", NIXL], indirect=True)
def test_a_run_whose_columns_go_directly_has_the_losses_of_one_through_the_store(launcher, tmp_path):
    work, found, notes = job("ppo", prompts=6, minibatches=2), {}, []
    for transport in ("direct", "store"):
        launcher.transport = transport
        asked = config(launcher="ray", transport=transport)
        run(work, plan("ppo", SPLIT), asked, tmp_path / transport, 2, on_note=notes.append)
        found[transport] = [learned(line) for line in metrics(tmp_path / transport)]
    assert found["direct"] == found["store"]
    assert len(notes) == 1


def test_columns_go_directly_between_nodes_that_can_and_say_why_where_they_do_not():
    assert direct.chosen("store", 4, []) == (False, None)
    assert direct.chosen("auto", 1, []) == (False, None)
    assert direct.chosen("auto", 2, [])[0]
    assert direct.chosen("direct", 1, [])[0]
    goes, note = direct.chosen("auto", 2, ["10.0.0.2", "10.0.0.2"])
    assert not goes
    assert note == (
        "columns go through Ray's object store; with 'pip install nixl' beside Ray 2.60 on 10.0.0.2 ranks read them "
        "from each other"
    )
    with pytest.raises(InputError, match=r"run.transport direct: nixl is missing; 'pip install nixl'.*this machine"):
        direct.chosen("direct", 1, ["this machine"])
