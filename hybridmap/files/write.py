"""Writing one file of an answer: whole or not at all."""

from __future__ import annotations

import os
import tempfile
from typing import TYPE_CHECKING

from profiles.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path


def write_text(path: Path, text: str, *, replace: bool = True) -> None:
    """Write UTF-8 text beside ``path`` and rename it; folders are made if need be.

    Raises ``InputError`` if it cannot be written, or is there already and ``replace`` is false.
    """
    if not replace and os.path.exists(path):  # unlike Path.exists, false for names too long
        raise InputError(f"{path}: is there already; give another name or --force")
    if os.path.isdir(path):
        raise InputError(f"{path}: cannot be written, it is a folder")
    temporary = ""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".tmp")
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(temporary, 0o644)  # mkstemp makes it private
        os.replace(temporary, path)
    except BaseException as error:  # Ctrl-C too
        if temporary and os.path.exists(temporary):
            os.unlink(temporary)
        if not isinstance(error, OSError):
            raise
        raise InputError(f"{path}: cannot be written ({error.strerror or error})") from None
