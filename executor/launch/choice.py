"""Which launcher a run gets, and how many devices it will find, asked before anything is started."""

from __future__ import annotations

import importlib.util
import sys
from typing import TYPE_CHECKING

from executor.controller.pools import Devices

if TYPE_CHECKING:
    from executor.launch.launcher import Launcher
    from executor.run_config import RunConfig
    from simulator.plan.plan import Plan


def runs_here(plan: Plan, config: RunConfig) -> bool:
    """Whether everything runs in this process: asked for, a plan of one device, or no Ray."""
    if config.launcher == "ray" or config.ray_address is not None:
        return False
    return config.launcher == "local" or plan.num_gpus == 1 or importlib.util.find_spec("ray") is None


def choose_launcher(plan: Plan, config: RunConfig, batch_bytes: int) -> Launcher:
    """In this process or on Ray, whose object store holds batches of ``batch_bytes``."""
    if runs_here(plan, config):
        from executor.launch.local import LocalLauncher

        return LocalLauncher(config.cpu_ranks)
    from executor.launch.ray import RayLauncher

    return RayLauncher(
        config.ray_address,
        cpu_ranks=config.cpu_ranks,
        batch_bytes=batch_bytes,
        transport=config.transport,
        pin_cores=config.pin_cores,
    )


def count_devices(plan: Plan, config: RunConfig) -> Devices:
    """Devices that a run of ``plan`` finds. Starts nothing here; a cluster with an address is asked."""
    if runs_here(plan, config):
        return Devices(min(len(plan.pools), config.cpu_ranks))  # a pool is one rank of this process
    if config.ray_address is not None or _is_connected():
        from executor.launch.ray import RayLauncher

        launcher = RayLauncher(config.ray_address)
        found = Devices.of(launcher)
        launcher.stop()
        return found
    import torch

    return Devices(torch.cuda.device_count() or config.cpu_ranks)


def _is_connected() -> bool:
    return "ray" in sys.modules and bool(sys.modules["ray"].is_initialized())
