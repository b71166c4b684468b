"""Packed micro-batches through Megatron's schedules.

Stages of a pipeline want micro-batches of one size, and interleaved ones a number of them that the stages divide:
filler tokens and filler micro-batches have no target.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from megatron.core.packed_seq_params import PackedSeqParams
from megatron.core.pipeline_parallel.schedules import get_forward_backward_func

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from executor.rl.packing import Packed


def run_passes(
    chunks: list[Any], micros: list[Packed], output: Callable[[torch.Tensor, Packed], Any], *, train: bool
) -> list[Any]:
    """Run Megatron's schedule. ``output`` maps the last stage's logits ``[N, V / t]`` to a loss if ``train``, else
    to what is returned: one per micro-batch on the last stage, an empty list elsewhere."""  # noqa: D205, D209

    def loss(micro: Packed, logits: torch.Tensor, non_loss_data: bool = False) -> Any:
        found = output(logits[0], micro)
        # the schedule divides nothing where it is told the number of tokens and counts per token
        return found if non_loss_data else (found.clone(), torch.ones((), dtype=torch.int, device=logits.device), {})

    def step(iterator: Iterator[Packed], model: Any) -> tuple[torch.Tensor, Any]:
        micro = next(iterator)
        packed = packed_params(micro.lengths)
        return model(micro.tokens, micro.positions, None, packed_seq_params=packed), partial(loss, micro)

    iterators = [iter(micros) for _ in chunks]
    found = get_forward_backward_func()(
        forward_step_func=step,
        data_iterator=iterators if len(chunks) > 1 else iterators[0],
        model=chunks if len(chunks) > 1 else chunks[0],
        num_microbatches=len(micros),
        seq_length=sum(micros[0].lengths),  # whole: Megatron takes the share of a context-parallel rank of it
        micro_batch_size=1,
        forward_only=not train,
        collect_non_loss_data=not train,
    )
    return list(found)


@dataclass
class PackedLengths(PackedSeqParams):  # type: ignore[misc]  # Megatron has no types
    """Where sequences begin and end, as Megatron has it, and how long they are, as our attention wants it."""

    lengths: tuple[int, ...] = ()


def packed_params(lengths: tuple[int, ...]) -> PackedLengths:
    """Of sequences of these lengths. On the host: the rotary embedding reads it there, and waits for no device."""
    ends = torch.tensor([0, *lengths], dtype=torch.int32, device="cpu").cumsum(0, dtype=torch.int32)
    most = max(lengths)
    return PackedLengths("thd", ends, ends, max_seqlen_q=most, max_seqlen_kv=most, lengths=lengths)
