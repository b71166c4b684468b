"""Workers and engines of the tests: small, real classes that ranks import by name."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass, field
from pathlib import Path

import torch
from tensordict import TensorDict

from executor import collectives
from executor.engines.fake import FakeEngine, FakeSpec
from executor.engines.interfaces import RoleEngine
from executor.worker.protocols import register
from executor.worker.worker import Worker
from profiles.errors import InputError
from tests.work import HANGS_S, wait_until

OPEN = "open"


class Probe(Worker):
    """Answers who it is, waits, fails on demand."""

    def __init__(self, identity, *, address, degrees, **options):
        self.identity, self.address, self.degrees, self.options = identity, address, degrees, options

    @register(protocol="ONE_TO_ALL")
    def init_model(self):
        if self.options.get("broken_rank") == self.identity.rank:
            raise InputError("weights/nowhere: no such folder")
        return os.getpid()

    @register(protocol="ONE_TO_ALL")
    def meet(self):
        collectives.join_world(self.identity, self.address, torch.device("cpu"), timeout_s=HANGS_S)
        ones = torch.ones(())
        torch.distributed.all_reduce(ones)
        return int(ones)

    @register(protocol="ONE_TO_ALL")
    def wait_for(self, gate):
        """Through when the gate, a folder, is open."""
        wait_until((Path(gate) / OPEN).exists, "an open gate")
        return 1

    @register(protocol="ONE_TO_ALL")
    def no_op(self):
        return None

    @register(protocol="3D_PROTO")
    def double(self, batch, gate=None):
        """With a ``gate``, a folder: says there that it has begun, and resumes when the gate is open."""
        if gate is not None:
            (Path(gate) / f"{self.identity.pool}-{self.identity.rank}").touch()
            wait_until((Path(gate) / OPEN).exists, "an open gate")
        return (
            TensorDict({"doubled": batch["x"] * 2, "uid": batch["uid"]}, batch_size=batch.batch_size)
            if (
                "is_padding" not in batch.keys()  # noqa: SIM118
            )
            else TensorDict(
                {"doubled": batch["x"] * 2, "uid": batch["uid"], "is_padding": batch["is_padding"]},
                batch_size=batch.batch_size,
            )
        )

    @register(protocol="3D_PROTO")
    def total(self, batch):
        return float(batch["doubled"].sum())

    @register(protocol="3D_PROTO")
    def fail(self, batch, rank=0, how="raise", gate=None):
        """Fails on ``rank``; with a ``gate``, a folder, the others are through when it is open."""
        if self.identity.rank == rank:
            if how == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            broken_on_purpose(self.identity.rank)
        if gate is not None:
            wait_until((Path(gate) / OPEN).exists, "an open gate")
        return batch

    @register(protocol="ONE_TO_ALL")
    def node(self):
        import ray

        return ray.get_runtime_context().get_node_id()

    @register(protocol="RANK_ZERO")
    def only_first(self):
        return self.identity.rank

    @register(protocol="3D_PROTO")
    def big(self, batch, megabytes=4):
        rows = batch.batch_size[0]
        return TensorDict({"x": torch.ones(rows, megabytes * 250_000 // rows), "uid": batch["uid"]}, batch_size=[rows])


def broken_on_purpose(rank):
    raise RuntimeError(f"rank {rank} has had enough")


@dataclass(frozen=True)
class Meeting(FakeSpec):
    """A fake whose calls meet others: ``meets`` says which call, by name and number, waits for which to have begun.

    Calls that wait for each other end if they run side by side, and never if one runs after the other.
    """

    folder: str = ""
    meets: dict[tuple[str, int], tuple[str, int]] = field(default_factory=dict)

    def build(self, identity, address, degrees):
        engine = MeetingEngine(identity.rank, self)
        return RoleEngine.of_trainer(engine, engine)


class MeetingEngine(FakeEngine):
    def __init__(self, rank, spec):
        super().__init__(rank, spec)
        self.numbers = {}

    def _play(self, api):
        number = self.numbers.get(api, 0)
        self.numbers[api] = number + 1
        folder = Path(self.spec.folder)
        (folder / f"{api}-{number}").touch()
        if (other := self.spec.meets.get((api, number))) is not None:
            wait_until((folder / f"{other[0]}-{other[1]}").exists, f"{other} beside {api}")
        return super()._play(api)


def meetings(roles, folder, meets):
    """A fake that meets others for every role."""
    folder.mkdir()
    both = {**meets, **{there: here for here, there in meets.items()}}
    return {role: Meeting(role, {}, folder=str(folder), meets=both) for role in roles}
