"""Workers of the tests: small, real worker classes that ranks import by name."""

from __future__ import annotations

import os
import signal
import time

import torch
from tensordict import TensorDict

from executor.engines.torch_native import comms
from executor.protocols import register
from profiles.errors import InputError


class Probe:
    """Answers who it is, sleeps, fails on demand."""

    def __init__(self, identity, *, address, degrees, **options):
        self.identity, self.address, self.degrees, self.options = identity, address, degrees, options

    @register(protocol="ONE_TO_ALL")
    def init_model(self):
        if self.options.get("broken_rank") == self.identity.rank:
            raise InputError("weights/nowhere: no such folder")
        return os.getpid()

    @register(protocol="ONE_TO_ALL")
    def meet(self):
        comms.join_world(self.identity, self.address, torch.device("cpu"), timeout_s=60.0)
        ones = torch.ones(())
        torch.distributed.all_reduce(ones)
        return int(ones)

    @register(protocol="ONE_TO_ALL")
    def no_op(self):
        return None

    @register(protocol="3D_PROTO")
    def double(self, batch, sleep_s=0.0):
        time.sleep(sleep_s)
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
    def fail(self, batch, rank=0, how="raise"):
        if self.identity.rank == rank:
            if how == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            broken_on_purpose(self.identity.rank)
        time.sleep(5 if how == "kill" else 0.2)
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
