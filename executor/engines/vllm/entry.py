"""vLLM, as the registry has it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from executor.engines.entry import Capabilities, GenerationEntry

if TYPE_CHECKING:
    from executor.engines.entry import GeneratorSetup
    from executor.engines.interfaces import GenerationEngine
    from executor.weights.architecture import Architecture
    from executor.weights.regions import Layout
    from simulator.plan.groups import Degrees


def _layout(arch: Architecture, degrees: Degrees) -> Layout:
    from executor.weights.vllm_layout import VllmLayout

    return VllmLayout(arch, degrees)


def _generator(setup: GeneratorSetup) -> GenerationEngine:
    from executor.engines.vllm.engine import VllmEngine, VllmOptions

    spec = setup.spec
    options = VllmOptions(spec.max_num_seqs, spec.kv_cache_bytes, setup.max_length, spec.draft)
    return VllmEngine(setup.identity.rank, setup.degrees, setup.arch, spec.path, setup.dtype, options)


VLLM = GenerationEntry(
    "vllm",
    "vllm",
    Capabilities(generates=True, mixtures=True, adapters=True, adapters_tensor_parallel=True, drafts=True),
    _layout,
    _generator,
    priced_as="vllm",
)
