"""Which rows of a rank belong to which optimizer step.

Row ``i`` of the global batch belongs to step ``i mod m``: the same rows whatever the data-parallel degree, so the loss
does not depend on the layout.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from profiles.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tensordict import TensorDict


def minibatches(batch: TensorDict, replica: int, num: int) -> Iterator[TensorDict]:
    """The rows of each of ``num`` steps on data-parallel rank ``replica``.

    It holds consecutive global rows, unless a column says which ones they are.
    """
    import torch

    from executor.batch import ROW

    rows = int(batch.batch_size[0])
    if rows < num:
        raise InputError(
            f"{num} mini-batches of {rows} rows a rank leave ranks without work; use at most {rows} mini-batches or "
            "fewer data-parallel ranks"
        )
    dealt = ROW in batch.keys()  # noqa: SIM118 - a TensorDict iterates over its rows
    step = (batch[ROW] if dealt else torch.arange(rows) + replica * rows) % num
    for k in range(num):
        yield batch[step == k]
