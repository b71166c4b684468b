"""Import of measured operator tables from the PyPI package ``aiconfigurator-core`` (Apache-2.0, NVIDIA).

Reads an installed copy or a wheel file without importing its code, and only the operator families of
``importer.tables.ALLOWED_FAMILIES``: the package also holds end-to-end samples, which must stay unseen because
they are what a planner is judged by. Every table becomes ``<device>/<table>.parquet`` (seconds, bytes, sorted,
one row per key) beside a ``<table>.yaml`` that says exactly where it came from; an engine's own is called
``<table>.<engine>@<release>``.
"""

from __future__ import annotations

import datetime
import hashlib
import io
import json
import os
import re
import shutil
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from profiles.errors import FileFormatError, InputError, UnknownNameError
from profiles.importer import convert
from profiles.importer.rules import Part, Slots, TableRule
from profiles.importer.source import PACKAGE, Source, open_source, version_key
from profiles.importer.tables import ADDITIONS, ALLOWED_FAMILIES, RULES
from profiles.lookup.table import SCHEMA_VERSION

if TYPE_CHECKING:
    from collections.abc import Sequence

LICENCE = "Apache-2.0, Copyright (c) 2025-2026 NVIDIA CORPORATION & AFFILIATES. All rights reserved."
SYSTEMS = {
    "a100-80gb-sxm": "a100_sxm",
    "h100-80gb-sxm": "h100_sxm",
    "h200-sxm": "h200_sxm",
    "b200-sxm": "b200_sxm",
    "gb200": "gb200",
    "b300-sxm": "b300_sxm",
    "gb300": "gb300",
    "l40s": "l40s",
    "rtx-pro-6000": "rtx_pro_6000_server",
}
SLOWER_THAN_LARGER = 1.25
SLOWER_THAN_PEERS = 1.25
"""Beyond it a GEMM row holds something else than the GEMM (a host floor, a quantisation, a hiccup): the fastest row of
the other engines takes its place, and the sidecar counts such rows."""
_DROPPED_BITS = 11
_DATA = "aiconfigurator_core/systems/data"


def import_tables(source: Path | None, devices: Sequence[str], out: Path) -> list[Path]:
    """Write the tables of ``devices`` below ``out`` and return the paths written (data and sidecars).

    Parameters
    ----------
    source
        A wheel file of ``aiconfigurator-core``, or None for the installed copy.
    devices
        Catalogue names, keys of ``SYSTEMS``.
    out
        Folder of device folders. Nothing in it changes unless every table of every device could be converted.

    Raises
    ------
    InputError
        There is no such package or file, it is not a wheel, or it lacks the tables of a device.
    FileFormatError
        A table has other columns than expected, or cannot be read.
    """
    for device in devices:
        if device not in SYSTEMS:
            raise UnknownNameError("device", device, SYSTEMS)
    with open_source(source) as copy:
        made = not out.exists()
        out.mkdir(parents=True, exist_ok=True)
        aside = Path(tempfile.mkdtemp(dir=out, prefix=".import-"))
        try:
            for device in devices:
                _write_device(copy, device, aside / device)
            return _move_into_place(aside, out)
        finally:
            shutil.rmtree(aside, ignore_errors=True)
            if made and not any(out.iterdir()):
                out.rmdir()


def _write_device(copy: Source, device: str, folder: Path) -> None:
    folder.mkdir()
    for rule in RULES:
        parts = [found for slot in rule.slots if (found := _first_present(copy, device, slot)) is not None]
        if parts:
            peers = [
                _read_part(copy, device, peer, v) for peer in rule.peers for v in _versions(copy, device, peer)[:1]
            ]
            _write_table(rule, rule.name, parts, peers, copy.version, folder)
        # The common table is the first part's engine's own, unless that one has more keys.
        common = {(found.part.framework, found.version) for found in parts[:1] if not rule.engine_keys}
        for engine, slots in rule.engines.items():
            _write_engine_tables(copy, device, rule, engine, slots, common, folder)
    if not any(folder.iterdir()):
        raise InputError(f"{PACKAGE} {copy.version} has no operator tables of {device}; nothing was written")


