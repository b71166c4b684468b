"""Batches: rows of named columns. How they are cut, padded, joined, and what they look like between processes.

A batch is a ``TensorDict`` of batch size ``[rows]``. Cutting ``N`` rows for ``n`` takers gives each ``ceil(N / n)``
rows, since SPMD ranks must run the same number of steps; what is missing is filled with copies of the last row, marked
in the column ``is_padding``. Joining drops the marked rows. Both keep the order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from profiles.errors import InputError

if TYPE_CHECKING:
    import array
    from collections.abc import Sequence

    import numpy as np
    import torch
    from tensordict import TensorDict

    from profiles.workload import Workload

PADDING = "is_padding"
"""Column of bool, ``[rows]``: this row is a copy that only fills a rank's share. Absent where nothing was filled."""

ROW = "row"
"""Column of int64, ``[rows]``: which row of the whole batch this one is. Only in shares that were dealt by tokens."""

BYTES_PER_TOKEN = 64
"""Of a batch with all columns that an algorithm adds, at most: tokens as whole numbers of eight bytes, eight columns of
FP32, masks."""

Wire = dict[str, "tuple[np.ndarray, str]"]
"""A batch between processes: each column as an array (shared memory needs no copy) and its torch dtype."""


def largest_batch_bytes(workload: Workload) -> int:
    """Bytes of an iteration's batch when every sample is as long as the job allows."""
    return workload.num_samples * workload.padded_length * BYTES_PER_TOKEN


@dataclass(frozen=True)
class Share:
    """One taker's rows: ``num_rows`` in all, ``num_real`` of them its own, cut from rows ``[start, stop)``.

    ``stop - start`` is at least 1: a taker for whom nothing is left works on copies of the last row.
    """

    start: int
    stop: int
    num_real: int
    num_rows: int


def share_of(num_rows: int, index: int, count: int) -> Share:
    """Which rows the ``index``-th of ``count`` takers gets; ``InputError`` for an empty batch."""
    if num_rows <= 0:
        raise InputError(f"a batch without rows cannot be shared among {count} ranks")
    each = -(-num_rows // count)
    first, last = min(index * each, num_rows), min((index + 1) * each, num_rows)
    return Share(min(first, num_rows - 1), last, last - first, each)


def take_share(batch: TensorDict, index: int, count: int) -> TensorDict:
    """The ``index``-th of ``count`` shares of ``batch``; all shares mark their padding if any has some."""
    num_rows = int(batch.batch_size[0])
    share = share_of(num_rows, index, count)
    return pad_share(batch[share.start : share.stop], share, mark=num_rows % count != 0)


def pad_share(rows: TensorDict, share: Share, *, mark: bool) -> TensorDict:
    """``rows`` are ``[share.start, share.stop)``; returns ``share.num_rows`` rows, with the mark if asked for."""
    import torch

    if not mark:
        return rows
    place = torch.arange(share.num_rows)
    padded: TensorDict = rows[place.clamp(max=share.stop - share.start - 1)]
    padded[PADDING] = place >= share.num_real
    return padded


def drop_padding(batch: TensorDict) -> TensorDict:
    """``batch`` without its filler rows and without the column that marks them."""
    if PADDING not in batch.keys():  # noqa: SIM118 - a TensorDict iterates over its rows
        return batch
    kept: TensorDict = batch[~batch[PADDING]].exclude(PADDING)
    return kept


def join(batches: Sequence[TensorDict]) -> TensorDict:
    """Rows of all ``batches`` in order, filler rows dropped."""
    import torch

    joined: TensorDict = torch.cat([drop_padding(batch) for batch in batches])
    return joined


def row_tokens(argument: Any, output: Any) -> array.array[int] | None:
    """Tokens of each row that a call answered, prompt and response; ``None`` where it answered none.

    The mask of the prompts is in the output or in what the call was given.
    """
    import array

    if not is_batch(output) or "response_mask" not in output.keys():  # noqa: SIM118 - a TensorDict iterates over its rows
        return None
    found = output["response_mask"].sum(1)
    for batch in (output, argument):
        if is_batch(batch) and "prompt_mask" in batch.keys():  # noqa: SIM118
            found = found + batch["prompt_mask"].sum(1)
            break
    return array.array("q", found[real_rows(output)].tolist())


def real_rows(batch: TensorDict) -> torch.Tensor:
    """Bool ``[rows]``: which rows count."""
    import torch

    if PADDING in batch.keys():  # noqa: SIM118
        marked: torch.Tensor = batch[PADDING]
        return ~marked
    return torch.ones(batch.batch_size[0], dtype=torch.bool)


def num_bytes(value: Any) -> int:
    """Bytes of the tensors or arrays in a batch, its wire form or a tensor; 0 for anything else."""
    if is_wire(value):
        return sum(column.nbytes for column, _ in value.values())
    if is_batch(value):
        return sum(t.numel() * t.element_size() for t in value.values())
    return int(value.numel() * value.element_size()) if hasattr(value, "element_size") else 0


def is_batch(value: object) -> bool:
    """Whether ``value`` is a ``TensorDict``."""
    return type(value).__name__ == "TensorDict"


def is_wire(value: object) -> bool:
    """Whether ``value`` is a batch in its form between processes."""
    return isinstance(value, dict) and bool(value) and all(_is_column(column) for column in value.values())


def _is_column(column: object) -> bool:
    return isinstance(column, tuple) and len(column) == 2 and type(column[0]).__name__ == "ndarray"


def to_wire(batch: TensorDict) -> Wire:
    """The form between processes; bfloat16, which NumPy lacks, travels as int16."""
    import torch

    wire: Wire = {}
    for name, tensor in batch.items():
        dtype = str(tensor.dtype).removeprefix("torch.")
        plain = tensor.detach().cpu().contiguous()
        values: Any = (plain.view(torch.int16) if tensor.dtype == torch.bfloat16 else plain).numpy()
        wire[name] = (values, dtype)
    return wire


def from_wire(wire: Wire, rows: slice | Sequence[int] = slice(None)) -> TensorDict:
    """Some rows of a batch in its form between processes, copied: what is shared stays read-only."""
    import torch
    from tensordict import TensorDict

    columns = {}
    for name, (values, dtype) in wire.items():
        tensor = torch.from_numpy(values[rows].copy() if isinstance(rows, slice) else values[rows])
        columns[name] = tensor.view(torch.bfloat16) if dtype == "bfloat16" else tensor
    num_rows = len(next(iter(columns.values()))) if columns else 0
    return TensorDict(columns, batch_size=[num_rows])
