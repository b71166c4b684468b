"""Counts what a program holds with all of its children: by a cgroup where we may, else by looking."""

from __future__ import annotations

import contextlib
import math
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

PAGE_BYTES = os.sysconf("SC_PAGESIZE")
BLOCK_BYTES = 512
OURS = 3
"""Processes of bubblewrap and of ours around a program."""


class Cgroup:
    """A cgroup v2 of the program's own. ``OSError`` where we may not make one that counts memory and processes."""

    def __init__(self, limits: dict[str, Any]) -> None:
        self.folder = _beside_own_cgroup() / f"hybridmap-program-{os.getpid()}"
        self.folder.mkdir()
        try:
            (self.folder / "memory.max").write_text(str(limits["memory_bytes"]))
            (self.folder / "memory.oom.group").write_text("1")
            (self.folder / "pids.max").write_text(str(limits["processes"] + OURS))
            if (swap := self.folder / "memory.swap.max").exists():
                swap.write_text("0")
        except OSError:
            self.close()
            raise

    def enter(self) -> None:
        """Put the calling process into it, and its children to come."""
        (self.folder / "cgroup.procs").write_text("0")

    def is_full(self) -> bool:
        """Whether the kernel has ended the program for its memory."""
        killed = dict(line.split() for line in (self.folder / "memory.events").read_text().splitlines())
        return int(killed["oom_kill"]) > 0

    def close(self) -> None:
        """Remove it, once all in it have ended."""
        with contextlib.suppress(OSError):
            self.folder.rmdir()


def _beside_own_cgroup() -> Path:
    """The cgroup around ours: one that has processes of its own, as ours has, may have no children that count."""
    path = next((line[3:] for line in Path("/proc/self/cgroup").read_text().splitlines() if line[:3] == "0::"), None)
    mounts = [line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    roots = [words[4] for words in mounts if words[words.index("-") + 1] == "cgroup2"]
    if path is None or not roots:
        raise OSError("no cgroup v2 is mounted")
    own = Path(roots[0], path.lstrip("/"))
    return own if path == "/" else own.parent


class Watch:
    """Looks at every process of the program, as often as it is asked. ``OSError`` without Linux's /proc."""

    def __init__(self, limits: dict[str, Any], folder: str | None) -> None:
        """``folder``: the program's, if its size has no limit of its own."""
        os.stat(f"/proc/self/task/{os.getpid()}/children")
        self.memory_bytes = limits["memory_bytes"] - limits["file_bytes"]
        self.file_bytes, self.processes, self.folder = limits["file_bytes"], limits["processes"], folder

    def excess(self) -> str | None:
        """What the program has too much of, if anything: ``memory``, ``processes`` or ``files``."""
        tasks = descendants()
        if sum(tasks.values()) > self.processes + OURS:
            return "processes"
        nameless = _nameless_bytes(tasks)
        # What is mapped is more than what is held, and is known in an instant.
        if all(nameless + sum(map(bytes_of, tasks)) > self.memory_bytes for bytes_of in (_mapped_bytes, _held_bytes)):
            return "memory"
        if self.folder is not None and _folder_bytes(self.folder) > self.file_bytes:
            return "files"
        return None


def descendants() -> dict[int, int]:
    """Number of threads by process, of all children of this process and theirs. Orphans come to a subreaper."""
    found: dict[int, int] = {}
    ahead = [os.getpid()]
    while ahead:
        process = ahead.pop()
        with contextlib.suppress(OSError):
            threads = os.listdir(f"/proc/{process}/task")
            found[process] = len(threads)
            for thread in threads:
                with open(f"/proc/{process}/task/{thread}/children") as file:
                    ahead += [int(word) for word in file.read().split() if int(word) not in found]
    found.pop(os.getpid(), None)
    return found


def _mapped_bytes(process: int) -> int:
    try:
        with open(f"/proc/{process}/statm") as file:
            return int(file.read().split()[0]) * PAGE_BYTES
    except (OSError, IndexError):  # it has just ended
        return 0


def _held_bytes(process: int) -> int:
    """Its share of the pages that it has with others, and what of it was swapped out."""
    try:
        with open(f"/proc/{process}/smaps_rollup") as file:
            lines = [line.split() for line in file if line.startswith(("Pss:", "SwapPss:"))]
        return sum(int(words[1]) for words in lines) * 1024
    except PermissionError:  # it has made itself unreadable: all that it can be
        return _mapped_bytes(process)
    except OSError:
        return 0


def _nameless_bytes(processes: Iterable[int]) -> int:
    """Bytes of files that are open and have no name (any more), such as those in memory."""
    sizes: dict[tuple[int, int], int] = {}
    for process in processes:
        with contextlib.suppress(OSError):
            for name in os.listdir(f"/proc/{process}/fd"):
                found = os.stat(f"/proc/{process}/fd/{name}")
                if stat.S_ISREG(found.st_mode) and found.st_nlink == 0:
                    sizes[found.st_dev, found.st_ino] = found.st_blocks * BLOCK_BYTES
    return sum(sizes.values())


def _folder_bytes(folder: str) -> float:
    size = 0.0
    try:
        entries = list(os.scandir(folder))
    except FileNotFoundError:  # deleted while we look, here and below
        return 0.0
    except PermissionError:  # nobody hides little
        return math.inf
    for entry in entries:
        with contextlib.suppress(FileNotFoundError):
            size += entry.stat(follow_symlinks=False).st_blocks * BLOCK_BYTES
            size += _folder_bytes(entry.path) if entry.is_dir(follow_symlinks=False) else 0
    return size
