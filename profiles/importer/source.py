"""Where tables are read from: an installed ``aiconfigurator-core``, or its wheel, without running its code."""

from __future__ import annotations

import importlib.metadata
import os
import re
import zipfile
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from profiles.errors import FileFormatError, InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PACKAGE = "aiconfigurator-core"
_RANKS = {"dev": -4, "a": -3, "b": -2, "rc": -1, "": 0, "post": 1}


@dataclass(frozen=True)
class Source:
    """A copy of the package: its version, the names of its members and a way to read one."""

    version: str
    members: tuple[str, ...]
    read: Callable[[str], bytes]


def version_key(version: str) -> tuple[tuple[int, ...], int, int]:
    """Sort key of a version: release numbers, then dev < a < b < rc < final < post, then that one's number.

    ``0.5.14`` comes after ``0.5.9``, which a sort by text gets wrong.
    """
    match = re.fullmatch(r"v?(\d+(?:\.\d+)*)(?:[.-]?(dev|a|b|rc|post)(\d*))?(?:\+.*)?", version)
    if match is None:
        return ((-1,), 0, 0)
    release, kind, number = match.groups()
    return tuple(int(part) for part in release.split(".")), _RANKS[kind or ""], int(number or 0)


@contextmanager
def open_source(source: Path | None) -> Iterator[Source]:
    """Open a wheel file, or the installed copy for None; errors as in ``importer.import_tables``."""
    if source is None:
        yield _installed()
        return
    try:
        wheel = zipfile.ZipFile(source)
    except OSError as error:
        raise InputError(
            f"{source}: cannot be opened ({error.strerror or error}); give a wheel of {PACKAGE}"
        ) from error
    except zipfile.BadZipFile as error:
        raise FileFormatError(f"{source}: not a wheel (not a zip archive, or truncated)") from error
    with wheel:
        yield _from_wheel(wheel, source)


def _from_wheel(wheel: zipfile.ZipFile, source: Path) -> Source:
    names = tuple(wheel.namelist())
    metadata = [name for name in names if re.fullmatch(r"[^/]+\.dist-info/METADATA", name)]
    if len(metadata) != 1:
        raise FileFormatError(f"{source}: not a wheel (no .dist-info/METADATA)")
    fields = dict(re.findall(r"(?m)^(Name|Version): *(\S+)", wheel.read(metadata[0]).decode("utf-8", "replace")))
    if fields.get("Name", "").replace("_", "-").lower() != PACKAGE:
        raise InputError(f"{source}: a wheel of '{fields.get('Name')}', not of {PACKAGE}")

    def read(name: str) -> bytes:
        try:
            return wheel.read(name)
        except (zipfile.BadZipFile, EOFError) as error:
            raise FileFormatError(f"{source}: member {name} is damaged ({error})") from error

    return Source(fields.get("Version", "unknown"), names, read)


def _installed() -> Source:
    try:
        found = importlib.metadata.distribution(PACKAGE)
    except importlib.metadata.PackageNotFoundError as error:
        raise InputError(f"{PACKAGE} is not installed; install it, or give the path of its wheel") from error
    files = {str(path).replace(os.sep, "/"): path for path in found.files or ()}

    def read(name: str) -> bytes:
        try:
            return Path(str(files[name].locate())).read_bytes()
        except OSError as error:
            raise FileFormatError(f"installed {PACKAGE}: {name} cannot be read ({error.strerror})") from error

    return Source(found.version, tuple(files), read)
