"""The torch-native engine as one half of a hybrid: it trains, another engine generates."""

from __future__ import annotations

from typing import TYPE_CHECKING

from executor.engines.torch_native.engine import TorchNativeEngine
from executor.transition.architecture import read_architecture
from executor.transition.native_layout import NativeLayout

if TYPE_CHECKING:
    import torch


class NativeTrainer(TorchNativeEngine):
    """Adds what a transition needs: the layout, and the local tensors by its names."""

    def load(self) -> None:
        self.arch = read_architecture(self.spec.path, has_score=self.spec.value_head)
        self.layout = NativeLayout(self.arch, self.degrees, "training", transposed=False)
        super().load()

    def tensors(self) -> dict[str, torch.Tensor]:
        """The parameters of this rank by name."""
        return {name: weight.detach() for name, weight in self.flat.weights.items()}
