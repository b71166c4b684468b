"""A profile folder from a journal: tables with sidecars, device card, engine files. Can be made again at any time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hybridmap.profiling.device_file import write_device_file
from hybridmap.profiling.engine_files import EngineFits, write_engine_files
from hybridmap.profiling.messages import HOW, never_falling
from hybridmap.profiling.quality import Wanted, doubts
from profiles.store import load_device
from profiles.tables.cross_validation import LeftOut, table_errors
from profiles.tables.write import KEYS, write_table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    Row = Mapping[str, Any]


COLLECTIVE = "collective"
UNFINISHED = ("incomplete: the folder was not written to its end",)


@dataclass(frozen=True)
class ProfileSummary:
    """What a profile holds: rows and failures by table, errors of points left out, the engine's fits, and doubts."""

    device: str
    rows: dict[str, int]
    failed: dict[str, int]
    errors: dict[str, LeftOut]
    fits: EngineFits | None
    doubts: tuple[str, ...]


def write_profile(
    folder: Path, rows: Mapping[str, Sequence[Row]], about: Mapping[str, Any], kind: str, wanted: Wanted | None = None
) -> ProfileSummary:
    """Write everything that a job needs to be priced on this machine.

    Parameters
    ----------
    folder
        Where; files of an earlier profile are replaced.
    rows
        Journal rows by table, failed ones among them.
    about
        Device, driver, clocks, library versions, command and date: goes into every sidecar.
    kind
        ``gpu`` or ``cpu``.
    wanted
        What a whole profile of the machine has; what is missing of it marks the device card.
    """
    measured, rows = rows, {**rows, COLLECTIVE: never_falling(rows.get(COLLECTIVE, ()))}
    good = {table: [row for row in found if not row["error"]] for table, found in rows.items()}
    name = write_device_file(folder, about, good, kind, UNFINISHED)
    written = {table: found for table, found in rows.items() if found and table in KEYS}
    for table, found in written.items():
        write_table(folder, table, found, {**about, "smoothed": HOW} if table == COLLECTIVE else about)
    device = load_device(folder)
    fits = write_engine_files(folder, device, good) if good.get("engine_step") else None
    found_doubts = doubts(measured, fits, wanted or Wanted())
    write_device_file(folder, about, good, kind, found_doubts)
    return ProfileSummary(
        name,
        {table: len(found) for table, found in written.items()},
        {table: sum(bool(row["error"]) for row in found) for table, found in written.items()},
        table_errors(device),
        fits,
        found_doubts,
    )
