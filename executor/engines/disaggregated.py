"""A model that trains on one pool and generates on another: the two ends as engines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from executor.collectives import CommClock, join_world
from executor.engines.native.engine import DTYPES
from executor.engines.saving import save_model
from executor.weights.architecture import read_architecture
from executor.weights.checksum import require_arrived
from executor.weights.link import LayoutLink, serve_early

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tensordict import TensorDict

    from executor.checkpoint.shards import Chunk, EngineState
    from executor.engines.base import Objective, Sampling
    from executor.engines.interfaces import Generator
    from executor.engines.native.engine import ModelSpec
    from executor.records import Identity, WeightsMoved
    from executor.weights.architecture import Architecture
    from executor.weights.link import PoolLink
    from executor.weights.regions import Layout


class SendingEngine:
    """Trains and scores; its transition sends the weights away."""

    def __init__(self, trainer: Any, link: PoolLink) -> None:
        self.trainer, self._link = trainer, link
        self._store = serve_early(link, trainer.identity.rank, trainer.spec.collective_timeout_s)

    @property
    def comm_s(self) -> float:
        return float(self.trainer.comm_s)

    @property
    def host_s(self) -> float:
        return float(getattr(self.trainer, "host_s", 0.0))

    @property
    def host_bytes(self) -> int:
        return int(getattr(self.trainer, "host_bytes", 0))

    def load(self) -> None:
        trainer = self.trainer
        trainer.load()
        timeout_s, device = trainer.spec.collective_timeout_s, trainer.device
        self.link = LayoutLink(
            trainer.identity.rank,
            self._link,
            trainer.arch,
            trainer.layout,
            device,
            trainer.clock,
            timeout_s,
            self._store,
        )

    def log_probs(self, batch: TensorDict, temperature: float) -> torch.Tensor | None:
        found: torch.Tensor | None = self.trainer.log_probs(batch, temperature)
        return found

    def update(self, objectives: tuple[Objective, ...]) -> dict[str, float] | None:
        found: dict[str, float] | None = self.trainer.update(objectives)
        return found

    @property
    def num_steps(self) -> int:
        """Optimizer steps that the trained weights have seen."""
        return int(self.trainer.num_steps)

    def check_replicas(self) -> None:
        """Compare the copies that ranks hold of the trained weights, where the trainer has copies."""
        if (check := getattr(self.trainer, "check_replicas", None)) is not None:
            check()

    def save(self, folder: str) -> None:
        """Write the model in Hugging Face layout; every rank calls this."""
        with self.trainer.present():
            save_model(self.trainer, folder)

    def weights_moved(self) -> WeightsMoved:
        """Weights received and sent since this was last asked."""
        return self.link.moved()

    def saved_state(self) -> EngineState:
        """The trainer's part of a checkpoint."""
        found: EngineState = self.trainer.saved_state()
        return found

    def load_state(self, fill: Callable[[list[Chunk]], None], counters: Mapping[str, int]) -> None:
        """Take a checkpoint's state into the trainer."""
        self.trainer.load_state(fill, counters)

    def to_generation(self) -> None:
        """Send the weights."""
        with self.trainer.present():
            self.link.send(self.trainer.tensors())


class ReceivingEngine:
    """Generates; its transition receives, and compares what arrived with the senders' checksums.

    ``source`` makes the layout of the senders, ``make_generator`` the engine, which never gives its memory back.
    """

    def __init__(
        self,
        identity: Identity,
        address: str,
        spec: ModelSpec,
        link: PoolLink,
        source: Callable[[Architecture], Layout],
        make_generator: Callable[[Architecture, torch.dtype, CommClock], Any],
    ) -> None:
        self.identity, self.address, self.spec, self._link = identity, address, spec, link
        self._source, self._make_generator = source, make_generator
        self.clock = CommClock()

    @property
    def comm_s(self) -> float:
        return self.clock.seconds

    def load(self) -> None:
        arch, device = read_architecture(self.spec.path), torch.device(self.spec.device)
        self.arch = arch
        source = self._source(arch)
        join_world(self.identity, self.address, device, alone=True)
        self.generator: Generator = self._make_generator(arch, DTYPES[self.spec.dtype], self.clock)
        self.generator.load()
        self.generator.restore()
        timeout_s = self.spec.collective_timeout_s
        self.link = LayoutLink(self.identity.rank, self._link, arch, source, device, self.clock, timeout_s)

    def weights_moved(self) -> WeightsMoved:
        """Weights received and sent since this was last asked."""
        return self.link.moved()

    def to_generation(self) -> None:
        """Receive the weights into the generator's tensors."""
        layout, tensors = self.generator.layout, self.generator.tensors()
        trained = self.link.receive(layout, tensors)
        if self.spec.check_weights:
            require_arrived(self.arch, layout, self.identity, tensors, trained)
        self.generator.ready()

    def generate(self, batch: TensorDict, sampling: Sampling) -> TensorDict:
        return self.generator.generate(batch, sampling)
