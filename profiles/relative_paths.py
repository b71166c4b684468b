"""Paths that a file names: those that are relative stay in the folder of that file."""

from __future__ import annotations

from pathlib import Path

from profiles.errors import InputError


def inside(base: Path, text: str) -> Path:
    """``text`` seen from ``base``, the folder of the file that names it.

    Raises
    ------
    InputError
        A relative path leads out of ``base``, by ``..`` or by a link; or it is a pipe or a device, which may never end.
        A whole path is taken as meant: who reads the file sees where it leads.
    """
    path = base / text
    try:
        never_ends = path.exists() and not path.is_file() and not path.is_dir()
        root, target = base.resolve(), path.resolve()
    except (OSError, RuntimeError, ValueError):  # too long, a link to itself, a null byte: opening it says so
        return path
    if never_ends:
        raise InputError(f"{path}: is neither a file nor a folder")
    if not Path(text).is_absolute() and not target.is_relative_to(root):
        raise InputError(
            f"'{text}' leads out of {root}, the folder of the file that names it, to {target}; write the whole path if "
            "that is meant"
        )
    return path
