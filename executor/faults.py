"""Faults on purpose, to be injected into a run, so that noticing and recovering can be tried on real workers.

``run.faults`` of a job file lists them; the fake engine takes the same records. How they happen in a rank's calls is
in ``worker.inject_faults``. Imports no torch: job files are read without it.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import Annotated, Literal

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

from profiles.errors import InputError

FaultKind = Literal["error", "kill", "delay", "hang", "nan", "drop", "flip"]
Victim = Literal["rank", "controller", "raylet", "gcs", "agent"]
Index = Annotated[int, Field(ge=0)]
HANG_S = 86_400.0


@dataclass(frozen=True, config=ConfigDict(extra="forbid", defer_build=True))
class Fault:
    """On ``rank`` of ``role``, the ``call``-th time (from 0) that ``api`` runs in the run's ``attempt``-th start.

    Parameters
    ----------
    kind
        ``error``: the call raises. ``kill``: the process ends ``delay_s`` into the call, or later if the call is
        through by then. ``delay``: the call begins ``delay_s`` later. ``hang``: it never ends. ``nan``: the real
        columns that it reads hold no numbers, or those that it returns where it reads none. ``drop``: connections to
        the pool's other ranks are shut (not NCCL's). ``flip``: one bit of the first weight is another, before the call
        (of the optimizer's master weights where there are some).
    victim
        Whose process ``kill`` ends: the rank's, the controller's, or that of a daemon of the Ray cluster that the run
        started itself. On a cluster that it did not start, the raylet is the node.
    pool
        Where the role has two pools (generation apart), which of them; else any.
    """

    role: str
    api: str
    call: Index = 0
    rank: Index = 0
    kind: FaultKind = "error"
    delay_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    attempt: Index = 0
    pool: str | None = None
    victim: Victim = "rank"


class InjectedFaultError(RuntimeError):
    """An error that a ``Fault`` asked for."""


class Due:
    """Counts calls and says which faults strike now."""

    def __init__(self, rank: int, faults: tuple[Fault, ...], pool: str | None = None) -> None:
        self._mine = [f for f in faults if f.rank == rank and (f.pool is None or f.pool == pool)]
        self._seen: dict[tuple[str, str], int] = {}

    def now(self, role: str, api: str) -> list[Fault]:
        """The faults of this call; asking counts it."""
        number = self._seen.get((role, api), 0)
        self._seen[role, api] = number + 1
        return [f for f in self._mine if (f.role, f.api, f.call) == (role, api, number)]


def strike(fault: Fault) -> None:
    """What needs no worker: wait, end, fail."""
    if fault.kind == "delay":
        time.sleep(fault.delay_s)
    elif fault.kind == "hang":
        time.sleep(HANG_S)
    elif fault.kind == "kill":
        process = process_of(fault.victim)
        if fault.delay_s == 0:
            os.kill(process, signal.SIGKILL)
        else:
            threading.Timer(fault.delay_s, os.kill, (process, signal.SIGKILL)).start()
    elif fault.kind == "error":
        raise InjectedFaultError(f"{fault.role}.{fault.api} number {fault.call} was told to fail on rank {fault.rank}")
    else:
        raise InputError(f"a fake engine has no weights and no connections for a fault of kind {fault.kind}")


def process_of(victim: Victim) -> int:
    """The process of a victim, as a rank finds it: the raylet started the rank, the controller the raylet and GCS."""
    if victim == "rank":
        return os.getpid()
    import psutil  # with Ray only

    raylet = next((one for one in psutil.Process().parents() if one.name() == "raylet"), None)
    if raylet is None:
        raise InputError(f"a fault ends Ray's {victim}, but this rank was started by no Ray cluster")
    if victim in ("raylet", "controller"):
        return int(raylet.pid if victim == "raylet" else raylet.parent().pid)
    siblings = raylet.children() if victim == "agent" else raylet.parent().children()
    sign = "/agent.py" if victim == "agent" else "gcs_server"
    return next(int(one.pid) for one in siblings if any(sign in word for word in one.cmdline()))
