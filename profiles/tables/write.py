"""Writing measured tables: parquet with a sidecar each, complete or not there at all."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from profiles.atomic_write import write_all_or_none
from profiles.errors import InputError
from profiles.lookup.table import SCHEMA_VERSION
from profiles.lookup.table_check import ERROR, TIME
from profiles.yaml_text import yaml_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

Rows = "Sequence[Mapping[str, Any]]"

_HEADS = {"head_dim": "elements", "heads": "query heads of one rank", "kv_heads": "KV heads of one rank"}
_PROBE = {
    "engine": "name",
    "call": "name of the worker's call",
    "dtype": "name",
    "model_type": "name",
    "hidden": "elements",
    "layers": "layers",
    "ffn": "elements",
    "heads": "heads",
    "kv_heads": "heads",
    "vocab": "tokens",
    "head_dim": "elements",
    "tied": "1 no, 2 yes",
    "samples": "samples of a call",
    "prompt": "tokens",
    "response": "tokens",
    "micro_batch": "samples",
    "minibatches": "optimizer steps",
    "idle_ms": "milliseconds without work before each call",
}

KEYS: dict[str, dict[str, str]] = {
    "gemm": {"dtype": "name", "m": "rows", "n": "elements", "k": "elements"},
    "attention_prefill": {**_HEADS, "batch": "sequences", "seq": "tokens"},
    "attention_decode": {
        "kv_dtype": "name",
        **_HEADS,
        "batch": "sequences",
        "context": "tokens read, the new one included",
    },
    "attention_training": {
        "direction": "forward, or both",
        "mask": "causal kernel, or an explicit mask",
        **_HEADS,
        "batch": "sequences",
        "seq": "tokens",
    },
    "memory_ops": {"op": "name", "dtype": "name", "num_bytes": "bytes read and written"},
    "copy": {"kind": "name", "num_bytes": "bytes"},
    "collective": {"dtype": "name", "kind": "name", "gpus": "ranks", "num_bytes": "bytes"},
    "engine_step": _PROBE,
    "parallel_step": {**_PROBE, "ranks": "data-parallel ranks"},
    "neighbour_step": {**_PROBE, "neighbours": "ranks of another pool that work meanwhile"},
    "core_pace": {"cores": "that take a training step each; times of calls are brought to this pace"},
    "dispatch": {
        "launcher": "name",
        "engine": "of the ranks; fake: they compute nothing",
        "samples": "samples of a batch",
        "ranks": "ranks",
        "pools": "pools of them",
        "part": "between two calls that follow one another; before the first of an iteration and after its last",
    },
}
"""Tables that a machine is measured into: key columns in the order that rows are sorted by, each with its unit."""

BETWEEN, AROUND = PARTS = ("between two calls", "around an iteration")
FAKE = "fake"
"""Parts of table ``dispatch``, and its engine that computes nothing."""

RESULTS = {
    TIME: "seconds, median",
    "low_s": "seconds, low end of the 95 % interval of the median",
    "high_s": "seconds, its high end",
    "repeats": "samples",
    "outliers": "samples beyond 5 median absolute deviations",
    ERROR: "why there is no time; empty where there is one",
}


def write_table(folder: Path, name: str, rows: Sequence[Mapping[str, Any]], about: Mapping[str, Any]) -> Path:
    """Write ``<name>.parquet`` and ``<name>.yaml``; returns the path of the table.

    Parameters
    ----------
    folder, name
        Where, and which table of ``KEYS``.
    rows
        Key columns and results (``RESULTS``) together; later rows of one key replace earlier ones.
    about
        What goes into the sidecar beside columns and checksum: device, driver, versions, command, date.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    if name not in KEYS:
        raise InputError(f"there is no measured table '{name}'; known: {', '.join(KEYS)}")
    keys = KEYS[name]
    by_key = {tuple(row[key] for key in keys): row for row in rows}
    ordered = [by_key[key] for key in sorted(by_key)]
    arrays = {key: _column(pa, [row[key] for row in ordered]) for key in keys}
    for result in RESULTS:
        arrays[result] = _result(pa, result, [row.get(result) for row in ordered])
    path, table = folder / f"{name}.parquet", pa.BufferOutputStream()
    pq.write_table(pa.table(arrays), table, compression="zstd")
    content = table.getvalue().to_pybytes()
    failed = sum(bool(row.get(ERROR)) for row in ordered)
    sidecar = {
        "schema_version": SCHEMA_VERSION,
        "table": name,
        **about,
        "units": {**keys, **RESULTS},
        "rows": len(ordered),
        "failed_rows": failed,
        "sha256": hashlib.sha256(content).hexdigest(),
    }
    write_all_or_none({path: content, folder / f"{name}.yaml": yaml_of(sidecar)})
    return path


def _column(pa: Any, values: list[Any]) -> Any:
    if all(isinstance(value, int) for value in values):
        return pa.array(values, pa.int64())
    return pa.array([str(value) for value in values]).dictionary_encode()


def _result(pa: Any, name: str, values: list[Any]) -> Any:
    if name == ERROR:
        return pa.array([str(value or "") for value in values]).dictionary_encode()
    if name in ("repeats", "outliers"):
        return pa.array([int(value or 0) for value in values], pa.int32())
    return pa.array([None if value is None else float(value) for value in values], pa.float64())
