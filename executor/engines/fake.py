"""A fake engine that ships: it takes the time that a timeline says, answers with zeros, and fails on demand."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import torch
    from tensordict import TensorDict

    from executor.engines.base import Objective, Sampling
    from simulator.timeline import Timeline


@dataclass(frozen=True)
class Fault:
    """On ``rank`` of ``role``, the ``call``-th time (from 0) that ``api`` runs: an error, a killed process, a delay."""

    role: str
    api: str
    call: int = 0
    rank: int = 0
    kind: Literal["error", "kill", "delay"] = "error"
    delay_s: float = 0.0


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


class InjectedFaultError(RuntimeError):
    """An error that a ``Fault`` asked for."""


class FakeEngine:
    """Plays ``FakeSpec``. See ``executor.engines.base.Engine``."""

    comm_s = 0.0

    def __init__(self, rank: int, spec: FakeSpec) -> None:
        self.rank, self.spec = rank, spec
        self._seen: dict[str, int] = {}

    def load(self) -> None:
        self._play("init_model")

    def log_probs(self, batch: TensorDict) -> torch.Tensor:
        self._play("compute_ref_log_prob" if self.spec.role == "reference" else "compute_log_prob")
        return self._zeros(batch, per_token=True)

    def values(self, batch: TensorDict) -> torch.Tensor:
        self._play("compute_values")
        return self._zeros(batch, per_token=True)

    def scores(self, batch: TensorDict) -> torch.Tensor:
        self._play("compute_cost" if self.spec.role == "cost" else "compute_reward")
        return self._zeros(batch, per_token=False)

    def update(self, objectives: tuple[Objective, ...]) -> dict[str, float]:
        self._play("update_critic" if self.spec.role == "critic" else "update_actor")
        return {"loss": 0.0, "terms": float(len(objectives))}

    def to_generation(self) -> None:
        self._play("transition")

    def generate(self, batch: TensorDict, sampling: Sampling) -> TensorDict:
        import torch
        from tensordict import TensorDict

        self._play("generate_sequences")
        shape = (int(batch.batch_size[0]), sampling.max_tokens)
        return TensorDict(
            {
                "responses": torch.zeros(shape, dtype=torch.int64),
                "response_mask": torch.ones(shape, dtype=torch.bool),
                "log_probs": torch.zeros(shape),
            },
            batch_size=batch.batch_size,
        )

    def _zeros(self, batch: TensorDict, *, per_token: bool) -> torch.Tensor:
        import torch

        return torch.zeros(batch["responses"].shape if per_token else batch["responses"].shape[:1])

    def _play(self, api: str) -> None:
        number = self._seen.get(api, 0)
        self._seen[api] = number + 1
        time.sleep(self.spec.durations_s.get(api, 0.0) * self.spec.speed)
        for fault in self.spec.faults:
            if (fault.role, fault.api, fault.call, fault.rank) == (self.spec.role, api, number, self.rank):
                _happen(fault)


def _happen(fault: Fault) -> None:
    if fault.kind == "delay":
        time.sleep(fault.delay_s)
    elif fault.kind == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    else:
        raise InjectedFaultError(f"{fault.role}.{fault.api} number {fault.call} was told to fail on rank {fault.rank}")
