"""Micro-batches through Megatron's schedules.

Rows are moved to the left, so that a causal mask is all the mask they need. Megatron wants micro-batches of one shape,
and for interleaved stages a number of them that the stages divide: filler rows and filler micro-batches have no target.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tensordict import TensorDict


@dataclass(frozen=True)
class Micro:
    """One micro-batch. ``tokens [b, S]`` start at position 0; ``targets [b, N]`` are the places in ``tokens`` of the
    tokens to predict; ``rows`` the columns that a loss reads, ``num_real`` how many rows count."""  # noqa: D205, D209

    tokens: torch.Tensor
    targets: torch.Tensor
    last: torch.Tensor
    rows: Any
    num_real: int


def micros_of(
    rows: TensorDict, first: int, micro_batch: int, *, length_multiple: int, count_multiple: int, device: torch.device
) -> list[Micro]:
    """Cut ``rows`` (``tokens``, ``token_mask``, ``target_mask``) into micro-batches of one shape.

    ``first`` is the place of the first target in ``tokens``. Lengths are padded to ``length_multiple``, the number of
    micro-batches to ``count_multiple``.
    """
    total = int(rows.batch_size[0])
    micro_batch = min(micro_batch, total)
    count = -(-total // micro_batch)
    count = -(-count // count_multiple) * count_multiple
    place = torch.arange(count * micro_batch)
    padded = rows[place.clamp(max=total - 1)].clone()
    padded["target_mask"] = padded["target_mask"] & (place < total)[:, None]
    found = []
    for i in range(count):
        part = padded[i * micro_batch : (i + 1) * micro_batch].to(device)
        found.append(_micro(part, first, length_multiple, min(max(total - i * micro_batch, 0), micro_batch)))
    return found


def _micro(part: TensorDict, first: int, length_multiple: int, num_real: int) -> Micro:
    tokens, mask = part["tokens"], part["token_mask"]
    width = tokens.shape[1]
    skipped = mask.int().argmax(1, keepdim=True)  # padding before the first token
    length = -(-width // length_multiple) * length_multiple
    source = (torch.arange(length, device=tokens.device)[None] + skipped).clamp(max=width - 1)
    moved = tokens.gather(1, source)
    targets = torch.arange(first, width, device=tokens.device)[None] - skipped
    last = (mask * torch.arange(width, device=tokens.device)).amax(1) - skipped[:, 0]
    return Micro(moved, targets.clamp(min=1), last, part, num_real)


def run_passes(
    chunks: list[Any], micros: list[Micro], output: Callable[[torch.Tensor, Micro], Any], *, train: bool
) -> list[Any]:
    """Run Megatron's schedule. ``output`` maps the last stage's logits ``[b, S, V / t]`` to a loss if ``train``, else
    to what is returned: one per micro-batch on the last stage, an empty list elsewhere."""  # noqa: D205, D209
    from megatron.core.pipeline_parallel.schedules import get_forward_backward_func

    def loss(micro: Micro, logits: torch.Tensor, non_loss_data: bool = False) -> Any:
        found = output(logits, micro)
        # the schedule divides nothing where it is told the number of tokens and counts per token
        return found if non_loss_data else (found.clone(), torch.ones((), dtype=torch.int, device=logits.device), {})

    def step(iterator: Iterator[Micro], model: Any) -> tuple[torch.Tensor, Any]:
        micro = next(iterator)
        positions = torch.arange(micro.tokens.shape[1], device=micro.tokens.device)[None].expand_as(micro.tokens)
        return model(micro.tokens, positions, None), partial(loss, micro)

    iterators = [iter(micros) for _ in chunks]
    batch, length = micros[0].tokens.shape
    found = get_forward_backward_func()(
        forward_step_func=step,
        data_iterator=iterators if len(chunks) > 1 else iterators[0],
        model=chunks if len(chunks) > 1 else chunks[0],
        num_microbatches=len(micros),
        seq_length=length,
        micro_batch_size=batch,
        forward_only=not train,
        collect_non_loss_data=not train,
    )
    return list(found)
