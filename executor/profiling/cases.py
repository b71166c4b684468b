"""One measurement: which table and row it fills, and how the operation is made. Rows are identified by their key."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import torch

    from executor.profiling.timing import Runner

Key: TypeAlias = dict[str, int | str]


@dataclass(frozen=True)
class Case:
    """``make(device, copies)`` returns the operation; ``operand_bytes`` is what one copy of its operands takes."""

    table: str
    key: Key
    make: Callable[[torch.device, int], Runner] = field(compare=False, repr=False)
    operand_bytes: float = 0.0

    @property
    def name(self) -> tuple[str, tuple[tuple[str, int | str], ...]]:
        """What identifies the row: the table and its key columns."""
        return name_of(self.table, self.key)


def name_of(table: str, key: Mapping[str, int | str]) -> tuple[str, tuple[tuple[str, int | str], ...]]:
    """A hashable name of a row."""
    return table, tuple(sorted(key.items()))


def torch_dtype(name: str) -> torch.dtype:
    """The torch type behind a name of ours."""
    import torch

    return {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[name]
