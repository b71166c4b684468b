"""Files that are whole or not there: written beside their place, then renamed.

A reader at any moment, and whoever comes after a crash or Ctrl-C, finds the old file or the new one. With ``durable``
the new one is on disk when the call returns; that costs a wait, so it is for what cannot be made again.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

Content = str | bytes | Callable[[Path], object]
"""Text (written as UTF-8), bytes, or a function that writes the file at the path that it is given."""

MODE = 0o644
"""Of what is written; temporary files are private."""


def write_atomically(path: Path, content: Content, *, durable: bool = False) -> None:
    """Write one file, whose folder is made if need be. Raises ``OSError``; then what was there is still there."""
    write_all_or_none({path: content}, durable=durable)


def write_all_or_none(files: Mapping[Path, Content], *, durable: bool = False) -> None:
    """Write several files; none takes its place before all are written.

    Raises ``OSError``; unless a rename itself fails, nothing was changed then but for folders that were made.
    """
    aside: dict[Path, Path] = {}
    try:
        for path, content in files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".tmp")
            os.close(handle)
            aside[path] = Path(name)
            _write(aside[path], content, durable)
        for path, temporary in aside.items():
            os.replace(temporary, path)
    except BaseException:  # Ctrl-C too
        for temporary in aside.values():
            temporary.unlink(missing_ok=True)
        raise
    if durable:
        for folder in {path.parent for path in files}:
            sync(folder)


def _write(path: Path, content: Content, durable: bool) -> None:
    if callable(content):
        content(path)
    else:
        path.write_bytes(content.encode("utf-8") if isinstance(content, str) else content)
    os.chmod(path, MODE)
    if durable:
        sync(path)


def sync(path: Path) -> None:
    """Wait until a file's content, or a folder's names, are on disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
