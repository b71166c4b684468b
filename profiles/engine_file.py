"""The file of an engine as it is written: constants with unit, meaning and source, and switches."""

from __future__ import annotations

import functools
import hashlib
from typing import TYPE_CHECKING, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from profiles.errors import FileFormatError, InputError, UnknownNameError
from profiles.records import ConstantBasis
from profiles.yaml_text import parse_yaml

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

PARTS = ("share", "flag")
"""Units of what is between nothing and all."""
ABOUT = {"schema_version", "computed_from", "kind", "engine", "version", "note", "facts"}
"""What a file says of itself."""
LEAST_ONE = ("max_num_seqs", "max_batched_tokens")
"""Without one of these an engine runs nothing."""


class Fact(BaseModel):
    """One constant: its value, unit, physical meaning, where it came from. None is negative, no share above 1."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    value: float = Field(ge=0.0, allow_inf_nan=False)
    unit: str
    meaning: str
    basis: ConstantBasis
    source: str
    fit_rows: str | None = None

    @model_validator(mode="after")
    def _is_a_share(self) -> Self:
        if self.unit in PARTS and self.value > 1.0:
            raise ValueError(f"a {self.unit} is at most 1, got {self.value:g}")
        return self


SchedulerKind = Literal["mixed", "prefill-first", "in-flight", "in-flight-chunked"]
"""What shares a step: ``mixed`` cuts prompts to fill the steps of decoding sequences; ``prefill-first`` lets decode
wait for prompts; ``in-flight`` computes whole prompts beside decodes, ``in-flight-chunked`` cut ones."""


class EngineFile(BaseModel):
    """What a file of ``profiles/engines``, or one that ``hybridmap profile`` wrote, may say."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_version: Literal[1] = 1
    computed_from: str = ""
    kind: Literal["training", "generation"]
    engine: str
    version: str
    note: str
    cuda_graphs: bool = False
    prefix_sharing: bool = False
    shares_weights: bool = False
    scheduler: SchedulerKind = "mixed"
    plans_ahead: bool = False
    fp8_cache_with: tuple[str, ...] = ()
    fused_quantization: tuple[str, ...] = ("fp8", "fp8_block", "nvfp4", "mxfp4_mxfp8")
    mxfp8_activations: bool = False
    drafts_in_graph: bool = False
    grouped_query_kernels: tuple[int, ...] | None = None
    window_frees_cache: bool = True
    share_holds_activations: bool = True
    caches_every_head: bool = False
    keeps_workspace: bool = False
    custom_all_reduce: bool = True
    static_batches: bool = False
    gathers_every_batch: bool = False
    first_token_in_prefill: bool = False
    mixture_parallel: bool = False
    sequence_parallel: bool = True
    gathers_again: bool = True
    grouped_kernels: bool = False
    gathers_at_step: bool = False
    balances_context: bool = True
    fused_projections: bool = True
    head_on_responses: bool = False
    zero_stages: tuple[int, ...] = ()
    interleaving: bool = False
    scoring_layouts: bool = False
    token_micro_batches: bool = False
    facts: dict[str, Fact]

    @model_validator(mode="after")
    def _runs(self) -> Self:
        for name in LEAST_ONE:
            if name in self.facts and self.facts[name].value < 1.0:
                raise ValueError(f"{name} is at least 1, got {self.facts[name].value:g}")
        return self


def with_settings(file: EngineFile, settings: Mapping[str, object], names: set[str]) -> EngineFile:
    """The engine as a job starts it: switches and values of facts by their names in the file.

    ``names``: of what such an engine may have. Raises ``InputError`` for another, or a value that cannot be.
    """
    switches = (set(EngineFile.model_fields) - ABOUT) & names
    known = sorted({*switches, *file.facts})
    for name in settings:
        if name not in known:
            raise UnknownNameError("setting", name, known, f"(in engines.generation_settings of {file.engine})")
    content = file.model_dump()
    content |= {name: value for name, value in settings.items() if name in switches}
    for name in settings.keys() - switches:
        content["facts"][name] |= {"value": settings[name], "basis": "assumed", "source": "the job's setting"}
    try:
        return EngineFile.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        where = "".join(f".{name}" for name in first["loc"] if name not in ("facts", "value"))
        said = first["msg"].removeprefix("Value error, ")
        raise InputError(f"engines.generation_settings{where}: {said}") from None


def read_engine_file(path: Path) -> tuple[EngineFile, str]:
    """A file and the SHA-256 of its bytes; read once as long as it does not change. Raises ``FileFormatError``."""
    return _parsed(path, path.stat().st_mtime_ns)


@functools.cache
def _parsed(path: Path, changed_ns: int) -> tuple[EngineFile, str]:
    """``changed_ns`` tells a file that was measured again from the one that was read before."""
    raw = path.read_bytes()
    try:
        return EngineFile.model_validate(parse_yaml(raw, f"engine file {path.name}")), hashlib.sha256(raw).hexdigest()
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise FileFormatError(
            f"engine file {path.name}: {where and where + ': '}{first['msg'].removeprefix('Value error, ')}"
        ) from error
