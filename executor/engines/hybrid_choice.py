"""Which engines train and generate for a role: plain data that travels to the ranks; built there."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from executor.collectives import CommClock
    from executor.engines.native.engine import ModelSpec
    from executor.records import Identity
    from executor.run_config import GenerationEngine, TrainingEngine
    from executor.weights.architecture import Architecture
    from executor.weights.link import PoolLink
    from executor.weights.regions import Layout
    from simulator.plan.groups import Degrees, TransitionMethod
    from simulator.plan.plan import Recompute


@dataclass(frozen=True)
class HybridSpec:
    """A role on engines that are not the embedded one. ``generation`` is ``None`` for roles that never generate.

    ``vpp``, ``ep``, ``recompute`` and ``sequence_parallel`` are those of the plan's training layout. ``max_length`` of
    prompt and response together, 0 for the model's own limit. ``method`` is the plan's resharding. ``link`` leads to
    the other side where training and generation have pools of their own. ``scoring`` is what a trained model scores
    with, in the layout of ``model.scoring``, where that is another one than training's; torch-native needs none.
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
    link: PoolLink | None = None
    scoring: HybridSpec | None = None

    def build(self, identity: Identity, address: str, degrees: Degrees) -> Any:
        """The engine of one rank, not yet loaded."""

        def generator(arch: Architecture, dtype: torch.dtype, clock: CommClock) -> Any:
            return self._generator(identity, degrees, arch, dtype, clock)

        if self.link is not None and not self.link.sends:
            from executor.engines.disaggregated import ReceivingEngine

            return ReceivingEngine(identity, address, self.model, self.link, self._senders_layout, generator)
        trainer = self._trainer(identity, address, degrees)
        if self.generation is None:
            return trainer
        if self.link is not None:
            from executor.engines.disaggregated import SendingEngine

            return SendingEngine(trainer, self.link)
        from executor.engines.hybrid import HybridEngine

        return HybridEngine(
            identity, degrees, trainer, generator, method=self.method, check_weights=self.model.check_weights
        )

    def _senders_layout(self, arch: Architecture) -> Layout:
        assert self.link is not None
        return training_layout(self.training, arch, self.link.senders, self.vpp, self.ep)

    def _trainer(self, identity: Identity, address: str, degrees: Degrees) -> Any:
        made = self._engine(identity, address, degrees)
        if self.scoring is None or self.model.scoring is None:
            return made
        from executor.engines.scoring_copy import TrainerWithScoringCopy

        return TrainerWithScoringCopy(made, self.scoring.build(identity, address, self.model.scoring))

    def _engine(self, identity: Identity, address: str, degrees: Degrees) -> Any:
        if self.training == "megatron-core":
            from executor.engines.megatron.engine import MegatronEngine, MegatronOptions

            options = MegatronOptions(self.vpp, self.ep, self.recompute, self.sequence_parallel)
            return MegatronEngine(identity, address, degrees, self.model, options)
        if self.training == "fsdp2":
            from executor.engines.fsdp.engine import FsdpEngine

            return FsdpEngine(identity, address, degrees, self.model)
        from executor.engines.native.engine import TorchNativeEngine

        training = replace(degrees, pg=degrees.p, tg=degrees.t)  # generation is another engine's
        return TorchNativeEngine(identity, address, training, self.model)

    def _generator(
        self, identity: Identity, degrees: Degrees, arch: Architecture, dtype: torch.dtype, clock: CommClock
    ) -> Any:
        if self.generation == "vllm":
            from executor.engines.vllm.engine import VllmEngine, VllmOptions

            options = VllmOptions(self.model.max_num_seqs, self.model.kv_cache_bytes, self.max_length)
            return VllmEngine(identity.rank, degrees, arch, self.model.path, dtype, options)
        from executor.engines.native.generator import NativeGenerator

        return NativeGenerator(identity.rank, degrees, self.model, arch, dtype, clock)


def training_layout(engine: TrainingEngine, arch: Architecture, degrees: Degrees, vpp: int, ep: int) -> Layout:
    """What every rank of a training engine holds; ``InputError`` if the model does not divide."""
    if engine == "megatron-core":
        from executor.weights.megatron_layout import MegatronLayout

        return MegatronLayout(arch, degrees, vpp, ep)
    from executor.weights.native_layout import FsdpLayout, NativeLayout

    if engine == "fsdp2":
        return FsdpLayout(arch, degrees.num_ranks, degrees.t)
    return NativeLayout(arch, degrees, "training", transposed=False)
