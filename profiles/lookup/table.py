"""Reading one shipped table: columns as NumPy arrays, checked against its sidecar."""

from __future__ import annotations

import hashlib
import io
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from profiles.errors import FileFormatError
from profiles.lookup.grid import Key, split_by_key
from profiles.lookup.table_check import ERROR, check_table, numbers_of
from profiles.yaml_text import MAX_BYTES, read_yaml_file

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from profiles.records import Floats


SCHEMA_VERSION = 1
"""Of sidecars."""


@dataclass(frozen=True, eq=False)
class Table:
    """Columns of one table.

    Parameters
    ----------
    path
        Where it was read from, for messages.
    data
        Column name to array of shape ``[rows]``; text columns hold codes into ``names``.
    names
        Text column name to its values.
    """

    path: Path
    data: Mapping[str, NDArray[Any]]
    names: Mapping[str, tuple[str, ...]]

    def split(self, *keys: str) -> dict[Key, slice]:
        """Row range of every key; text columns appear as text.

        Parameters
        ----------
        *keys
            Names of key columns.

        Returns
        -------
        dict[Key, slice]
            Rows of each key.

        Raises
        ------
        FileFormatError
            There is no such column, or the table is not sorted by them.
        """
        for key in keys:
            if key not in self.data:
                raise FileFormatError(f"{self.path}: no column '{key}'")
        found = split_by_key([self.data[key] for key in keys], str(self.path))
        texts = [self.names.get(key) for key in keys]
        return {
            tuple(part if text is None else text[int(str(part))] for part, text in zip(key, texts, strict=True)): rows
            for key, rows in found.items()
        }

    def part(self, rows: slice) -> Table:
        """Only these rows.

        Parameters
        ----------
        rows
            Range to keep.

        Returns
        -------
        Table
            A table of them.
        """
        return Table(self.path, {name: column[rows] for name, column in self.data.items()}, self.names)

    def columns(self, rows: slice, *names: str) -> tuple[Floats, ...]:
        """Return number columns as floats.

        Parameters
        ----------
        rows
            Range to read.
        *names
            Of number columns.

        Returns
        -------
        tuple[Floats, ...]
            The columns, ``[rows]`` each.

        Raises
        ------
        FileFormatError
            There is no such column, or it holds names.
        """
        for name in names:
            if name not in self.data:
                raise FileFormatError(f"{self.path}: no column '{name}'")
            if name in self.names or not np.issubdtype(self.data[name].dtype, np.number):
                raise FileFormatError(f"{self.path}: column '{name}' holds names, numbers are expected")
        return tuple(self.data[name][rows].astype(np.float64) for name in names)


@dataclass(frozen=True)
class TableCard:
    """What the sidecar of a table says that lookups need."""

    sha256: str
    facts: Mapping[str, object]
    device_string: str
    units: Mapping[str, str] = field(default_factory=dict)
    rows: int | None = None
    sources: tuple[tuple[str, str], ...] = ()
    """Engine (or framework) and release that each part of the table was measured on."""


def read_card(path: Path) -> TableCard:
    """Read ``<table>.yaml``.

    Parameters
    ----------
    path
        Of the sidecar.

    Returns
    -------
    TableCard
        What it says.

    Raises
    ------
    FileFormatError
        The file is no sidecar; it names the file.
    """
    try:
        content = sidecar_content(path)
        version = content.get("schema_version", SCHEMA_VERSION)
        card = TableCard(
            str(content["sha256"]),
            dict(content.get("facts") or {}),
            str(content.get("device_string", "")),
            dict(content.get("units") or {}),
            int(content["rows"]) if "rows" in content else None,
            tuple((str(s["framework"]), str(s["framework_version"])) for s in content.get("sources") or ()),
        )
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise FileFormatError(f"{path}: cannot be read as the sidecar of a table") from error
    if version != SCHEMA_VERSION:
        raise FileFormatError(f"{path}: schema_version {version}, this version reads {SCHEMA_VERSION}")
    return card


def sidecar_content(path: Path) -> Any:
    """What a sidecar holds.

    Parameters
    ----------
    path
        Of the sidecar.

    Returns
    -------
    Any
        Its document. Those of imported tables are JSON, which is YAML too and read in a tenth of the time.

    Raises
    ------
    FileFormatError
        It is no YAML; the message names the file.
    """
    try:
        with open(path, "rb") as file:
            raw = file.read(MAX_BYTES)
        if raw.startswith(b"{"):
            return json.loads(raw)
    except (OSError, ValueError, RecursionError):
        pass  # what is wrong with it the YAML reader says
    return read_yaml_file(path)


# Long by what may be wrong with a file, each with its error.
def read_table(path: Path, card: TableCard) -> Table:
    """Read ``<table>.parquet`` without the rows whose measurement failed.

    Parameters
    ----------
    path
        Of the table.
    card
        What its sidecar says.

    Returns
    -------
    Table
        Its columns.

    Raises
    ------
    FileFormatError
        It is not the file that the sidecar describes: by row and column where one can be named.
    """
    # pyarrow takes a tenth of a second to import: only who reads a table pays it.
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        content = path.read_bytes()
    except OSError as error:
        raise FileFormatError(f"{path}: cannot be read ({error.strerror})") from error
    try:
        source = pq.ParquetFile(io.BytesIO(content)).read()  # read_table loads pandas first, a third of a second
        source.validate(full=True)  # lengths, offsets, text that is UTF-8
        source.column_names  # noqa: B018  # names that are not raise here
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        place = f"; {path.stem}.yaml describes {card.rows:,} rows" if card.rows is not None else ""
        raise FileFormatError(
            f"{path}: truncated or changed, not a parquet file any more ({len(content):,} bytes; from row 1, column "
            f"'{next(iter(card.units), '?')}' on nothing can be read{place})"
        ) from error
    check_table(path, source, card.units, card.rows)
    if hashlib.sha256(content).hexdigest() != card.sha256:
        raise FileFormatError(f"{path}: truncated or changed (its sha256 is not the one in {path.stem}.yaml)")
    if ERROR in source.column_names:
        import pyarrow.compute as pc

        source = source.filter(pc.equal(source.column(ERROR).cast(pa.string()), ""))
    data: dict[str, NDArray[Any]] = {}
    names: dict[str, tuple[str, ...]] = {}
    for name in source.column_names:
        column = source.column(name).combine_chunks()
        if pa.types.is_dictionary(column.type):
            names[name] = tuple(column.dictionary.to_pylist())
            column = column.indices
        data[name] = numbers_of(column)
    return Table(path, data, names)
