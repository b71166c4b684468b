"""Writing one file of an answer, with one clear message where it cannot be written."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from profiles.atomic_write import write_atomically
from profiles.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path

    from profiles.atomic_write import Content


def write_file(path: Path, content: Content, *, replace: bool = True) -> None:
    """Write ``path``, the whole file or none of it; folders are made if need be.

    Raises ``InputError`` if it cannot be written, or is there already and ``replace`` is false.
    """
    if not replace and os.path.exists(path):  # unlike Path.exists, false for names too long
        raise InputError(f"{path}: is there already; give another name or --force")
    if os.path.isdir(path):
        raise InputError(f"{path}: cannot be written, it is a folder")
    try:
        write_atomically(path, content)
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror or error})") from None
