"""The torch-native decoder as the generating half of a hybrid, for whichever engine trains."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from executor.collectives import make_groups
from executor.engines.native import generation
from executor.engines.native.replica import Replica
from executor.engines.native.resharding import generation_slice
from executor.weights.native_layout import NativeLayout

if TYPE_CHECKING:
    from tensordict import TensorDict

    from executor.collectives import CommClock
    from executor.engines.base import Sampling
    from executor.engines.native.engine import ModelSpec
    from executor.weights.architecture import Architecture
    from simulator.plan.groups import Degrees


class NativeGenerator:
    """Holds a generation shard of its own between ``restore`` and ``release``."""

    def __init__(
        self, rank: int, degrees: Degrees, spec: ModelSpec, arch: Architecture, dtype: torch.dtype, clock: CommClock
    ) -> None:
        self.rank, self.degrees, self.spec = rank, degrees, spec
        self.arch, self.dtype, self.clock = arch, dtype, clock
        self.layout = NativeLayout(arch, degrees, "generation", transposed=False)
        self._weights: dict[str, torch.Tensor] = {}

    def load(self) -> None:
        """Nothing but groups to make: weights come with the transition."""
        self.groups = make_groups(self.rank, self.degrees, self.clock)

    def tensors(self) -> dict[str, torch.Tensor]:
        """Weights by their names, undefined until the transition has written them."""
        return self._weights

    def restore(self) -> None:
        """Take memory for the weights."""
        blank = torch.empty(0, dtype=self.dtype, device=self.spec.device)
        self._weights = {s.name: blank.new_empty(s.shape) for s in self.layout.stored(self.rank)}

    def ready(self) -> None:
        """Nothing to prepare."""

    def release(self) -> None:
        """Give it back."""
        self._weights = {}

    def generate(self, batch: TensorDict, sampling: Sampling) -> TensorDict:
        """Responses, mask and log-probs, as many sequences at once as the plan allows."""
        from tensordict import TensorDict

        piece = generation_slice(self.rank, self.degrees)
        replica = Replica(self.arch, piece, self.groups.gen_tp, self.groups.gen_pp, self._weights)
        parts = []
        with torch.no_grad():
            for rows in batch.split(self.spec.max_num_seqs):
                prompts, mask = rows["prompts"].to(self.spec.device), rows["prompt_mask"].to(self.spec.device)
                parts.append(generation.generate(replica, prompts, mask, rows["uid"], sampling))
        names = ("responses", "response_mask", "log_probs")
        columns = {name: torch.cat([part[i] for part in parts]).cpu() for i, name in enumerate(names)}
        return TensorDict(columns, batch_size=batch.batch_size)
