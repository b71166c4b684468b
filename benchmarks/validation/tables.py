"""Read published tables as strangers write them: stray spaces, empty cells, extra columns, numbers as text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import pandas as pd

from benchmarks.validation.families import family_of, release_of
from benchmarks.validation.fit import is_fit
from benchmarks.validation.names import NotPredicted, is_empty, number, published_device, text_of
from benchmarks.validation.rows import Row
from profiles.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

TableKind = Literal["rl", "training", "generation"]


@dataclass(frozen=True)
class Kind:
    """Columns of one kind of table.

    Parameters
    ----------
    needed
        Columns without which nothing can be said; a file that lacks one is refused.
    numeric
        Columns whose cells are numbers where they can be read as such.
    quantities
        Measured columns that are predicted or listed.
    """

    needed: tuple[str, ...]
    numeric: tuple[str, ...]
    quantities: tuple[str, ...]


_RL_NUMERIC = """num_gpus gpus_per_node prompts_per_step samples_per_prompt samples_per_step max_seq_len
max_prompt_len max_response_len mean_prompt_len mean_response_len train_tp train_pp train_cp train_ep train_vpp
train_dp gen_tp gen_pp gen_ep gen_dp micro_batch logprob_micro_batch global_batch train_gpus gen_gpus
gen_gpu_mem_util derived_tokens_per_sample"""
_RL_TIMES = """step_time_s gen_time_s logprob_time_s old_logprob_time_s ref_logprob_time_s critic_time_s
train_time_s refit_time_s other_time_s tokens_per_s_per_gpu mfu"""
_TRAINING_NUMERIC = """num_gpus gpus_per_node seq_len train_tp train_pp train_cp train_ep train_vpp train_dp
micro_batch global_batch grad_accum"""
_TRAINING_QUANTITIES = "step_time_s tokens_per_s_per_gpu tflops_per_gpu mfu peak_mem_gib"
_GENERATION_NUMERIC = """num_gpus tp pp attention_dp moe_tp moe_ep input_len output_len concurrency num_requests
max_batch"""
_GENERATION_QUANTITIES = "throughput_tokens_per_s tokens_per_s_per_gpu ttft_ms tpot_ms"

KINDS: dict[TableKind, Kind] = {
    "rl": Kind(
        ("id", "system", "gpu_kind", "num_gpus", "model", "step_time_s"),
        tuple(_RL_NUMERIC.split()),
        tuple(_RL_TIMES.split()),
    ),
    "training": Kind(
        ("id", "system", "gpu_kind", "num_gpus", "model", "seq_len", "step_time_s"),
        tuple(_TRAINING_NUMERIC.split()),
        tuple(_TRAINING_QUANTITIES.split()),
    ),
    "generation": Kind(
        ("id", "backend", "gpu_kind", "num_gpus", "model", "input_len", "output_len"),
        tuple(_GENERATION_NUMERIC.split()),
        tuple(_GENERATION_QUANTITIES.split()),
    ),
}
# Columns of the published tables that hold text; a file without one of them reads as if it were empty.
_TEXT = {
    "rl": """id source source_ref measured_date row_kind spec_level system gpu_kind gpu_kind_basis model algorithm
train_backend gen_backend precision_train precision_gen placement schedule recompute seq_packing offload
moe_dispatcher logprob_passes time_stat config_basis notes""",
    "training": """id source source_ref measured_date row_kind spec_level system gpu_kind gpu_kind_basis model task
precision fsdp recompute other_settings time_stat config_basis notes""",
    "generation": """id source source_ref measured_date row_kind spec_level backend backend_version gpu_kind model
precision throughput_scope throughput_counts time_stat notes""",
}


def read_tables(kind: TableKind, files: Sequence[Path]) -> pd.DataFrame:
    """All rows of some files of one kind, cleaned, with unique ids.

    Raises
    ------
    InputError
        A file cannot be read as CSV, lacks a needed column or has no row.
    """
    table = pd.concat([_read(kind, file) for file in files], ignore_index=True)
    ids = [text_of(cell) or f"row-{i + 1}" for i, cell in enumerate(table["id"])]
    counts: dict[str, int] = {}
    unique = []
    for row_id in ids:
        counts[row_id] = counts.get(row_id, 0) + 1
        unique.append(row_id if counts[row_id] == 1 else f"{row_id}#{counts[row_id]}")
    return table.assign(id=unique)


def quantity_rows(kind: TableKind, cells: dict[str, object]) -> list[Row]:
    """Every published quantity of a record, without prediction; one empty line if it publishes none."""
    found = {q: number(cells.get(q)) for q in KINDS[kind].quantities}
    base = Row(
        table=kind,
        id=text_of(cells.get("id")),
        quantity="",
        measured=float("nan"),
        system=text_of(cells.get("system")) or text_of(cells.get("backend")),
        placement=text_of(cells.get("placement")),
        schedule=text_of(cells.get("schedule")),
        level=text_of(cells.get("spec_level")),
        device=text_of(cells.get("gpu_kind")),
        family=family_of(text_of(cells.get("model")), _part(text_of(cells.get("gpu_kind"))), release_of(kind, cells)),
    )
    rows = [
        _with(base, quantity, value, is_fit(kind, "", base.id.split("#")[0], quantity))
        for quantity, value in found.items()
        if value is not None and value > 0
    ]
    return rows or [base.without("the row publishes no quantity that is predicted")]


def _part(text: str) -> str:
    """Our name of a published part, or the source's."""
    try:
        return published_device(text)
    except NotPredicted:
        return text


def _with(base: Row, quantity: str, measured: float, fit: bool) -> Row:
    fields = {**base.__dict__, "quantity": quantity, "measured": measured, "fit": fit}
    return Row(**fields)


def _read(kind: TableKind, file: Path) -> pd.DataFrame:
    try:
        raw = pd.read_csv(file, dtype=str, keep_default_na=False, encoding="utf-8-sig", skipinitialspace=True)
    except (OSError, ValueError) as error:  # pandas' parser errors are ValueErrors, as is a wrong encoding
        raise InputError(f"{file}: cannot be read as a CSV table ({' '.join(str(error).split())[:200]})") from None
    raw.columns = [str(column).strip() for column in raw.columns]
    lacking = [column for column in KINDS[kind].needed if column not in raw.columns]
    if lacking:
        raise InputError(f"{file}: not a {kind} table: it lacks the columns {', '.join(lacking)}")
    if raw.columns.has_duplicates:
        raise InputError(f"{file}: the columns {', '.join(raw.columns[raw.columns.duplicated()])} stand there twice")
    if raw.empty:
        raise InputError(f"{file}: the table has no rows")
    return _clean(kind, raw)


def _clean(kind: TableKind, raw: pd.DataFrame) -> pd.DataFrame:
    numeric = {*KINDS[kind].numeric, *KINDS[kind].quantities}
    wanted = [*_TEXT[kind].split(), *KINDS[kind].numeric, *KINDS[kind].quantities]
    columns = {}
    for column in [*raw.columns, *(c for c in wanted if c not in raw.columns)]:
        cells = raw[column].tolist() if column in raw.columns else [""] * len(raw)
        columns[column] = pd.Series([_cell(cell, column in numeric) for cell in cells], dtype=object)
    return pd.DataFrame({name: cells.infer_objects() for name, cells in columns.items()})


def _cell(cell: str, numeric: bool) -> object:
    """A number where there should be one and can be read; words and remarks stay, for those who read the row."""
    if is_empty(cell):
        return float("nan")
    value = number(cell) if numeric and "(" not in cell else None
    return cell.strip() if value is None else value
