"""Micro-batches through pipeline stages: forward only, or all forward and then all backward (GPipe).

Both ends of a send know the micro-batch, and with it the shape. GPipe keeps every micro-batch's activations until its
backward pass, where 1F1B keeps one per stage; in exchange sends never cross, so plain blocking sends cannot lock up.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from executor.collectives import Group
    from executor.rl.packing import Packed
    from executor.weights.parameters import Slice


@dataclass(frozen=True)
class Stages:
    """The stage of one rank and how to run it.

    ``run`` maps tokens or hidden states to hidden states; ``hidden`` and ``dtype`` say what arrives from the stage
    before.
    """

    piece: Slice
    group: Group
    run: Callable[[torch.Tensor, Packed], torch.Tensor]
    hidden: int
    dtype: torch.dtype

    def receive_input(self, micro: Packed) -> torch.Tensor:
        """Tokens on the first stage, else the hidden states of the stage before."""
        if self.piece.is_first:
            return micro.tokens
        shape = (*micro.tokens.shape, self.hidden)
        blank = torch.empty(shape, dtype=self.dtype, device=micro.tokens.device)
        return self.group.receive(blank, self.piece.stage - 1)


def run_forward(
    stages: Stages, micros: Sequence[Packed], output: Callable[[torch.Tensor, Packed], torch.Tensor]
) -> list[torch.Tensor] | None:
    """``output`` of each micro-batch on the last stage, ``None`` elsewhere."""
    outputs = []
    with torch.no_grad():
        for micro in micros:
            hidden = stages.run(stages.receive_input(micro), micro)
            if stages.piece.is_last:
                outputs.append(output(hidden, micro))
            else:
                stages.group.send(hidden, stages.piece.stage + 1)
    return outputs if stages.piece.is_last else None


def run_training(
    stages: Stages, micros: Sequence[Packed], loss: Callable[[torch.Tensor, Packed], torch.Tensor]
) -> None:
    """Gradients of the sum of ``loss`` over all micro-batches, added to the parameters of every stage."""
    kept = []
    for micro in micros:
        x = stages.receive_input(micro)
        if not stages.piece.is_first:
            x.requires_grad_()
        hidden = stages.run(x, micro)
        if stages.piece.is_last:
            kept.append((x, loss(hidden, micro)))
        else:
            stages.group.send(hidden.detach(), stages.piece.stage + 1)
            kept.append((x, hidden))
    for x, y in kept:
        _backward(stages, x, y)


def _backward(stages: Stages, x: torch.Tensor, y: torch.Tensor) -> None:
    if stages.piece.is_last:
        y.backward()
    else:
        y.backward(stages.group.receive(torch.empty_like(y), stages.piece.stage + 1))
    if not stages.piece.is_first:
        assert x.grad is not None
        stages.group.send(x.grad, stages.piece.stage - 1)
