"""A model that trains on one pool and generates on another: the two ends as engines."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from executor.collectives import CommClock, join_world
from executor.engines.wrapped import WrappedTrainer
from executor.records import Spent, WeightsMoved
from executor.weights.architecture import read_architecture
from executor.weights.checksum import require_arrived
from executor.weights.link import PoolBroadcast, serve_early

if TYPE_CHECKING:
    from collections.abc import Callable

    from tensordict import TensorDict

    from executor.engines.entry import MakeGenerator
    from executor.engines.interfaces import GenerationEngine, TrainingEngine
    from executor.engines.model_spec import ModelSpec
    from executor.records import Drafted, Identity
    from executor.rl.sampling import Sampling
    from executor.weights.architecture import Architecture
    from executor.weights.link import PoolLink
    from executor.weights.regions import Layout


class SendingEngine(WrappedTrainer):
    """Trains and scores; its transition sends the weights away."""

    def __init__(self, trainer: TrainingEngine, link: PoolLink) -> None:
        super().__init__(trainer)
        self._link = link
        self._store = serve_early(link, trainer.identity.rank, trainer.spec.collective_timeout_s)

    def load(self) -> None:
        self.trainer.load()
        trainer = self.trainer
        self._broadcast = PoolBroadcast(
            trainer.identity.rank,
            self._link,
            trainer.arch,
            trainer.layout,
            trainer.device,
            trainer.clock,
            timeout_s=trainer.spec.collective_timeout_s,
            store=self._store,
        )

    def weights_moved(self) -> WeightsMoved:
        return self._broadcast.log.take()

    def to_generation(self) -> None:
        """Send the weights."""
        with self.trainer.present():
            self._broadcast.move(self.trainer.tensors(), {})


class ReceivingEngine:
    """Generates; its transition receives, and compares what arrived with the senders' checksums.

    ``source`` makes the layout of the senders, ``make_generator`` the engine, which never gives its memory back.
    """

    generator: GenerationEngine

    def __init__(
        self,
        identity: Identity,
        address: str,
        spec: ModelSpec,
        link: PoolLink,
        source: Callable[[Architecture], Layout],
        make_generator: MakeGenerator,
    ) -> None:
        self.identity, self.address, self.spec, self._link = identity, address, spec, link
        self._source, self._make_generator = source, make_generator
        self.clock = CommClock()

    @property
    def spent(self) -> Spent:
        return Spent(self.clock.seconds)

    def load(self) -> None:
        arch, device = read_architecture(self.spec.path), torch.device(self.spec.device)
        self.arch = arch
        source = self._source(arch)
        timeout_s = self.spec.collective_timeout_s
        join_world(self.identity, self.address, device, alone=True, timeout_s=timeout_s)
        self.generator = self._make_generator(arch, self.spec.torch_dtype, self.clock)
        self.generator.load()
        self.generator.restore()
        self._broadcast = PoolBroadcast(
            self.identity.rank,
            self._link,
            arch,
            source,
            device,
            self.clock,
            target=self.generator.layout,
            timeout_s=timeout_s,
        )

    def weights_moved(self) -> WeightsMoved:
        return self._broadcast.log.take()

    def to_generation(self) -> None:
        """Receive the weights into the generator's tensors."""
        if not self.generator.keeps_tensors:
            self.generator.restore()
        tensors = self.generator.tensors()
        self._broadcast.move({}, tensors)
        if self.spec.check_weights:
            require_arrived(self.arch, self.generator.layout, self.identity, tensors, self._broadcast.sums)
        self.generator.ready()

    def generate(self, batch: TensorDict, sampling: Sampling) -> TensorDict:
        return self.generator.generate(batch, sampling)

    def drafted(self) -> Drafted:
        return self.generator.drafted()
