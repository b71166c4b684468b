"""Every engine by its name in job files. A new one is a file with its entry, and a line here. Imports no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from executor.engines.fsdp.entry import FSDP2
from executor.engines.megatron.entry import MEGATRON_CORE
from executor.engines.native.entry import NATIVE_GENERATION, NATIVE_TRAINING
from executor.engines.sglang.entry import SGLANG
from executor.engines.vllm.entry import VLLM

if TYPE_CHECKING:
    from executor.engines.entry import GenerationEntry, TrainingEntry

AS_PLANNED = "as-planned"
"""In a job file: the engine that the plan was priced for."""

TRAINING: dict[str, TrainingEntry] = {entry.name: entry for entry in (NATIVE_TRAINING, MEGATRON_CORE, FSDP2)}
GENERATION: dict[str, GenerationEntry] = {entry.name: entry for entry in (NATIVE_GENERATION, VLLM, SGLANG)}


def is_in_place(training: str, generation: str) -> bool:
    """Whether a model that trains and generates on these two does both in the same memory."""
    return training == generation and training in TRAINING and TRAINING[training].build_in_place is not None


def training_engine_name(name: str) -> str:
    """``name``, if it is one of an engine that trains; ``ValueError`` names those that are."""
    return _one_of(name, TRAINING)


def generation_engine_name(name: str) -> str:
    """``name``, if it is one of an engine that generates; ``ValueError`` names those that are."""
    return _one_of(name, GENERATION)


def _one_of(name: str, known: dict[str, TrainingEntry] | dict[str, GenerationEntry]) -> str:
    names = [*known, AS_PLANNED]
    if name not in names:
        *some, last = [f"'{each}'" for each in names]
        raise ValueError(f"Input should be {', '.join(some)} or {last}")
    return name
