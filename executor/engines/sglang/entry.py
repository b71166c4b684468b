"""SGLang, as the registry has it."""

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
    from executor.weights.native_layout import NativeLayout

    return NativeLayout(arch, degrees, "generation", transposed=False)


def _generator(setup: GeneratorSetup) -> GenerationEngine:
    from executor.engines.sglang.engine import SglangEngine, SglangOptions

    spec = setup.spec
    options = SglangOptions(spec.max_num_seqs, spec.kv_cache_bytes, setup.max_length, spec.device)
    return SglangEngine(setup.identity.rank, setup.degrees, setup.arch, spec.path, setup.dtype, options)


SGLANG = GenerationEntry(
    "sglang",
    "sglang",
    Capabilities(generates=True, needs_gpu=True, generation_parallel=False, cut_sampling=False),
    _layout,
    _generator,
    priced_as="sglang",
    install="sglang==0.5.23",
)
