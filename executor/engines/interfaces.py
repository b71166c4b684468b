"""What an engine is: the interfaces through which workers, other engines and weight movers hold one.

Everything is SPMD: all ranks of a role call the same method with the rows that the transfer protocol gave them. In
what follows B is the rows of a rank, P the padded prompt length, R the padded response length. A batch carries

    uid            [B] int64    number of the sample, unique in the run; sampling depends on it and on the seed only
    prompts        [B, P] int64 padded on the left
    prompt_mask    [B, P] bool
    responses      [B, R] int64 padded on the right
    response_mask  [B, R] bool  true up to and including the end token
    log_probs      [B, R] float of the response tokens under the policy that wrote them

A worker holds a ``RoleEngine``, which says what the engine of its role can do. A model that trains on one engine and
generates on another is made of a ``TrainingEngine`` and a ``GenerationEngine``, which the registry builds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import AbstractContextManager

    import torch
    from tensordict import TensorDict

    from executor.checkpoint.shards import Chunk, EngineState
    from executor.collectives import CommClock, Groups
    from executor.engines.model_spec import ModelSpec
    from executor.records import Drafted, Identity, Spent, WeightsMoved
    from executor.rl.loss_terms import LossTerm
    from executor.rl.sampling import Sampling
    from executor.weights.architecture import Architecture
    from executor.weights.regions import Layout
    from simulator.plan.groups import Degrees


class Engine(Protocol):
    """The engine of one role on one rank, whatever it does."""

    def load(self) -> None:
        """Make or read the weights; ``InputError`` with the reason if that cannot be done."""

    @property
    def spent(self) -> Spent:
        """What collectives and offload have taken so far."""

    def weights_moved(self) -> WeightsMoved:
        """Weights received and sent since this was last asked."""


class Scorer(Engine, Protocol):
    """Gives responses a number: a reward or cost model, or a function."""

    def scores(self, batch: TensorDict) -> torch.Tensor | None:
        """One number for each response, ``[B]``; a model's is its value head at the last response token."""


class Model(Scorer, Protocol):
    """A sharded model. Outputs exist on the last pipeline stage; other stages return ``None``."""

    def log_probs(self, batch: TensorDict, temperature: float) -> torch.Tensor | None:
        """Log-probs ``[B, R]`` of the responses, of logits divided by ``temperature``."""

    def values(self, batch: TensorDict) -> torch.Tensor | None:
        """The value head at every response token, before it is chosen, ``[B, R]``."""


class Trainer(Model, Protocol):
    """A model that learns. One whose spec names no optimizer is frozen: it is never updated and saves nothing."""

    @property
    def num_steps(self) -> int:
        """Optimizer steps that the weights have seen, those before a checkpoint included."""

    def update(self, terms: tuple[LossTerm, ...]) -> dict[str, float] | None:
        """One optimizer step on the sum of the terms; token means of their metrics, and ``grad_norm``."""

    def check_replicas(self) -> None:
        """Compare the copies that ranks hold of the same weights; ``UnequalWeightsError``. Every rank calls this."""

    def lasting_weights(self) -> Mapping[str, torch.Tensor]:
        """Weights that outlive the next step, in place: the optimizer's masters where it has some of its own."""

    def save(self, folder: str) -> None:
        """Write the model in Hugging Face layout; every rank calls this."""

    def saved_state(self) -> EngineState:
        """What this rank writes of a checkpoint, copied to host memory: all ranks together hold each element once.

        A model that is not trained saves nothing: its weights are those that the run section names.
        """

    def load_state(self, fill: Callable[[list[Chunk]], None], counters: Mapping[str, int]) -> None:
        """Take a checkpoint's state: ``fill`` sets the views that it is handed from the files of all ranks."""


class Resharded(Engine, Protocol):
    """A model whose weights change ranks or layout between training and generation."""

    def to_generation(self) -> None:
        """Bring the weights into the generation layout (the transition). Does nothing if they are there."""


class Generator(Resharded, Protocol):
    """Writes responses with weights that the transition brings."""

    def generate(self, batch: TensorDict, sampling: Sampling) -> TensorDict:
        """Responses to ``prompts``: columns ``responses``, ``response_mask`` and ``log_probs``, on every rank."""

    def drafted(self) -> Drafted:
        """Drafts checked since this was last asked; none of an engine that does not draft."""


@dataclass(frozen=True)
class RoleEngine:
    """One rank's engine of a role under each interface that it has; the others are ``None``."""

    engine: Engine
    scorer: Scorer | None = None
    model: Model | None = None
    trainer: Trainer | None = None
    resharded: Resharded | None = None
    generator: Generator | None = None

    @staticmethod
    def of_trainer(trainer: Trainer, generator: Generator | None = None) -> RoleEngine:
        """A trainer, which scores too, and what generates with its weights on the same ranks."""
        return RoleEngine(trainer, trainer, trainer, trainer, generator, generator)


class EngineChoice(Protocol):
    """Which engine a role gets: plain data that travels to the ranks, and is built there."""

    def build(self, identity: Identity, address: str, degrees: Degrees) -> RoleEngine:
        """The engine of one rank, not yet loaded. Ranks of the role meet at ``address``."""

    def disaggregated(self, address: str, senders: Degrees, receivers: Degrees) -> tuple[EngineChoice, EngineChoice]:
        """The two sides of a model that trains on one pool and generates on another, which meet at ``address``."""


class TrainingEngine(Trainer, Protocol):
    """A trainer as what it shares weights with sees it: its layout, and its local tensors."""

    arch: Architecture
    clock: CommClock
    groups: Groups
    device: torch.device
    dtype: torch.dtype

    @property
    def layout(self) -> Layout:
        """What every rank of the role holds, once it is loaded."""

    @property
    def identity(self) -> Identity: ...

    @property
    def spec(self) -> ModelSpec: ...

    def tensors(self) -> dict[str, torch.Tensor]:
        """Parameters of this rank by the names of ``layout``, in the type that generation uses."""

    def weights(self) -> dict[str, torch.Tensor]:
        """What passes read, by name, in place; no memory while it is offloaded."""

    def present(self) -> AbstractContextManager[None]:
        """Have the parameters on the device inside the block."""


class GenerationEngine(Protocol):
    """A generator as what brings it weights sees it; its tensors are valid between ``restore`` and ``release``."""

    @property
    def keeps_tensors(self) -> bool:
        """Whether they are what it generates with; else they are handed over, and gone with ``ready``."""

    @property
    def layout(self) -> Layout:
        """What every rank of the pool holds."""

    def load(self) -> None:
        """Make the engine, with blank weights."""

    def tensors(self) -> dict[str, torch.Tensor]:
        """Parameters of this rank by the names of ``layout``, to be written."""

    def restore(self) -> None:
        """Take memory for weights alone, whose values are undefined until they are written."""

    def release_cache(self) -> None:
        """Give back what is not weights, which stay as they are until ``release``."""

    def release(self) -> None:
        """Give the memory back."""

    def ready(self) -> None:
        """New weights are written: take the other memory, prepare what reads them, forget what old ones computed."""

    def generate(self, batch: TensorDict, sampling: Sampling) -> TensorDict:
        """See ``Generator``."""

    def drafted(self) -> Drafted:
        """See ``Generator``."""
