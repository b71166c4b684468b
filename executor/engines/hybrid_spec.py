"""Which engines train and generate for a role: plain data that travels to the ranks; built there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from executor.engines.torch_native.engine import ModelSpec
    from executor.records import Identity
    from executor.run_config import GenerationEngine, TrainingEngine
    from simulator.groups import Degrees, TransitionMethod
    from simulator.plan import Recompute


@dataclass(frozen=True)
class HybridSpec:
    """A role on engines that are not the embedded one. ``generation`` is ``None`` for roles that never generate.

    ``vpp``, ``ep``, ``recompute`` and ``sequence_parallel`` are those of the plan's training layout. ``max_length`` of
    prompt and response together, 0 for the model's own limit. ``method`` is the plan's resharding.
    """

    model: ModelSpec
    training: TrainingEngine
    generation: GenerationEngine | None = None
    vpp: int = 1
    ep: int = 1
    recompute: Recompute = "none"
    sequence_parallel: bool = False
    max_length: int = 0
    method: TransitionMethod = "hybridflow"

    def build(self, identity: Identity, address: str, degrees: Degrees) -> Any:
        """The engine of one rank, not yet loaded."""
        trainer = self._trainer(identity, address, degrees)
        if self.generation is None:
            return trainer
        from executor.engines.hybrid import HybridEngine

        return HybridEngine(
            identity, degrees, trainer, lambda loaded: self._generator(identity, degrees, loaded), method=self.method,
            check_weights=self.model.check_weights,
        )  # fmt: skip

    def _trainer(self, identity: Identity, address: str, degrees: Degrees) -> Any:
        if self.training == "megatron-core":
            from executor.engines.megatron.engine import MegatronEngine, MegatronOptions

            options = MegatronOptions(self.vpp, self.ep, self.recompute, self.sequence_parallel)
            return MegatronEngine(identity, address, degrees, self.model, options)
        if self.training == "fsdp2":
            from executor.engines.fsdp.engine import FsdpEngine

            return FsdpEngine(identity, address, degrees, self.model)
        from executor.engines.native_trainer import NativeTrainer

        return NativeTrainer(identity, address, degrees, self.model)

    def _generator(self, identity: Identity, degrees: Degrees, trainer: Any) -> Any:
        if self.generation == "vllm":
            from executor.engines.vllm.engine import VllmEngine, VllmOptions

            options = VllmOptions(self.model.max_num_seqs, self.model.kv_cache_bytes, self.max_length)
            return VllmEngine(identity.rank, degrees, trainer.arch, self.model.path, trainer.dtype, options)
        from executor.engines.native_generator import NativeGenerator

        return NativeGenerator(identity.rank, degrees, self.model, trainer)
