"""Worker classes of the roles: the primitive APIs of the HybridFlow paper (Table 4) on an engine.

Each rank has one instance per role. Outputs exist on the last pipeline stage; other stages return nothing.
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from executor.batch import PADDING, real_rows
from executor.records import Drafted
from executor.rl.minibatch import minibatches
from executor.rl.sampling import Sampling
from executor.worker.protocols import register
from executor.worker.worker import Worker
from profiles.errors import InputError
from simulator.plan.groups import training_coordinates

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import torch
    from tensordict import TensorDict

    from executor.checkpoint.manifest import RoleFacts
    from executor.checkpoint.rank import RankCheckpoint
    from executor.checkpoint.shards import Chunk, EngineState
    from executor.engines.interfaces import EngineChoice, Model, Scorer, Trainer
    from executor.records import Identity, Spent, WeightsMoved
    from executor.rl.hyperparameters import Hyperparameters
    from executor.rl.loss_terms import LossTerm
    from simulator.plan.groups import Degrees

T = TypeVar("T")

PROMPT = ("uid", "prompts", "prompt_mask")
SAMPLE = ("prompts", "prompt_mask", "responses", "response_mask")
PRETRAIN = ("pretrain_tokens", "pretrain_mask")
RATIOS = ("log_probs", "rollout_log_probs")


class ModelWorker(Worker):
    """A role's shard on one rank."""

    def __init__(
        self,
        identity: Identity,
        *,
        address: str,
        degrees: Degrees,
        engine: EngineChoice,
        algorithm: str,
        hyper: Hyperparameters,
    ) -> None:
        self.algorithm, self.hyper = algorithm, hyper
        self.identity = identity
        self.made = engine.build(identity, address, degrees)
        self._replica = training_coordinates(identity.rank, degrees)[2]
        self._num_ranks = degrees.num_ranks

    @cached_property
    def _checkpoint(self) -> RankCheckpoint:
        from executor.checkpoint.rank import RankCheckpoint

        return RankCheckpoint(self.identity.rank)

    @property
    def spent(self) -> Spent:
        return self.made.engine.spent

    def weights_moved(self) -> WeightsMoved:
        return self.made.engine.weights_moved()

    def drafted(self) -> Drafted:
        return self.made.generator.drafted() if self.made.generator is not None else Drafted()

    @property
    def scorer(self) -> Scorer:
        return self._part(self.made.scorer, "scores")

    @property
    def model(self) -> Model:
        return self._part(self.made.model, "runs a model forward")

    @property
    def trainer(self) -> Trainer:
        return self._part(self.made.trainer, "trains")

    def _part(self, found: T | None, does: str) -> T:
        if found is None:
            raise InputError(
                f"no engine of rank {self.identity.rank} of pool {self.identity.pool} {does} for this role"
            )
        return found

    @register(protocol="ONE_TO_ALL", returns=())
    def init_model(self) -> None:
        """Load the weights."""
        self.made.engine.load()

    @register(protocol="ONE_TO_ALL", returns=())
    def check_replicas(self) -> None:
        """Compare the copies that ranks hold of the same weights; ``UnequalWeightsError`` names what differs."""
        if self.made.trainer is not None:
            self.made.trainer.check_replicas()

    @register(protocol="ONE_TO_ALL")
    def save_model(self, folder: str) -> None:
        """Write the weights in Hugging Face layout into ``folder``."""
        self.trainer.save(folder)

    @register(protocol="ONE_TO_ALL", returns=())
    def begin_save(self, folder: str) -> None:
        """Copy this rank's part of a checkpoint; it is written into ``folder`` while the next calls run."""
        self._checkpoint.begin(Path(folder), self._saved_state(), self.counters())

    @register(protocol="ONE_TO_ALL", returns=())
    def finish_save(self) -> None:
        """Wait until what was begun is on disk."""
        self._checkpoint.finish()

    @register(protocol="ONE_TO_ALL")
    def checkpoint_damage(self, folder: str, facts: RoleFacts) -> str:
        """What is wrong with this rank's share of a checkpoint's files; nothing where they are what was written."""
        return self._checkpoint.damage(Path(folder), facts, self._num_ranks)

    @register(protocol="ONE_TO_ALL", returns=())
    def load_checkpoint(self, folder: str, facts: RoleFacts) -> None:
        """Take the state of a checkpoint, whatever layout wrote it."""
        trainer = self.made.trainer
        load = trainer.load_state if trainer is not None else _load_nothing
        self._checkpoint.load(Path(folder), facts, load, self._num_ranks)
        self.set_counters(facts.counters)

    def counters(self) -> dict[str, int]:
        """What this worker counts, besides its engine."""
        return {}

    def set_counters(self, counters: Mapping[str, int]) -> None:
        """Count on from a checkpoint."""

    def _saved_state(self) -> EngineState:
        """The trainer's; other engines have nothing to save."""
        from executor.checkpoint.shards import EngineState

        return self.made.trainer.saved_state() if self.made.trainer is not None else EngineState()

    def _updated(
        self, batch: TensorDict, terms: Callable[[TensorDict], tuple[LossTerm, ...]]
    ) -> dict[str, float] | None:
        """Steps over all epochs and mini-batches; the mean of each metric, and the optimizer's own count of its steps.

        ``terms`` makes the terms of a step from its rows.
        """
        steps = []
        for _ in range(self.hyper.epochs):
            for rows in minibatches(batch, self._replica, self.hyper.minibatches):
                steps.append(self.trainer.update(terms(rows)))
        found = [step for step in steps if step is not None]
        if not found:
            return None
        means = {name: sum(step[name] for step in found) / len(found) for name in found[0]}
        return {**means, "optimizer_steps": float(self.trainer.num_steps)}


