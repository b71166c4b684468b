"""Processes of a run, found by a mark in the environment that they inherit, and the shared memory that they hold."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

SHARED = "/dev/shm/"
MARK = "HYBRIDMAP_TEST"
"""The variable that holds it."""


def _folders(mark: str) -> Iterator[Path]:
    for folder in Path("/proc").iterdir():
        try:
            if not folder.name.isdigit() or mark.encode() not in (folder / "environ").read_bytes():
                continue
            if "Z" not in (folder / "stat").read_text().rsplit(")", 1)[1][:3]:
                yield folder
        except OSError:  # it ended, or is somebody else's
            continue


def marked_processes(mark: str) -> list[str]:
    """Command lines of live processes that inherited ``mark``."""
    found = []
    for folder in _folders(mark):
        try:
            found.append((folder / "cmdline").read_text().replace("\0", " ")[:120])
        except OSError:
            continue
    return found


def marked_shared_memory(mark: str) -> set[Path]:
    """Files of shared memory that those processes map or have open, and that have a name: they outlive a process."""
    found = set()
    for folder in _folders(mark):
        try:
            names = [line.split(maxsplit=5)[-1] for line in (folder / "maps").read_text().splitlines()]
            names += [str(link.readlink()) for link in (folder / "fd").iterdir()]
        except OSError:
            continue
        found |= {Path(name) for name in names if name.startswith(SHARED) and not name.endswith("(deleted)")}
    return found
