"""The torch-native engine, as the registry has it: the harness for CPUs, and the one that grows weights in place."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from executor.engines.entry import Capabilities, GenerationEntry, LayoutOptions, TrainingEntry

if TYPE_CHECKING:
    import torch

    from executor.collectives import CommClock
    from executor.engines.interfaces import GenerationEngine, Generator, TrainingEngine
    from executor.engines.model_spec import ModelSpec
    from executor.records import Identity
    from executor.weights.architecture import Architecture
    from executor.weights.regions import Layout
    from simulator.plan.groups import Degrees


def _training_layout(arch: Architecture, degrees: Degrees, options: LayoutOptions) -> Layout:
    from executor.weights.native_layout import NativeLayout

    return NativeLayout(arch, degrees, "training", transposed=False)


def _trainer(
    identity: Identity, address: str, degrees: Degrees, spec: ModelSpec, options: LayoutOptions
) -> TrainingEngine:
    from executor.engines.native.engine import TorchNativeEngine

    training = replace(degrees, pg=degrees.p, tg=degrees.t)  # generation is another engine's
    return TorchNativeEngine(identity, address, training, spec)


def _in_place(identity: Identity, address: str, degrees: Degrees, spec: ModelSpec) -> tuple[TrainingEngine, Generator]:
    from executor.engines.native.engine import TorchNativeEngine

    made = TorchNativeEngine(identity, address, degrees, spec)
    return made, made


def _generation_layout(arch: Architecture, degrees: Degrees) -> Layout:
    from executor.weights.native_layout import NativeLayout

    return NativeLayout(arch, degrees, "generation", transposed=False)


def _generator(
    identity: Identity,
    degrees: Degrees,
    spec: ModelSpec,
    arch: Architecture,
    dtype: torch.dtype,
    clock: CommClock,
    max_length: int,
) -> GenerationEngine:
    from executor.engines.native.generator import NativeGenerator

    return NativeGenerator(identity.rank, degrees, spec, arch, dtype, clock)


NATIVE_TRAINING = TrainingEntry(
    "torch-native",
    "torch",
    Capabilities(trains=True, scores=True, offload=True),
    _training_layout,
    _trainer,
    build_in_place=_in_place,
)
NATIVE_GENERATION = GenerationEntry(
    "torch-native", "torch", Capabilities(generates=True), _generation_layout, _generator
)
