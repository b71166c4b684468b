"""FSDP2, as the registry has it."""

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
    from executor.weights.native_layout import FsdpLayout

    return FsdpLayout(arch, degrees.num_ranks, degrees.t)


def _trainer(setup: TrainerSetup) -> TrainingEngine:
    from executor.engines.fsdp.engine import FsdpEngine

    return FsdpEngine(setup.identity, setup.address, setup.degrees, setup.spec, setup.options)


FSDP2 = TrainingEntry(
    "fsdp2",
    "torch",
    Capabilities(
        trains=True, scores=True, offload=True, zero_stages=(0, 1, 2, 3), pipeline_parallel=False, adapters=True
    ),
    _layout,
    _trainer,
    priced_as="fsdp",
)
