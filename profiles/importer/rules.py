"""What a shipped table is made of: its columns, and the files of the source that its rows come from."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import pandas as pd

    Rows = Callable[[pd.DataFrame], pd.DataFrame]

ENGINES = {"sglang": "sglang", "tensorrt-llm": "trtllm"}
"""Engines beside vLLM, whose tables are the common ones: our name, the source's."""

SEQUENCES = {"batch": "sequences", "seq": "tokens"}
CONTEXT = {"batch": "sequences", "context": "tokens read, the new one included"}
KV_DTYPE = {"kv_dtype": "name"}
ONE_OF_A_KEY = "of several kernels of a key the fastest, as the engine picks it"


@dataclass(frozen=True)
class Part:
    """One source file of a table.

    ``convert`` turns the source rows (checked to hold ``needs``) into the columns of the table, with an optional
    ``kernel`` column; ``facts`` go to the sidecar as they are; with ``all_groups`` the newest version that has
    every GPU count is taken, not simply the newest. ``less`` names tables of quantisation that FP8 rows hold too, and
    ``releases`` the older releases whose own table is kept beside the newest, since it differs.
    """

    family: str
    framework: str
    stem: str
    needs: tuple[str, ...]
    convert: Rows
    facts: Mapping[str, bool | str] = field(default_factory=dict)
    all_groups: bool = False
    less: tuple[str, ...] = ()
    releases: tuple[str, ...] = ()


Slots = tuple[tuple[Part, ...], ...]


@dataclass(frozen=True)
class TableRule:
    """A table we ship: key and size columns with units, and where the rows come from.

    ``slots`` are put together; of the parts of one slot the first that the system has is taken. Rows are held against
    those of ``peers``. ``engines`` are the slots of which every engine gets a table of its own, by its name with us.
    """

    name: str
    keys: Mapping[str, str]
    sizes: Mapping[str, str]
    slots: Slots
    kept: tuple[str, ...]
    peers: tuple[Part, ...] = ()
    engine_keys: Mapping[str, str] = field(default_factory=dict)
    engines: Mapping[str, Slots] = field(default_factory=dict)
    engine_kept: tuple[str, ...] = ()


def one(*parts: Part) -> Slots:
    """A table with one slot, filled by the first of some parts that the system has."""
    return (parts,)


def of_others(
    family: str, stem: str, needs: tuple[str, ...], rows: Rows, facts: Mapping[str, bool | str] | None = None
) -> dict[str, Slots]:
    """SGLang's and TensorRT-LLM's tables of their own, with the same columns and the same conversion."""
    return {name: one(Part(family, source, stem, needs, rows, facts or {})) for name, source in ENGINES.items()}
