"""A process and all that it started, and the shared memory that they hold.

Found by their parents: Ray overwrites the environment of a rank's process with its title, so no mark survives there.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

SHARED = "/dev/shm/"
Family = dict[int, str]
"""Process ids, and when each was started: a number may be given again."""


def family_of(pid: int) -> Family:
    """A live process and its descendants."""
    parents, starts = {}, {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and (stat := _stat(int(folder.name))) is not None:
            parents[int(folder.name)], starts[int(folder.name)] = int(stat[1]), stat[19]
    members, found = [pid], {}
    while members:
        member = members.pop()
        found[member] = starts[member]
        members += [child for child, parent in parents.items() if parent == member]
    return found


def alive(family: Family) -> list[str]:
    """Command lines of those that still run."""
    return [_text(pid, "cmdline").replace("\0", " ")[:120] for pid, start in family.items() if _runs(pid, start)]


def shared_memory_of(family: Family) -> set[Path]:
    """Files of shared memory that they map or have open, and that have a name: those would outlive them."""
    found = set()
    for pid in family:
        names = [line.split(maxsplit=5)[-1] for line in _text(pid, "maps").splitlines()]
        names += _opened(pid)
        found |= {Path(name) for name in names if name.startswith(SHARED) and not name.endswith("(deleted)")}
    return found


def _opened(pid: int) -> list[str]:
    found = []
    with contextlib.suppress(OSError):
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):  # closed meanwhile
                found.append(str(link.readlink()))
    return found


def _runs(pid: int, start: str) -> bool:
    stat = _stat(pid)
    return stat is not None and stat[0] != "Z" and stat[19] == start


def _stat(pid: int) -> list[str] | None:
    """State, parent and what else the kernel says behind the name; ``None`` for a process that is gone."""
    text = _text(pid, "stat")
    return text.rsplit(")", 1)[1].split() if text else None


def _text(pid: int, name: str) -> str:
    try:
        return Path(f"/proc/{pid}/{name}").read_text()
    except OSError:  # it ended, or is somebody else's
        return ""