def _write_engine_tables(
    copy: Source, device: str, rule: TableRule, engine: str, slots: Slots, common: set[tuple[str, str]], folder: Path
) -> None:
    """The tables of an engine's newest release and of those older ones that a part names, but for the common table."""
    newest = [found for slot in slots if (found := _first_present(copy, device, slot)) is not None]
    if not newest:
        return
    part, own = newest[0].part, replace(rule, keys=rule.engine_keys or rule.keys, kept=rule.engine_kept)
    older = [v for v in _versions(copy, device, part) if v != newest[0].version and v in part.releases]
    for parts in (newest, *([_read_part(copy, device, part, version)] for version in older)):
        if (parts[0].part.framework, parts[0].version) not in common and len(parts[0].rows):
            _write_table(own, f"{rule.name}.{engine}@{parts[0].version}", parts, [], copy.version, folder)


@dataclass(frozen=True, eq=False)
class _Found:
    """Converted rows of one part, and what the sidecar says about them."""

    part: Part
    version: str
    member: str
    sha256: str
    device_string: str
    source_rows: int
    rows: pd.DataFrame


def _first_present(copy: Source, device: str, slot: tuple[Part, ...]) -> _Found | None:
    for part in slot:
        versions = _versions(copy, device, part)
        for version in versions:
            found = _read_part(copy, device, part, version)
            if len(found.rows) and (not part.all_groups or _has_all_groups(copy, device, part, found, versions)):
                return found
    return None


def _member(device: str, part: Part, version: str) -> str:
    if part.family not in ALLOWED_FAMILIES:
        raise InputError(f"operator family '{part.family}' may not be imported; allowed: {sorted(ALLOWED_FAMILIES)}")
    return f"{_DATA}/{SYSTEMS[device]}/{part.family}/{part.framework}/{version}/{part.stem}.parquet"


def _versions(copy: Source, device: str, part: Part) -> list[str]:
    """Versions that have the file, newest first, but for those that only add a model to an older one."""
    pattern = re.compile(re.escape(_member(device, part, "*")).replace(r"\*", "([^/]+)"))
    found = [match.group(1) for name in copy.members if (match := pattern.fullmatch(name))]
    found = [version for version in found if version not in ADDITIONS.get((part.framework, part.stem), ())]
    return sorted(found, key=version_key, reverse=True)


def _read_part(copy: Source, device: str, part: Part, version: str) -> _Found:
    member = _member(device, part, version)
    content = copy.read(member)
    try:
        source = pq.read_table(io.BytesIO(content)).to_pandas()
    except (pa.ArrowException, OSError, ValueError) as error:
        raise FileFormatError(f"{member}: truncated or not a parquet file") from error
    missing = [name for name in part.needs if name not in source]
    if missing:
        raise FileFormatError(f"{member}: no column {', '.join(missing)}; this package version is not supported")
    strings = sorted(set(source["device"])) if "device" in source else []
    if len(strings) > 1:
        raise FileFormatError(f"{member}: rows of several devices ({', '.join(strings)})")
    rows = part.convert(source)
    if part.less:
        rows = convert.less_quantisation(rows, [_table(copy, device, part.framework, stem) for stem in part.less])
    digest = hashlib.sha256(content).hexdigest()
    return _Found(part, version, member, digest, "".join(strings), len(source), rows)


def _table(copy: Source, device: str, framework: str, stem: str) -> pd.DataFrame:
    """An engine's newest table of quantisation; without rows where the system has none."""
    part = Part("quantize", framework, stem, ("m", "k", "latency"), lambda rows: rows)
    versions = _versions(copy, device, part)
    return _read_part(copy, device, part, versions[0]).rows if versions else pd.DataFrame()


def _has_all_groups(copy: Source, device: str, part: Part, found: _Found, versions: list[str]) -> bool:
    """Whether no other version measured a GPU count that this one lacks."""
    every: set[int] = set()
    for version in versions:
        every |= set(_read_part(copy, device, part, version).rows["gpus"])
    return every == set(found.rows["gpus"])


