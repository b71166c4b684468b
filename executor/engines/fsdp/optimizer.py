"""AdamW on sharded parameters: its steps, its states on this rank, and gradients clipped by the norm of the model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from executor.engines.layout_state import MOMENTS
from executor.weights.native_layout import cut_dimension

if TYPE_CHECKING:
    from collections.abc import Mapping

    from executor.collectives import Groups
    from executor.engines.model_spec import OptimizerConfig

    Parameters = Mapping[str, torch.nn.Parameter]
    """By name; each a DTensor, on the data-parallel mesh or on that and the tensor-parallel one."""


def adamw(parameters: Parameters, given: OptimizerConfig) -> torch.optim.AdamW:
    """One group of parameters for each mesh: a step runs on many tensors at once, which must be of one mesh."""
    by_mesh: dict[int, list[Any]] = {}
    for parameter in parameters.values():
        by_mesh.setdefault(_mesh_dimensions(parameter), []).append(parameter)
    groups = [{"params": of_mesh} for of_mesh in by_mesh.values()]
    return torch.optim.AdamW(
        groups, lr=given.learning_rate, betas=given.betas, eps=given.eps, weight_decay=given.weight_decay
    )


def clip_gradients(parameters: Parameters, groups: Groups, most: float) -> float:
    """Scale gradients so that their norm is at most ``most``; the norm before, each element of the model counted once.

    Tensor-parallel ranks hold parts of some gradients and equal copies of the others; data-parallel ranks hold parts.
    """
    if groups.tp.size == 1:
        cut, whole = [], list(parameters.values())
    else:
        cut = [p for name, p in parameters.items() if cut_dimension(name) is not None]
        whole = [p for name, p in parameters.items() if cut_dimension(name) is None]
    with torch.no_grad():
        squares = torch.stack([_square_of_norm(part, like=whole[0]) for part in (cut, whole)])
        groups.tp.all_reduce(squares[:1])
        norm = groups.dp.all_reduce(squares).sum().sqrt()
    for mesh in (1, 2):  # scaling, too, runs on many tensors of one mesh
        of_mesh = [parameter for parameter in parameters.values() if _mesh_dimensions(parameter) == mesh]
        clip_grads_with_norm_(of_mesh, most, norm)
    return float(norm)


def state_tensors(optimizer: torch.optim.AdamW) -> list[torch.Tensor]:
    """The moments on this rank, as far as steps have made them."""
    states: Any = optimizer.state.values()
    return [state[name].to_local() for state in states for name in MOMENTS]


def expect_states(optimizer: torch.optim.AdamW, parameters: Parameters, num_steps: int) -> None:
    """Make the states that ``num_steps`` steps leave behind, to be filled; none after no step."""
    optimizer.state.clear()
    for parameter in parameters.values() if num_steps else ():
        moments = {name: torch.zeros_like(parameter.data) for name in MOMENTS}
        optimizer.state[parameter] = {"step": torch.tensor(float(num_steps)), **moments}


def _mesh_dimensions(parameter: Any) -> int:
    return int(parameter.device_mesh.ndim)


def _square_of_norm(part: list[torch.nn.Parameter], like: Any) -> torch.Tensor:
    gradients: list[Any] = [parameter.grad for parameter in part]
    if not gradients:
        return torch.zeros((), device=like.device)
    return get_total_norm([gradient.to_local() for gradient in gradients]).square()
