"""vLLM, as the registry has it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from executor.engines.entry import Capabilities, GenerationEntry

if TYPE_CHECKING:
    import torch

    from executor.collectives import CommClock
    from executor.engines.interfaces import GenerationEngine
    from executor.engines.model_spec import ModelSpec
    from executor.records import Identity
    from executor.weights.architecture import Architecture
    from executor.weights.regions import Layout
    from simulator.plan.groups import Degrees


def _layout(arch: Architecture, degrees: Degrees) -> Layout:
    from executor.weights.vllm_layout import VllmLayout

    return VllmLayout(arch, degrees)


def _generator(
    identity: Identity,
    degrees: Degrees,
    spec: ModelSpec,
    arch: Architecture,
    dtype: torch.dtype,
    clock: CommClock,
    max_length: int,
) -> GenerationEngine:
    from executor.engines.vllm.engine import VllmEngine, VllmOptions

    options = VllmOptions(spec.max_num_seqs, spec.kv_cache_bytes, max_length)
    return VllmEngine(identity.rank, degrees, arch, spec.path, dtype, options)


VLLM = GenerationEntry("vllm", "vllm", Capabilities(generates=True), _layout, _generator, priced_as="vllm")