class ActorWorker(ModelWorker):
    """The policy: generates, scores its own tokens, learns.

    ``version`` is the number of updates that the weights for generation have seen; it travels with every response.
    """

    version = 0
    num_updates = 0

    def counters(self) -> dict[str, int]:
        return {"updates": self.num_updates}

    def set_counters(self, counters: Mapping[str, int]) -> None:
        self.num_updates = counters["updates"]

    @register(protocol="ONE_TO_ALL", returns=())
    def transition(self, version: int) -> None:
        """Bring the weights after ``version`` updates into the generation layout, or to the pool that generates."""
        self._part(self.made.resharded, "brings weights to generation").to_generation()
        self.version = version

    @register(protocol="3D_ALL_MICRO_DP", reads=PROMPT, returns=("responses", "response_mask", "log_probs", "version"))
    def generate_sequences(self, batch: TensorDict, do_sample: bool = True, max_tokens: int = 0) -> TensorDict:
        """Responses to ``prompts``, with their log-probs and the version of the weights that wrote them.

        ``max_tokens`` of each, where not 0 those of the run.
        """
        import torch

        hyper = self.hyper
        drawn = (hyper.end_tokens, hyper.seed, hyper.top_p, hyper.top_k, hyper.reproducible)
        sampling = Sampling(max_tokens or hyper.max_tokens, hyper.temperature, not do_sample, *drawn)
        output = self._part(self.made.generator, "generates").generate(batch, sampling)
        output["version"] = torch.full(batch.batch_size, self.version)
        if PADDING in batch.keys():  # noqa: SIM118
            output[PADDING] = batch[PADDING]
        return output

    @register(
        protocol="3D_PROTO", reads=(*SAMPLE, "log_probs"), returns=("log_probs", "rollout_log_probs"), scores=True
    )
    def compute_log_prob(self, batch: TensorDict) -> TensorDict | None:
        """``log_probs`` of the responses under the current weights; what was there before is ``rollout_log_probs``."""
        before = batch["log_probs"]
        return columns_like(
            batch, log_probs=self.model.log_probs(batch, self.hyper.temperature), rollout_log_probs=before
        )

    @register(protocol="3D_PROTO", reads=PRETRAIN, returns=("pretrain_loss",), scores=True)
    def compute_loss(self, batch: TensorDict) -> TensorDict | None:
        """``pretrain_loss [B]``: mean negative log-likelihood of each row's pretraining text."""
        text = batch.select("pretrain_tokens", "pretrain_mask", *([PADDING] if PADDING in batch.keys() else []))  # noqa: SIM118
        text["prompts"], text["responses"] = text["pretrain_tokens"][:, :1], text["pretrain_tokens"][:, 1:]
        text["prompt_mask"], text["response_mask"] = text["pretrain_mask"][:, :1], text["pretrain_mask"][:, 1:]
        log_probs = self.model.log_probs(text, 1.0)  # nobody sampled it
        if log_probs is None:
            return None
        mask = text["response_mask"]
        return columns_like(batch, pretrain_loss=-(log_probs * mask).sum(1) / mask.sum(1).clamp(min=1))

    @register(
        protocol="3D_PROTO",
        reads=(*SAMPLE, *PRETRAIN, *RATIOS, "loss_mask", "ref_log_probs", "advantages", "pretrain_loss", "version"),
    )
    def update_actor(self, batch: TensorDict) -> dict[str, float] | None:
        """Optimizer steps on the algorithm's policy loss; metrics, with ``staleness`` in updates."""
        from executor.rl.algorithms import RUNNABLE
        from executor.rl.loss_terms import policy_loss_terms

        staleness = self.num_updates - int(batch["version"].min())
        if staleness > self.hyper.staleness_bound:
            raise InputError(
                f"responses are {staleness} updates behind the weights that learn from them, the plan's schedule "
                f"allows {self.hyper.staleness_bound}"
            )
        updated = self._updated(batch, lambda rows: policy_loss_terms(rows, RUNNABLE[self.algorithm], self.hyper))
        self.num_updates += 1
        return updated and {**updated, "staleness": float(staleness)}


