"""From the training layout to another one: to that of generation by one all-gather in each micro-DP group.

The members of a micro-DP group hold exactly the training shards that make up their generation shard (groups and
shards: ``simulator.groups``). Each rank gathers the group's flat buffers and puts its generation weights together.
Scoring may have any layout; its weights are gathered parameter by parameter from the whole training replica.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from executor.checks import bit_sums, require_equal_totals
from executor.engines.torch_native.flat import extents_of
from executor.engines.torch_native.weights import Slice, cut_out, parameters_of
from simulator.groups import Degrees, generation_coordinates, training_coordinates

if TYPE_CHECKING:
    from collections.abc import Mapping

    from executor.engines.torch_native.comms import Group
    from executor.engines.torch_native.flat import Extent, FlatParameters
    from executor.engines.torch_native.replica import Replica
    from executor.engines.torch_native.weights import Parameter
    from executor.transition.architecture import Architecture


def training_slice(rank: int, x: Degrees) -> Slice:
    """What a rank holds in training."""
    tp, pp, _ = training_coordinates(rank, x)
    return Slice(pp, x.p, tp, x.t)


def generation_slice(rank: int, x: Degrees) -> Slice:
    """What a rank holds in generation."""
    tg, pg, _, _ = generation_coordinates(rank, x)
    return Slice(pg, x.pg, tg, x.tg)


def gather_generation_weights(
    data: torch.Tensor, arch: Architecture, x: Degrees, rank: int, group: Group
) -> dict[str, torch.Tensor]:
    """The generation shard of one rank, from the flat training buffers of its micro-DP group."""
    tables = [_table(arch, member, x) for member in group.ranks]
    longest = max(table[-1].stop for table in tables)
    mine = torch.zeros(longest, dtype=data.dtype, device=data.device)
    own = tables[group.index][-1].stop
    mine[:own] = data[:own]
    return assemble(group.all_gather(mine), tables, generation_slice(rank, x), arch)


def assemble(
    buffers: list[torch.Tensor], tables: list[list[Extent]], piece: Slice, arch: Architecture
) -> dict[str, torch.Tensor]:
    """Generation weights of ``piece`` from training buffers and their tables, given in rank order.

    In rank order a stage's slices stand in the order of the tensor they were cut from, so pieces just join.
    """
    weights = {}
    for parameter in parameters_of(arch, piece, value_head=False):
        parts = [
            buffer[extent.start : extent.stop].view(extent.shape)
            for buffer, table in zip(buffers, tables, strict=True)
            for extent in table
            if (extent.parameter.name, extent.parameter.layer) == (parameter.name, parameter.layer)
        ]
        weights[parameter.name] = parts[0].clone() if parameter.cut is None else torch.cat(parts, dim=parameter.cut)
    return weights


def require_gathered(
    weights: Mapping[str, torch.Tensor], flat: FlatParameters, arch: Architecture, x: Degrees, rank: int,
    group: Group,
) -> None:  # fmt: skip
    """Compare gathered weights with the training shards of the group, by sums of their bits.

    Raises ``UnequalWeightsError``; every rank of the group calls this.
    """
    tables = [_table(arch, member, x) for member in group.ranks]
    mine = torch.zeros(max(map(len, tables)), dtype=torch.int64, device=flat.data.device)
    own = tables[group.index]
    mine[: len(own)] = bit_sums({str(i): flat.view(flat.data, extent) for i, extent in enumerate(own)})
    sums = [member.tolist() for member in group.all_gather(mine)]
    trained = {}
    for parameter in parameters_of(arch, generation_slice(rank, x), value_head=False):
        parts = [
            total
            for member, table in zip(sums, tables, strict=True)
            for total, extent in zip(member, table, strict=False)
            if (extent.parameter.name, extent.parameter.layer) == (parameter.name, parameter.layer)
        ]
        trained[parameter.name] = parts[0] if parameter.cut is None else sum(parts)
    require_equal_totals(dict(zip(weights, bit_sums(weights).tolist(), strict=True)), trained)


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
                part = x.weights[parameter.name].detach().clone()
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


def _table(arch: Architecture, rank: int, x: Degrees) -> list[Extent]:
    """Where a rank's training buffer holds what."""
    return extents_of(parameters_of(arch, training_slice(rank, x), value_head=False), x.t)
