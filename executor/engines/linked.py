"""A model that trains on one pool and generates on another: the two ends as engines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from executor.transition.pool_link import LayoutLink

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tensordict import TensorDict

    from executor.checkpoint_shards import Chunk, EngineState
    from executor.engines.base import Objective, Sampling
    from executor.transition.pool_link import PoolLink


class SendingEngine:
    """Trains and scores; its transition sends the weights away."""

    def __init__(self, trainer: Any, link: PoolLink) -> None:
        self.trainer, self._link = trainer, link

    @property
    def comm_s(self) -> float:
        return float(self.trainer.comm_s)

    def load(self) -> None:
        self.trainer.load()
        rank, device = self.trainer.identity.rank, self.trainer.device
        self.link = LayoutLink(rank, self._link, self.trainer.layout, device, self.trainer.clock)

    def log_probs(self, batch: TensorDict) -> Any:
        return self.trainer.log_probs(batch)

    def update(self, objectives: tuple[Objective, ...]) -> dict[str, float] | None:
        found: dict[str, float] | None = self.trainer.update(objectives)
        return found

    def save(self, folder: str) -> None:
        """Write the model in Hugging Face layout."""
        self.trainer.save(folder)

    def saved_state(self) -> EngineState:
        """The trainer's part of a checkpoint."""
        found: EngineState = self.trainer.saved_state()
        return found

    def load_state(self, fill: Callable[[list[Chunk]], None], counters: Mapping[str, int]) -> None:
        """Take a checkpoint's state into the trainer."""
        self.trainer.load_state(fill, counters)

    def to_generation(self) -> None:
        """Send the weights."""
        self.link.send(self.trainer.tensors())


class ReceivingEngine:
    """Generates; its transition receives. ``source`` is the layout of the senders."""

    def __init__(self, rank: int, generator: Any, link: PoolLink, source: Any, device: Any, clock: Any) -> None:
        self.rank, self.generator, self._link = rank, generator, link
        self._source, self._device, self.clock = source, device, clock

    @property
    def comm_s(self) -> float:
        return float(self.clock.seconds)

    def load(self) -> None:
        self.generator.load()
        self.link = LayoutLink(self.rank, self._link, self._source, self._device, self.clock)

    def to_generation(self) -> None:
        """Receive the weights into the generator's tensors."""
        self.link.receive(self.generator.layout, self.generator.tensors())
        self.generator.ready()

    def generate(self, batch: TensorDict, sampling: Sampling) -> TensorDict:
        found: TensorDict = self.generator.generate(batch, sampling)
        return found
