"""Which tables of a device price which operator, for each profiled engine: own ones, borrowed ones, replaced rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from profiles.device_file import load_collectives_of
from profiles.engine_facts import engine_names, load_generation_engine
from profiles.lookup import releases
from profiles.lookup.device_tables import MODULES

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from profiles.lookup.device_tables import DeviceTables

TRAINER = "trainer"
"""The column of what prices trainers, and engines without tables of their own."""


@dataclass(frozen=True)
class Origin:
    """What prices one operator of one engine.

    Parameters
    ----------
    operator, engine
        Name of the common table; ``engine@version`` of a profile, or ``TRAINER``.
    measured_with
        Framework and release of the table that is asked first; empty where there is none.
    tables
        Every table that may answer, in the order in which they are asked.
    """

    operator: str
    engine: str
    measured_with: str
    tables: tuple[str, ...]


def origins_of(tables: DeviceTables) -> list[Origin]:
    """The tables that are asked, by operator and engine.

    Parameters
    ----------
    tables
        Of a device.

    Returns
    -------
    list[Origin]
        By operator, the trainer's first; engines without a table of their own are left out.
    """
    families = {releases.engine_of(name, card)[0] for name, card in tables.cards.items() if "@" in name}
    engines = [load_generation_engine(name) for name in engine_names("generation")]
    own = {e.name: tables.of_engine(e.family, e.release) for e in engines if e.family in families}
    found = []
    for operator in sorted({releases.operator_of(name) for name in tables.cards}):
        for engine, asked in {TRAINER: tables, **own}.items():
            names = tuple(asked.names(operator))
            with_ = " ".join(releases.engine_of(names[0], tables.cards[names[0]])) if names else ""
            found.append(Origin(operator, engine, with_.strip(), names))
    return found


def by_table(prices: Iterable[Mapping[str, Any]]) -> dict[tuple[str, str], list[str]]:
    """Engines by operator and by what it was measured with, from records of ``Origin``."""
    asked: dict[tuple[str, str], list[str]] = {}
    for entry in prices:
        asked.setdefault((entry["operator"], entry["measured_with"]), []).append(entry["engine"])
    return asked


def borrowed_kernels(tables: DeviceTables) -> list[str]:
    """Releases that run another engine's kernels on a device, one sentence each, with where they choose them."""
    part = tables.reference.device_string
    return [
        f"{b.engine} from {b.first}{f' until {b.before}' if b.before else ''}: {b.operator} in {b.dtype} by "
        f"{b.owner}'s tables ({b.source})"
        for b in releases.BORROWED
        if b.runs(b.operator, b.engine, b.first, b.dtype, part)
    ]


def borrowed_collectives(folder: Path) -> list[str]:
    """Whose collectives stand for those of a device's own tables, in a sentence with the reason."""
    other, because = load_collectives_of(folder)
    return [f"collectives by {other}'s tables ({because})"] if other else []


def without_a_graph(tables: DeviceTables, origins: Iterable[Origin]) -> list[str]:
    """Modules of an engine that hold a host's time, so that another engine's stand in, one sentence each.

    Parameters
    ----------
    tables
        Of a device.
    origins
        ``origins_of`` them.

    Returns
    -------
    list[str]
        Sentences with the least time of both tables.
    """
    found = {}
    for one in origins:
        own = next((n for n in one.tables if "@" in n and _family(n, tables) == one.engine.split("@")[0]), None)
        first = one.tables[0] if one.tables else None
        if one.operator in MODULES and own and first and first != own:
            least_us = [1e6 * float(tables.lookup(name).least_s) for name in (own, first)]
            found[own] = (
                f"{own}: no entry below {least_us[0]:.0f} us, {first} has {least_us[1]:.0f}: timed without a graph, "
                "the other stands in"
            )
    return list(found.values())


def _family(table: str, tables: DeviceTables) -> str:
    return releases.engine_of(table, tables.cards[table])[0]


def replaced_rows(substituted: Mapping[str, Mapping[str, str]]) -> list[str]:
    """Rows of a table that another engine's took the place of, one sentence a table and format.

    Parameters
    ----------
    substituted
        By table, what its sidecar says by number format.

    Returns
    -------
    list[str]
        Sentences.
    """
    return [
        f"{table}, {dtype}: {words} the fastest engine's, which stands in their place"
        for table, formats in substituted.items()
        for dtype, words in formats.items()
    ]
