"""Megatron-Core, as the registry has it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from executor.engines.entry import Capabilities, TrainingEntry

if TYPE_CHECKING:
    from executor.engines.entry import LayoutOptions, TrainerSetup
    from executor.engines.interfaces import TrainingEngine
    from executor.weights.architecture import Architecture
    from executor.weights.regions import Layout
    from simulator.plan.groups import Degrees


def _layout(arch: Architecture, degrees: Degrees, options: LayoutOptions) -> Layout:
    from executor.weights.megatron_layout import MegatronLayout

    return MegatronLayout(arch, degrees, options.vpp, options.ep)


def _trainer(setup: TrainerSetup) -> TrainingEngine:
    from executor.engines.megatron.engine import MegatronEngine

    return MegatronEngine(setup.identity, setup.address, setup.degrees, setup.spec, setup.options)


MEGATRON_CORE = TrainingEntry(
    "megatron-core",
    "megatron",
    Capabilities(
        trains=True,
        scores=True,
        offload=True,
        interleaved_pipeline=True,
        context_parallel=True,
        expert_parallel=True,
        mixtures=True,
    ),
    _layout,
    _trainer,
    priced_as="megatron-core",
)
