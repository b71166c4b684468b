"""Where device profiles lie: the catalogue, and folders of a user's own.

A device is a folder with ``device.yaml`` and, for each table, ``<table>.parquet`` beside ``<table>.yaml``. The
catalogue ships such folders below ``profiles/data``; a user's own folder works the same way. A table that a
folder lacks is no error until a price needs it.
"""

from __future__ import annotations

import hashlib
import os
import re
from functools import cache
from pathlib import Path

from profiles.calibration import CALIBRATION_FILE
from profiles.device import DeviceProfile
from profiles.device_file import DEVICE_FILE, load_collectives_of, load_derived, load_spec, load_tables_of
from profiles.errors import FileFormatError, UnknownNameError
from profiles.lookup.device_tables import DeviceTables
from profiles.lookup.table import read_card

DATA = Path(__file__).parent / "data"
NO_TABLES = (DEVICE_FILE, CALIBRATION_FILE)


def device_names() -> tuple[str, ...]:
    """Names of the catalogue, sorted."""
    return tuple(sorted(path.parent.name for path in DATA.glob(f"*/{DEVICE_FILE}")))


def device_called(text: str, hint: str = "") -> str:
    """The catalogue's name of a device that people call so: ``H100``, ``NVIDIA H100 80GB HBM3``, ``a100-80g``.

    ``UnknownNameError`` with ``hint`` where that is none of them, or several.
    """
    if text in device_names():
        return text
    words = [word.replace("80g", "80gb").replace("gbb", "gb") for word in re.findall(r"[a-z0-9]+", text.lower())]
    said = {word for word in words if not re.fullmatch(r"nvidia|sxm\d?|hbm\w*|tensor|core|gpu|geforce", word)}
    found = [name for name in device_names() if said and said <= set(name.split("-"))]
    if len(found) != 1:
        raise UnknownNameError("device", text, device_names(), hint)
    return found[0]


def load_device(name: str | os.PathLike[str]) -> DeviceProfile:
    """Load the profile of a catalogue device, or of a device folder given by its path.

    Raises
    ------
    UnknownNameError
        Neither a catalogue name nor a folder.
    FileFormatError
        A file of the folder cannot be read as what it should be.
    """
    text = os.fspath(name)
    if text in device_names():
        return _of_folder(DATA / text, 0)
    if Path(text).is_dir():
        folder = Path(text).resolve()
        return _of_folder(folder, max((path.stat().st_mtime_ns for path in folder.glob("*.yaml")), default=0))
    raise UnknownNameError("device", text, device_names(), "(or give the path of a device folder)")


def _of_folder(folder: Path, changed_ns: int) -> DeviceProfile:
    other = _tables_of(folder, changed_ns)
    if other is None:
        return _load(folder, changed_ns)
    if other not in device_names() or _tables_of(DATA / other, 0) is not None:
        raise FileFormatError(f"{folder / DEVICE_FILE}: tables_of: {other!r} is no device with tables")
    return _derived(folder, changed_ns, load_device(other))


@cache
def _tables_of(folder: Path, changed_ns: int) -> str | None:
    return load_tables_of(folder)


@cache
def _derived(folder: Path, changed_ns: int, base: DeviceProfile) -> DeviceProfile:
    return base.with_spec(load_derived(folder, base.spec))


@cache
def _load(folder: Path, changed_ns: int) -> DeviceProfile:
    """``changed_ns`` tells a folder that was measured again from what was read before."""
    spec = load_spec(folder)
    present = set(os.listdir(folder))
    sidecars = sorted(name for name in present if name.endswith(".yaml") and name not in NO_TABLES)
    cards = {name.removesuffix(".yaml"): read_card(folder / name) for name in sidecars}
    digest = hashlib.sha256((folder / DEVICE_FILE).read_bytes())
    for name, card in cards.items():
        if f"{name}.parquet" not in present:
            raise FileFormatError(f"{folder / name}.parquet: missing, though {name}.yaml describes it")
        digest.update(f"{name}:{card.sha256}".encode())
    found = DeviceProfile(spec, DeviceTables(folder, spec, cards), digest.hexdigest())
    other, _ = load_collectives_of(folder)
    if not other:
        return found
    if other == spec.name or other not in device_names():
        raise FileFormatError(f"{folder / DEVICE_FILE}: collectives_of: {other!r} is no other device of the catalogue")
    return found.with_links_of(load_device(other))
