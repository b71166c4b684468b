"""The torch-native decoder as the generation engine of a hybrid, for whichever engine trains."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from executor.collectives import make_groups
from executor.engines.native.generation import generate_waves
from executor.engines.native.replica import Replica, generation_slice
from executor.records import Drafted
from executor.weights.native_layout import NativeLayout

if TYPE_CHECKING:
    from tensordict import TensorDict

    from executor.engines.entry import GeneratorSetup
    from executor.rl.sampling import Sampling


class NativeGenerator:
    """A ``GenerationEngine`` that holds a shard of its own between ``restore`` and ``release``."""

    keeps_tensors = True

    def __init__(self, setup: GeneratorSetup) -> None:
        self.rank, self.degrees, self.spec = setup.identity.rank, setup.degrees, setup.spec
        self.arch, self.dtype, self.clock = setup.arch, setup.dtype, setup.clock
        self.layout = NativeLayout(setup.arch, setup.degrees, "generation", transposed=False)
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

    def release_cache(self) -> None:
        """Nothing: a cache lives as long as the call that fills it."""

    def release(self) -> None:
        """Give it back."""
        self._weights = {}

    def generate(self, batch: TensorDict, sampling: Sampling) -> TensorDict:
        piece = generation_slice(self.rank, self.degrees)
        replica = Replica(self.arch, piece, self.groups.gen_tp, self.groups.gen_pp, self._weights)
        return generate_waves(replica, batch, sampling, self.spec)

    def drafted(self) -> Drafted:
        return Drafted()
