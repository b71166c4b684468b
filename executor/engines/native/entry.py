"""The torch-native engine, as the registry has it: the harness for CPUs, and the one that grows weights in place."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from executor.engines.entry import Capabilities, GenerationEntry, TrainingEntry

if TYPE_CHECKING:
    from executor.engines.entry import GeneratorSetup, LayoutOptions, TrainerSetup
    from executor.engines.interfaces import GenerationEngine, Generator, TrainingEngine
    from executor.weights.architecture import Architecture
    from executor.weights.regions import Layout
    from simulator.plan.groups import Degrees


def _training_layout(arch: Architecture, degrees: Degrees, options: LayoutOptions) -> Layout:
    from executor.weights.native_layout import NativeLayout

    return NativeLayout(arch, degrees, "training", transposed=False)


def _trainer(setup: TrainerSetup) -> TrainingEngine:
    from executor.engines.native.engine import TorchNativeEngine

    degrees = replace(setup.degrees, pg=setup.degrees.p, tg=setup.degrees.t)  # generation is another engine's
    return TorchNativeEngine(setup.identity, setup.address, degrees, setup.spec)


def _in_place(setup: TrainerSetup) -> tuple[TrainingEngine, Generator]:
    from executor.engines.native.engine import TorchNativeEngine

    made = TorchNativeEngine(setup.identity, setup.address, setup.degrees, setup.spec)
    return made, made


def _generation_layout(arch: Architecture, degrees: Degrees) -> Layout:
    from executor.weights.native_layout import NativeLayout

    return NativeLayout(arch, degrees, "generation", transposed=False)


def _generator(setup: GeneratorSetup) -> GenerationEngine:
    from executor.engines.native.generator import NativeGenerator

    return NativeGenerator(setup)


NATIVE_TRAINING = TrainingEntry(
    "torch-native",
    "torch",
    Capabilities(trains=True, scores=True, offload=True, adapters=True, adapters_tensor_parallel=True),
    _training_layout,
    _trainer,
    build_in_place=_in_place,
)
NATIVE_GENERATION = GenerationEntry(
    "torch-native",
    "torch",
    Capabilities(generates=True, adapters=True, adapters_tensor_parallel=True),
    _generation_layout,
    _generator,
)
