"""A Ray cluster of our own on this machine: how it is started, whether its daemons live, and one in its place if not.

Ray gives up on a lost daemon in its own ways: calls fail where the raylet is gone, and a minute after the control store
(GCS) is gone the whole process ends without a word to us. So we look at the daemons ourselves while we wait.
"""

from __future__ import annotations

import os
import shutil
import sys
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from executor.errors import Failure, RankFailedError

if TYPE_CHECKING:
    from collections.abc import Iterator

DAEMONS = {"gcs_server": "control store (GCS)", "raylet": "node manager (raylet)"}
"""What a cluster cannot be without, by Ray's name for the process."""
LOOK_S = 1.0
"""How often we look at the daemons while we wait."""
LEAST_STORE_BYTES = 512 << 20
"""Of the object store of a cluster that we start: metrics, relays' answers, a batch of a small run."""
BATCHES_AT_ONCE = 2
"""In the object store: one is trained on while the next is made. Weights never travel this way."""
MARK = "hybridmap.pid"
"""Our sign in the folder of a session: the process that started it."""
KEPT_SESSIONS = 3
"""Folders of ours that stay when their process is gone, for who looks for a reason in their logs."""

LOOPBACK = {
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "GLOO_SOCKET_IFNAME": "lo",
    "NCCL_SOCKET_IFNAME": "lo",
    "UCX_NET_DEVICES": "lo",
}
"""Environment of the processes of a cluster of our own."""


class DaemonLostError(RankFailedError):
    """A daemon of our own cluster ended; the run can go on with a cluster in its place."""

    def __init__(self, daemon: str) -> None:
        super().__init__(Failure(-1, "cluster", "-", 0, f"Ray's {DAEMONS[daemon]} ended", ""))
        self.args = (
            f"Ray's {DAEMONS[daemon]} on this machine ended, and with it every rank; on_failure: restart starts a "
            "cluster anew and goes on from the newest checkpoint",
        )


def store_bytes_for(batch_bytes: int, most_bytes: int) -> int:
    """Bytes of the object store of a run whose batches have ``batch_bytes``, of ``most_bytes`` that the machine gives.

    What does not fit, Ray writes to disk: the run is slower, and goes on.
    """
    return min(max(LEAST_STORE_BYTES, BATCHES_AT_ONCE * batch_bytes), max(LEAST_STORE_BYTES, most_bytes))


def most_store_bytes() -> int:
    """What an object store may take here: Ray's own share of the memory, and no more shared memory than is free."""
    import psutil
    from ray._private.ray_constants import DEFAULT_OBJECT_STORE_MEMORY_PROPORTION

    share = int(psutil.virtual_memory().total * DEFAULT_OBJECT_STORE_MEMORY_PROPORTION)
    shared = Path("/dev/shm")
    return min(share, shutil.disk_usage(shared).free) if shared.is_dir() else share


class OwnCluster:
    """Ray on this machine alone, with ``cpu_ranks`` slots and ``num_gpus`` GPUs (``None``: those that Ray finds).

    Its object store holds batches of ``batch_bytes``.
    """

    def __init__(self, ray: Any, cpu_ranks: int, num_gpus: int | None, batch_bytes: int) -> None:
        self._ray = ray
        store_bytes = store_bytes_for(batch_bytes, most_store_bytes())
        self._size = {"num_cpus": cpu_ranks, "num_gpus": num_gpus, "object_store_memory": store_bytes}

    def start(self) -> None:
        """Start it and connect to it."""
        # "local": without it Ray joins whatever cluster last ran on this machine, a stranger's or a dead one
        with _on_loopback():
            self._ray.init("local", **self._size, log_to_driver=False, include_dashboard=False, logging_level="ERROR")
        session = Path(self.node().get_session_dir_path())
        with suppress(OSError):  # a full disk: nobody prunes this folder then
            (session / MARK).write_text(str(os.getpid()), encoding="utf-8")
        prune_sessions(session.parent)

    def start_anew(self) -> None:
        """End what is left of it, and start another; to be called within the minute that Ray leaves us."""
        self._ray.shutdown()
        self.start()

    def lost_daemon(self) -> str | None:
        """The first of ``DAEMONS`` that has ended, if one has."""
        started = self.node().all_processes if self._ray.is_initialized() else {}
        ended = (name for name in DAEMONS for each in started.get(name, ()) if each.process.poll() is not None)
        return next(ended, None)

    def require_daemons(self) -> None:
        """Raise ``DaemonLostError`` where one has ended."""
        if (lost := self.lost_daemon()) is not None:
            raise DaemonLostError(lost)

    def node(self) -> Any:
        """Ray's record of the processes that it started here."""
        from ray._private import worker

        return vars(worker)["_global_node"]


def prune_sessions(root: Path) -> None:
    """Remove the session folders of ours in ``root`` whose process is gone, but for the newest ``KEPT_SESSIONS``."""
    gone = [mark for mark in root.glob(f"session_*/{MARK}") if not _lives(mark)]
    gone.sort(key=lambda mark: mark.stat().st_mtime)
    for mark in gone[:-KEPT_SESSIONS]:
        shutil.rmtree(mark.parent, ignore_errors=True)


def _lives(mark: Path) -> bool:
    try:
        os.kill(int(mark.read_text(encoding="utf-8")), 0)
    except (ProcessLookupError, ValueError):
        return False
    except OSError:  # somebody else's process, or a folder that we may not read
        return True
    return True


@contextmanager
def _on_loopback() -> Iterator[None]:
    """What Ray starts meanwhile listens on 127.0.0.1 alone: whoever reaches one of its ports can run code.

    Ray knows this mode for systems where a firewall would ask. Its processes read it in the environment; this process
    read it when Ray was imported.
    """
    from ray._private import ray_constants

    before = dict(os.environ)
    os.environ.update(LOOPBACK if sys.platform == "linux" else {})
    clusters, ray_constants.ENABLE_RAY_CLUSTER = ray_constants.ENABLE_RAY_CLUSTER, False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = clusters
        for name in LOOPBACK:
            os.environ.pop(name, None)
            if name in before:
                os.environ[name] = before[name]