# Long by what a sidecar says: a line for each.
def _write_table(
    rule: TableRule, name: str, parts: list[_Found], peers: list[_Found], package_version: str, folder: Path
) -> None:
    columns = [*rule.keys, *rule.sizes]
    merged = pd.concat([found.rows for found in parts if len(found.rows)], ignore_index=True)
    rows = _one_row_per_key(merged, columns)
    checked, substituted = _held_against(rows, [_one_row_per_key(peer.rows, columns) for peer in peers], columns)
    kept = _without_hiccups(checked, columns, list(rule.sizes))
    path = folder / f"{name}.parquet"
    table = _to_arrow(kept, columns)
    apart = {"use_dictionary": columns, "use_byte_stream_split": ["latency_s"]}
    pq.write_table(table, path, compression="zstd", compression_level=19, **apart)
    dropped = [
        f"{sum(f.source_rows for f in parts) - len(merged)} source rows of other dtypes, shapes or settings",
        f"{len(merged) - len(rows)} repeats of a key (median taken; the fastest where kernels differ)",
        f"{len(rows) - len(kept)} rows slower by more than {SLOWER_THAN_LARGER - 1:.0%} than a larger problem",
    ]
    sidecar = {
        "schema_version": SCHEMA_VERSION,
        "table": name,
        "package": f"{PACKAGE} {package_version}",
        "licence": LICENCE,
        "import_date": datetime.date.today().isoformat(),
        "device_string": next((f.device_string for f in parts if f.device_string), ""),
        "sources": [
            {"framework": f.part.framework, "framework_version": f.version, "path": f.member, "sha256": f.sha256}
            for f in parts
        ],
        **({"held_against": [peer.member for peer in peers], "substituted": substituted} if peers else {}),
        "facts": {name: value for f in parts for name, value in f.part.facts.items()},
        "units": {**rule.keys, **rule.sizes, "latency_s": "seconds"},
        "rows": len(kept),
        "kept": list(rule.kept),
        "dropped": dropped,
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
    }
    # A device has many tables, and all their sidecars are read: JSON, which is YAML too, is ten times as quick.
    (folder / f"{name}.yaml").write_text(json.dumps(sidecar, indent=1) + "\n", encoding="utf-8")


def _held_against(
    rows: pd.DataFrame, peers: list[pd.DataFrame], columns: list[str]
) -> tuple[pd.DataFrame, dict[str, str]]:
    """Rows of at most ``SLOWER_THAN_PEERS`` times the fastest peer's of their key, and how many were changed."""
    if not peers:
        return rows, {}
    own = rows.set_index(columns)["latency_s"]
    fastest = pd.concat(peers).groupby(columns)["latency_s"].min().reindex(own.index)
    slow = own > SLOWER_THAN_PEERS * fastest
    kind = columns[0]
    changed = {
        str(
            name
        ): f"{part.sum():,} of {len(part):,} rows, on the median {(own / fastest)[part[part].index].median():.2f} times"
        for name, part in slow.groupby(level=kind)
        if part.any()
    }
    return own.where(~slow, fastest).reset_index(), changed


def _one_row_per_key(rows: pd.DataFrame, columns: list[str]) -> pd.DataFrame:
    """Median of the repeats of one kernel, then the fastest kernel; sorted by key."""
    kernels = ["kernel"] if "kernel" in rows else []
    medians = rows.groupby([*columns, *kernels])[["latency_s"]].median()
    return medians.groupby(columns)[["latency_s"]].min().reset_index()


def _without_hiccups(rows: pd.DataFrame, columns: list[str], sizes: list[str]) -> pd.DataFrame:
    """Drop rows that took much longer than a larger problem of the same key.

    The smaller problem could be padded to the larger one, so its time is bounded by it: such a row is a hiccup of
    that run. The hole is interpolated when the table is loaded.
    """
    keep = pd.Series(True, index=rows.index)
    for size in sizes:
        others = [name for name in columns if name != size]
        order = rows.sort_values([*others, size], ascending=[True] * len(others) + [False])
        groups = order.groupby(others, sort=False)["latency_s"]
        best = groups.cummin().groupby([order[name] for name in others], sort=False).shift(1)
        keep &= ~(order["latency_s"] > SLOWER_THAN_LARGER * best).reindex(rows.index)
    return rows[keep]


def _to_arrow(rows: pd.DataFrame, columns: list[str]) -> pa.Table:
    arrays = []
    for name in columns:
        text = rows[name].dtype.kind not in "iu"
        arrays.append(
            pa.array(rows[name].astype(str)).dictionary_encode() if text else pa.array(rows[name], pa.int32())
        )
    return pa.table([*arrays, pa.array(_rounded(rows["latency_s"]))], names=[*columns, "latency_s"])


def _rounded(seconds: pd.Series[float]) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    """Single precision with 12 of its 23 bits: 0.012 %, far below repeats of a measurement, which halves the files."""
    bits = seconds.to_numpy(np.float32).view(np.uint32)
    return ((bits + (1 << (_DROPPED_BITS - 1))) >> _DROPPED_BITS << _DROPPED_BITS).view(np.float32)


def _move_into_place(aside: Path, out: Path) -> list[Path]:
    written = []
    for made in sorted(aside.glob("*/*")):
        target = out / made.parent.name / made.name
        target.parent.mkdir(exist_ok=True)
        os.replace(made, target)
        written.append(target)
    return written
