"""Everything a price may look at: the job's models and work, the cluster's devices, the engines."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from simulator.dataflow import Dataflow, build_dataflow

if TYPE_CHECKING:
    from profiles.engine_facts import GenerationEngine, TrainingEngine
    from profiles.hardware import ClusterGroup
    from profiles.model_shape import ModelShape
    from profiles.store import DeviceProfile
    from profiles.workload import Workload


@dataclass(frozen=True)
class RoleSpec:
    """A role's model and the number format of its forward passes (training is bf16 with fp32 states)."""

    shape: ModelShape
    precision: str = "bf16"


@dataclass(frozen=True)
class Facts:
    """What is known before anything is planned.

    ``roles`` maps each role to its model; ``group`` is the one device kind of the cluster; ``device`` its profile.
    """

    algorithm: str
    roles: dict[str, RoleSpec]
    workload: Workload
    group: ClusterGroup
    device: DeviceProfile
    training: TrainingEngine
    generation: GenerationEngine

    @property
    def dataflow(self) -> Dataflow:
        return build_dataflow(self.algorithm, tuple(self.roles))

    @property
    def memory_capacity_bytes(self) -> int:
        """Memory of one GPU, before any reserve."""
        return int(self.device.spec.memory_bytes)

    @property
    def facts_hash(self) -> str:
        """Hash of every profile fact the prices rest on: tables, device card, engine constants."""
        parts = (self.device.facts_hash, self.training.facts_hash, self.generation.facts_hash)
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()
