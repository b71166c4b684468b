"""What a rank holds in training and in generation; and weights in a layout of scoring, whatever it is.

Scoring weights are gathered parameter by parameter from the whole training replica. The way to generation is
``transition``'s.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from executor.weights.parameters import Slice, cut_out, parameters_of
from simulator.plan.groups import Degrees, generation_coordinates, training_coordinates

if TYPE_CHECKING:
    from executor.collectives import Group
    from executor.engines.native.replica import Replica
    from executor.weights.architecture import Architecture
    from executor.weights.parameters import Parameter


def training_slice(rank: int, x: Degrees) -> Slice:
    """What a rank holds in training."""
    tp, pp, _ = training_coordinates(rank, x)
    return Slice(pp, x.p, tp, x.t)


def generation_slice(rank: int, x: Degrees) -> Slice:
    """What a rank holds in generation."""
    tg, pg, _, _ = generation_coordinates(rank, x)
    return Slice(pg, x.pg, tg, x.tg)


def gather_scoring_weights(x: Replica, piece: Slice, group: Group, *, value_head: bool) -> dict[str, torch.Tensor]:
    """The weights of slice ``piece``, whatever its layout, from the shards of the training replica ``x`` in ``group``.

    Each slice of a parameter is sent to the whole group by a rank that holds it, and each rank keeps what it wants, so
    at most one whole parameter is held besides. Moves (tp - 1)/tp of the model to each rank, as HybridFlow-V does.
    """
    wanted = {p.name: p for p in parameters_of(x.arch, piece, value_head=value_head)}
    kept = {}
    for parameter in parameters_of(x.arch, Slice(0, 1, 0, 1), value_head=value_head):
        stage = _stage_of(parameter, x.arch, x.piece.stages)
        parts = []
        for index in range(x.piece.t if parameter.cut is not None else 1):
            source = stage * x.piece.t + index
            if group.index == source:
                part = x.weights[parameter.name].detach().clone(memory_format=torch.contiguous_format)
            else:
                some = next(iter(x.weights.values()))
                part = torch.empty(parameter.local_shape(x.piece.t), dtype=some.dtype, device=some.device)
            parts.append(group.broadcast(part, source))
        if parameter.name in wanted:
            whole = parts[0] if parameter.cut is None else torch.cat(parts, dim=parameter.cut)
            kept[parameter.name] = cut_out(whole, wanted[parameter.name], piece).clone()
    return kept


def _stage_of(parameter: Parameter, arch: Architecture, stages: int) -> int:
    """The pipeline stage of training that holds a parameter."""
    return min(max(parameter.layer, 0) * stages // arch.num_layers, stages - 1)
