"""Megatron-Core, as the registry has it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from executor.engines.entry import Capabilities, LayoutOptions, TrainingEntry

if TYPE_CHECKING:
    from executor.engines.interfaces import TrainingEngine
    from executor.engines.model_spec import ModelSpec
    from executor.records import Identity
    from executor.weights.architecture import Architecture
    from executor.weights.regions import Layout
    from simulator.plan.groups import Degrees


def _layout(arch: Architecture, degrees: Degrees, options: LayoutOptions) -> Layout:
    from executor.weights.megatron_layout import MegatronLayout

    return MegatronLayout(arch, degrees, options.vpp, options.ep)


def _trainer(
    identity: Identity, address: str, degrees: Degrees, spec: ModelSpec, options: LayoutOptions
) -> TrainingEngine:
    from executor.engines.megatron.engine import MegatronEngine

    return MegatronEngine(identity, address, degrees, spec, options)


MEGATRON_CORE = TrainingEntry(
    "megatron-core",
    "megatron",
    Capabilities(
        trains=True,
        scores=True,
        offload=True,
        interleaved_pipeline=True,
        expert_parallel=True,
    ),
    _layout,
    _trainer,
    priced_as="megatron-core",
)
