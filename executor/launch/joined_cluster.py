"""A Ray cluster of somebody else that this process has joined: whether this machine is still part of it.

Without its node manager (raylet) here, a process of ours waits for results for ever: they come through it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from profiles.errors import HybridmapError

if TYPE_CHECKING:
    import psutil


class MachineLeftError(HybridmapError):
    """The node manager on this machine ended; the cluster may live on, but not for this process."""

    def __init__(self, address: str) -> None:
        super().__init__(
            f"Ray's node manager (raylet) on this machine ended, so it is no longer part of the cluster at {address}; "
            f"'ray start --address {address}' joins again, then --resume goes on from the newest checkpoint"
        )


class JoinedCluster:
    """The cluster at ``address``, of which Ray's own record of this process says what it goes through."""

    def __init__(self, ray: Any) -> None:
        self._address = str(ray.get_runtime_context().gcs_address)
        self._raylet = _raylet_here()

    def require_daemons(self) -> None:
        """Raise ``MachineLeftError`` where this machine's node manager has ended."""
        if self._raylet is not None and not _lives(self._raylet):
            raise MachineLeftError(self._address)


def _raylet_here() -> psutil.Process | None:
    """The node manager that this process talks to; ``None`` where its command line may not be read."""
    import psutil  # with Ray only
    from ray._private import worker

    socket = vars(worker)["_global_node"].raylet_socket_name
    for process in psutil.process_iter(["cmdline"]):
        if f"--raylet_socket_name={socket}" in (process.info["cmdline"] or ()):
            return process
    return None


def _lives(process: psutil.Process) -> bool:
    import psutil

    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
