"""A fake engine that ships: it takes the time that a timeline says, answers with zeros, and fails on demand."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from executor.faults import Due, Fault, strike

if TYPE_CHECKING:
    import torch
    from tensordict import TensorDict

    from executor.engines.base import Objective, Sampling
    from simulator.plan.timeline import Timeline


@dataclass(frozen=True)
class FakeSpec:
    """``durations_s`` by API name, as ``durations_of`` reads them; all times are multiplied by ``speed``."""

    role: str
    durations_s: dict[str, float]
    speed: float = 1.0
    faults: tuple[Fault, ...] = ()


def durations_of(timeline: Timeline, role: str) -> dict[str, float]:
    """Mean seconds of each API of a role in a timeline, predicted or measured."""
    spans = [span for span in timeline.spans if span.role == role]
    return {
        api: sum(s.duration_s for s in spans if s.api == api) / sum(s.api == api for s in spans)
        for api in {span.api for span in spans}
    }


class FakeEngine:
    """Plays ``FakeSpec``. See ``executor.engines.base.Engine``."""

    comm_s = 0.0

    def __init__(self, rank: int, spec: FakeSpec) -> None:
        self.rank, self.spec = rank, spec
        self._due = Due(rank, spec.faults)

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

    def update(self, objectives: tuple[Objective, ...]) -> dict[str, float]:
        loss = self._play("update_critic" if self.spec.role == "critic" else "update_actor")
        return {"loss": loss, "terms": float(len(objectives))}

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

    def _filled(self, batch: TensorDict, value: float, *, per_token: bool) -> torch.Tensor:
        import torch

        return torch.full(batch["responses"].shape if per_token else batch["responses"].shape[:1], value)

    def _play(self, api: str) -> float:
        """Take the call's time and suffer its faults; what its numbers are then."""
        time.sleep(self.spec.durations_s.get(api, 0.0) * self.spec.speed)
        value = 0.0
        for fault in self._due.now(self.spec.role, api):
            if fault.kind == "nan":
                value = math.nan
            else:
                strike(fault)
        return value
