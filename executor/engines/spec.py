"""Which engines train, score and generate for a role: plain data that travels to the ranks, and is built there."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from executor.engines.entry import PLAIN, GeneratorSetup, LayoutOptions, TrainerSetup
from executor.engines.interfaces import RoleEngine
from executor.engines.registry import GENERATION, TRAINING, is_in_place

if TYPE_CHECKING:
    import torch

    from executor.collectives import CommClock
    from executor.engines.entry import MakeGenerator
    from executor.engines.interfaces import GenerationEngine, TrainingEngine
    from executor.engines.model_spec import ModelSpec
    from executor.records import Identity
    from executor.weights.architecture import Architecture
    from executor.weights.link import PoolLink
    from executor.weights.regions import Layout
    from simulator.plan.groups import Degrees


@dataclass(frozen=True)
class EngineSpec:
    """A model on engines of the registry. ``generation`` is ``None`` for roles that never generate.

    ``options`` are those of the plan's training layout. ``max_length`` of prompt and response together, 0 for the
    model's own limit. ``link`` leads to the other side where training and generation have pools of their own.
    ``scoring`` is what a trained model scores with, in the layout of ``model.scoring``, where that is another one than
    training's.
    """

    model: ModelSpec
    training: str = "torch-native"
    generation: str | None = None
    options: LayoutOptions = PLAIN
    max_length: int = 0
    link: PoolLink | None = None
    scoring: EngineSpec | None = None

    def disaggregated(self, address: str, senders: Degrees, receivers: Degrees) -> tuple[EngineSpec, EngineSpec]:
        """See ``EngineChoice``."""
        from executor.weights.link import PoolLink

        sends, receives = (PoolLink(address, senders, receivers, sends=sends) for sends in (True, False))
        return replace(self, link=sends), replace(self, link=receives)

    def build(self, identity: Identity, address: str, degrees: Degrees) -> RoleEngine:
        """See ``EngineChoice``."""
        if self.link is not None:
            return self._side_of(self.link, identity, address, degrees)
        if self.generation is None:
            return RoleEngine.of_trainer(self.training_engine(identity, address, degrees))
        entry, moves = TRAINING[self.training], (degrees.pg, degrees.tg) != (degrees.p, degrees.t)
        in_place = is_in_place(self.training, self.generation) and not (self.model.adapters is not None and moves)
        if entry.build_in_place is not None and in_place:  # a base that stays is not gathered time and again
            trainer, generator = entry.build_in_place(
                TrainerSetup(identity, address, degrees, self.model, self.options)
            )
            return RoleEngine.of_trainer(self._with_scoring_copy(trainer, identity, address), generator)
        from executor.engines.hybrid import HybridEngine

        hybrid = HybridEngine(
            degrees, self.training_engine(identity, address, degrees), self._generator(identity, degrees)
        )
        return RoleEngine.of_trainer(hybrid, hybrid)

    def _side_of(self, link: PoolLink, identity: Identity, address: str, degrees: Degrees) -> RoleEngine:
        """The engine of one of two pools."""
        from executor.engines.disaggregated import ReceivingEngine, SendingEngine

        if link.sends:
            sends = SendingEngine(self.training_engine(identity, address, degrees), link)
            return RoleEngine(sends, sends, sends, sends, resharded=sends)
        make = self._generator(identity, degrees)
        receives = ReceivingEngine(identity, address, self.model, link, self._senders_layout, make)
        return RoleEngine(receives, resharded=receives, generator=receives)

    def _senders_layout(self, arch: Architecture) -> Layout:
        assert self.link is not None, "only a receiver asks for it"
        return TRAINING[self.training].layout(arch, self.link.senders, self.options)

    def training_engine(self, identity: Identity, address: str, degrees: Degrees) -> TrainingEngine:
        """What trains and scores, with the copy that scores where there is one."""
        made = TRAINING[self.training].build(TrainerSetup(identity, address, degrees, self.model, self.options))
        return self._with_scoring_copy(made, identity, address)

    def _with_scoring_copy(self, trainer: TrainingEngine, identity: Identity, address: str) -> TrainingEngine:
        if self.scoring is None or self.model.scoring is None:
            return trainer
        from executor.engines.scoring_copy import TrainerWithScoringCopy

        return TrainerWithScoringCopy(trainer, self.scoring.training_engine(identity, address, self.model.scoring))

    def _generator(self, identity: Identity, degrees: Degrees) -> MakeGenerator:
        """What makes the generation engine from the loaded trainer's architecture, type and clock."""

        def make(arch: Architecture, dtype: torch.dtype, clock: CommClock) -> GenerationEngine:
            assert self.generation is not None, "only a role that generates asks for it"
            setup = GeneratorSetup(identity, degrees, self.model, arch, dtype, clock, self.max_length)
            return GENERATION[self.generation].build(setup)

        return make
