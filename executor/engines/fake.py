"""A fake engine that ships: it takes the time that its spec says, answers with zeros, and fails on demand."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from executor.engines.interfaces import RoleEngine
from executor.faults import Due, Fault, strike
from executor.records import Drafted, Spent, WeightsMoved

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import torch
    from tensordict import TensorDict

    from executor.checkpoint.shards import Chunk, EngineState
    from executor.records import Identity
    from executor.rl.loss_terms import LossTerm
    from executor.rl.sampling import Sampling
    from simulator.plan.groups import Degrees


@dataclass(frozen=True)
class FakeSpec:
    """``durations_s`` by API name."""

    role: str
    durations_s: dict[str, float]
    faults: tuple[Fault, ...] = ()

    def build(self, identity: Identity, address: str, degrees: Degrees) -> RoleEngine:
        """See ``EngineChoice``."""
        engine = FakeEngine(identity.rank, self)
        return RoleEngine.of_trainer(engine, engine)

    def disaggregated(self, address: str, senders: Degrees, receivers: Degrees) -> tuple[FakeSpec, FakeSpec]:
        """See ``EngineChoice``; a fake has no weights to send."""
        return self, self


class FakeEngine:
    """Plays ``FakeSpec``: every interface of ``executor.engines.interfaces``, without weights."""

    spent = Spent()

    def __init__(self, rank: int, spec: FakeSpec) -> None:
        self.rank, self.spec = rank, spec
        self._due = Due(rank, spec.faults)
        self.num_steps = 0

    def load(self) -> None:
        self._play("init_model")

    def log_probs(self, batch: TensorDict, temperature: float) -> torch.Tensor:
        value = self._play("compute_ref_log_prob" if self.spec.role == "reference" else "compute_log_prob")
        return self._filled(batch, value, per_token=True)

    def values(self, batch: TensorDict) -> torch.Tensor:
        return self._filled(batch, self._play("compute_values"), per_token=True)

    def scores(self, batch: TensorDict) -> torch.Tensor:
        value = self._play("compute_cost" if self.spec.role == "cost" else "compute_reward")
        return self._filled(batch, value, per_token=False)

    def update(self, terms: tuple[LossTerm, ...]) -> dict[str, float]:
        self.num_steps += 1
        loss = self._play("update_critic" if self.spec.role == "critic" else "update_actor")
        return {"loss": loss, "terms": float(len(terms))}

    def check_replicas(self) -> None:
        """Nothing to compare."""

    def lasting_weights(self) -> dict[str, torch.Tensor]:
        return {}

    def save(self, folder: str) -> None:
        """Nothing to write."""

    def saved_state(self) -> EngineState:
        from executor.checkpoint.shards import EngineState

        return EngineState()

    def load_state(self, fill: Callable[[list[Chunk]], None], counters: Mapping[str, int]) -> None:
        """Nothing to read."""

    def weights_moved(self) -> WeightsMoved:
        return WeightsMoved()

    def to_generation(self) -> None:
        self._play("transition")

    def generate(self, batch: TensorDict, sampling: Sampling) -> TensorDict:
        import torch
        from tensordict import TensorDict

        value = self._play("generate_sequences")
        shape = (int(batch.batch_size[0]), sampling.max_tokens)
        return TensorDict(
            {
                "responses": torch.zeros(shape, dtype=torch.int64),
                "response_mask": torch.ones(shape, dtype=torch.bool),
                "log_probs": torch.full(shape, value),
            },
            batch_size=batch.batch_size,
        )

    def drafted(self) -> Drafted:
        return Drafted()

    def _filled(self, batch: TensorDict, value: float, *, per_token: bool) -> torch.Tensor:
        import torch

        return torch.full(batch["responses"].shape if per_token else batch["responses"].shape[:1], value)

    def _play(self, api: str) -> float:
        """Take the call's time and let its faults happen; what its numbers are then."""
        time.sleep(self.spec.durations_s.get(api, 0.0))
        value = 0.0
        for fault in self._due.now(self.spec.role, api):
            if fault.kind == "nan":
                value = math.nan
            else:
                strike(fault)
        return value
