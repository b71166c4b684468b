"""What a model on two engines asks of each: the one that trains and the one that generates."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import AbstractContextManager

    import torch
    from tensordict import TensorDict

    from executor.checkpoint.shards import Chunk, EngineState
    from executor.collectives import CommClock, Groups
    from executor.engines.base import Objective, Sampling
    from executor.engines.native.engine import ModelSpec
    from executor.weights.architecture import Architecture
    from executor.weights.regions import Layout


class Trainer(Protocol):
    """What a training engine offers beyond ``Engine``'s passes."""

    arch: Architecture
    layout: Layout
    clock: CommClock
    groups: Groups
    spec: ModelSpec
    dtype: torch.dtype

    @property
    def num_steps(self) -> int: ...

    def load(self) -> None: ...
    def tensors(self) -> dict[str, torch.Tensor]: ...
    def present(self) -> AbstractContextManager[None]: ...
    def log_probs(self, batch: TensorDict, temperature: float) -> torch.Tensor | None: ...
    def values(self, batch: TensorDict) -> torch.Tensor | None: ...
    def scores(self, batch: TensorDict) -> torch.Tensor | None: ...
    def update(self, objectives: tuple[Objective, ...]) -> dict[str, float] | None: ...
    def saved_state(self) -> EngineState: ...
    def load_state(self, fill: Callable[[list[Chunk]], None], counters: Mapping[str, int]) -> None: ...


class Generator(Protocol):
    """What a generation engine offers; its tensors are valid between ``restore`` and ``release``."""

    layout: Layout

    def load(self) -> None: ...
    def tensors(self) -> dict[str, torch.Tensor]: ...
    def restore(self) -> None: ...
    def release(self) -> None: ...
    def ready(self) -> None: ...
    def generate(self, batch: TensorDict, sampling: Sampling) -> TensorDict: ...