class CriticWorker(ModelWorker):
    """The value model."""

    @register(protocol="3D_PROTO", reads=SAMPLE, returns=("values",), scores=True)
    def compute_values(self, batch: TensorDict) -> TensorDict | None:
        """``values [B, R]``."""
        return columns_like(batch, values=self.model.values(batch))

    @register(protocol="3D_PROTO", reads=(*SAMPLE, "values", "returns"))
    def update_critic(self, batch: TensorDict) -> dict[str, float] | None:
        """Optimizer steps on the value loss; metrics."""
        from executor.rl.loss_terms import value_loss_terms

        return self._updated(batch, lambda rows: value_loss_terms(rows, self.hyper))


class ReferenceWorker(ModelWorker):
    """The policy as it was."""

    @register(protocol="3D_PROTO", reads=SAMPLE, returns=("ref_log_probs",))
    def compute_ref_log_prob(self, batch: TensorDict) -> TensorDict | None:
        """``ref_log_probs [B, R]``."""
        return columns_like(batch, ref_log_probs=self.model.log_probs(batch, self.hyper.temperature))


def _score_column(options: Mapping[str, Any]) -> frozenset[str]:
    return frozenset({options.get("column", "scores")})


class RewardWorker(ModelWorker):
    """A reward: a model with a value head, or a function."""

    @register(protocol="3D_PROTO", reads=(*SAMPLE, "answers"), returns=_score_column)
    def compute_reward(self, batch: TensorDict, column: str = "scores") -> TensorDict | None:
        """One score per response, ``[B]``."""
        return columns_like(batch, **{column: self.scorer.scores(batch)})


class CostWorker(ModelWorker):
    """The cost of Safe-RLHF, a second reward."""

    @register(protocol="3D_PROTO", reads=(*SAMPLE, "answers"), returns=("costs",))
    def compute_cost(self, batch: TensorDict) -> TensorDict | None:
        """``costs [B]``."""
        return columns_like(batch, costs=self.scorer.scores(batch))


WORKERS: dict[str, type[ModelWorker]] = {
    "actor": ActorWorker,
    "critic": CriticWorker,
    "reference": ReferenceWorker,
    "reward": RewardWorker,
    "cost": CostWorker,
}


def _load_nothing(fill: Callable[[list[Chunk]], None], counters: Mapping[str, int]) -> None:
    """What an engine without a state does with a checkpoint."""


def columns_like(batch: TensorDict, **columns: torch.Tensor | None) -> TensorDict | None:
    """New columns for the rows of ``batch``, with its padding marked; ``None`` where this stage has no output."""
    from tensordict import TensorDict

    if any(column is None for column in columns.values()):
        return None
    marked = {PADDING: ~real_rows(batch)} if PADDING in batch.keys() else {}  # noqa: SIM118
    return TensorDict({**columns, **marked}, batch_size=batch.batch_size)
