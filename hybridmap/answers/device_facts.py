"""What is known of a device: its card, the origin of its tables, and which table is asked first by whom."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hybridmap.answers.table_origins import (
    borrowed_collectives,
    borrowed_kernels,
    origins_of,
    replaced_rows,
    without_a_graph,
)
from profiles.device_file import UNITS, load_doubts, load_tables_of, unit_of
from profiles.lookup.table import read_card, sidecar_content
from profiles.store import DATA, device_names, load_device

if TYPE_CHECKING:
    from profiles.hardware import DeviceSpec


def card_of(name: str) -> dict[str, Any]:
    """Numbers of a device with basis and source, and where its tables come from; no table is read.

    Parameters
    ----------
    name
        Of the catalogue, or the path of a device folder.

    Returns
    -------
    dict[str, Any]
        As in ``devices show --json``.
    """
    profile = load_device(name)
    spec = profile.spec
    values: dict[str, Any] = {}
    for key in UNITS:  # some facts are one number, some are one per dtype
        value = getattr(spec, key)
        values |= (
            {f"{key}.{part}": each for part, each in value.items()} if isinstance(value, Mapping) else {key: value}
        )
    values |= {key: getattr(spec.kernels, key.partition(".")[2]) for key in spec.sources if key.startswith("kernels.")}
    folder, tables = _folders(name)
    return {
        "name": spec.name,
        "device_string": spec.device_string,
        "facts_hash": profile.facts_hash,
        "spec": {key: _fact(spec, key, value) for key, value in values.items()},
        "doubts": list(load_doubts(folder)),
        "tables": [_table(tables / f"{table}.yaml") for table in sorted(profile.tables.cards)],
    }


def facts_of(name: str) -> dict[str, Any]:
    """``card_of`` with which table prices what, for which some tables are read.

    Parameters
    ----------
    name
        Of the catalogue, or the path of a device folder.

    Returns
    -------
    dict[str, Any]
        As in ``devices show --json``.
    """
    card, tables = card_of(name), load_device(name).tables
    origins = origins_of(tables)
    return card | {
        "prices": [asdict(origin) for origin in origins],
        "borrowed": [
            *borrowed_kernels(tables),
            *borrowed_collectives(_folders(name)[1]),
            *without_a_graph(tables, origins),
        ],
        "replaced": replaced_rows({entry["table"]: entry["substituted"] for entry in card["tables"]}),
    }


def _folders(name: str) -> tuple[Path, Path]:
    """The device's folder, and that of its tables, which may be another's."""
    folder = DATA / name if name in device_names() else Path(name)
    other = load_tables_of(folder)
    return folder, DATA / other if other else folder


def _fact(spec: DeviceSpec, key: str, value: Any) -> dict[str, Any]:
    source = spec.sources.get(key, "")
    return {"value": value, "unit": unit_of(key), "basis": spec.basis(key).name.lower(), "source": source}


def _table(sidecar: Path) -> dict[str, Any]:
    """What the sidecar of a table says of its origin."""
    content = sidecar_content(sidecar)
    found = content.get("sources")
    sources = [s for s in found if isinstance(s, Mapping)] if isinstance(found, list) else []
    return {
        "table": sidecar.stem,
        "rows": read_card(sidecar).rows or 0,
        "package": str(content.get("package", "")),
        "substituted": content.get("substituted") or {},
        "licence": str(content.get("licence", "")),
        "import_date": str(content.get("import_date", "")),
        "measured_with": sorted(
            {f"{s.get('framework', '')} {s.get('framework_version', '')}".strip() for s in sources}
        ),
    }
