"""The engine interface: what a worker asks of the model that it holds a shard of.

Everything is SPMD: all ranks of a role call the same method with the rows that the transfer protocol gave them. In
what follows B is the rows of a rank, P the padded prompt length, R the padded response length. A batch carries

    uid            [B] int64    number of the sample, unique in the run; sampling depends on it and on the seed only
    prompts        [B, P] int64 padded on the left
    prompt_mask    [B, P] bool
    responses      [B, R] int64 padded on the right
    response_mask  [B, R] bool  true up to and including the end token
    log_probs      [B, R] float of the response tokens under the policy that wrote them
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import torch
    from tensordict import TensorDict

    from executor.checkpoint.shards import Chunk, EngineState

    TokenLoss = Callable[[Mapping[str, torch.Tensor], TensorDict], dict[str, torch.Tensor]]


@dataclass(frozen=True)
class Sampling:
    """How responses are drawn. ``greedy`` takes the likeliest token; ``end_token`` ends a response early."""

    max_tokens: int
    temperature: float = 1.0
    greedy: bool = False
    end_token: int | None = None
    seed: int = 0


@dataclass(frozen=True)
class Objective:
    """One term of an update: whose sequences, which outputs, which loss.

    Parameters
    ----------
    rows
        Batch with ``tokens [B, T]``, ``token_mask [B, T]`` and ``target_mask [B, T - first_target]``, plus whatever
        columns the loss reads.
    first_target
        The model predicts tokens from this position on.
    loss
        From the model's outputs (``log_probs`` and ``entropy``, or ``values``, each ``[b, T - first_target]``) and the
        rows of a micro-batch to sums over target tokens; ``loss`` is differentiated, the rest are metrics.
    weight
        Factor of this term. Each term is a mean over its target tokens in the whole mini-batch, all ranks together.
    temperature
        What logits are divided by before log-probs and entropy: that of sampling for tokens that were sampled.
    """

    rows: TensorDict
    first_target: int
    loss: TokenLoss
    weight: float = 1.0
    temperature: float = 1.0


class Engine(Protocol):
    """A sharded model. Outputs exist on the last pipeline stage; other stages return ``None``."""

    comm_s: float
    """Seconds spent in collectives so far."""

    def load(self) -> None:
        """Make or read the weights; ``InputError`` with the reason if that cannot be done."""

    def log_probs(self, batch: TensorDict, temperature: float) -> torch.Tensor | None:
        """Log-probs ``[B, R]`` of the responses, of logits divided by ``temperature``."""

    def values(self, batch: TensorDict) -> torch.Tensor | None:
        """The value head at every response token, before it is chosen, ``[B, R]``."""

    def scores(self, batch: TensorDict) -> torch.Tensor | None:
        """The value head at the last response token, ``[B]``."""

    def update(self, objectives: tuple[Objective, ...]) -> dict[str, float] | None:
        """One optimizer step on the sum of the objectives; token means of their metrics, and ``grad_norm``."""

    def to_generation(self) -> None:
        """Bring the weights into the generation layout (the transition). Does nothing if they are there."""

    def generate(self, batch: TensorDict, sampling: Sampling) -> TensorDict:
        """Responses to ``prompts``: columns ``responses``, ``response_mask`` and ``log_probs``, on every rank."""

    def saved_state(self) -> EngineState:
        """What this rank writes of a checkpoint, copied to host memory: all ranks together hold each element once.

        A model that is not trained saves nothing: its weights are those that the run section names. Engines that
        never train have neither this method nor the next.
        """

    def load_state(self, fill: Callable[[list[Chunk]], None], counters: Mapping[str, int]) -> None:
        """Take a checkpoint's state: ``fill`` sets the views that it is handed from the files of all ranks."""
