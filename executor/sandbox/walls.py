"""What stands between a program and the machine: four ways, each called in the process that becomes the program.

bubblewrap: the tool of that name makes a root that holds Python and the system's libraries alone, and namespaces.
namespaces: the same by our own calls. landlock: the machine's root, of which the program may open no more than that.
limits: none, where the kernel offers nothing.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import struct
import sys
from typing import Any

MOUNT_NAMESPACE, USER_NAMESPACE = 0x00020000, 0x10000000
OTHER_NAMESPACES = MOUNT_NAMESPACE | 0x02000000 | 0x04000000 | 0x08000000 | 0x20000000 | 0x40000000
"""Flags of unshare(2): mounts, and cgroup, host name, IPC, processes, network."""

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_CAPBSET_DROP, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 1, 4, 24, 36, 38
LAST_CAPABILITY, SIGKILL = 63, 9
MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_BIND, MS_REC, MS_PRIVATE, MNT_DETACH = 2, 4, 8, 4096, 16384, 1 << 18, 2
SYS_MOUNT_SETATTR, AT_FDCWD, AT_RECURSIVE, READ_ONLY = 442, -100, 0x8000, 0x1
DEVICES = ("/dev/null", "/dev/random", "/dev/urandom")
EMPTY = ("/home", "/proc", "/root", "/run", "/tmp", "/var/tmp")

STRANGERS, NOBODY = 2_000_000_000, 65534
"""Numbers of users that no system gives away: one for each program where root runs it."""

SYS_LANDLOCK = (444, 445, 446)
LANDLOCK_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}
"""How many rights on files a version of Landlock knows."""
RUN_FILE, WRITE_FILE, READ_FILE, READ_FOLDER = 1, 2, 4, 8
SIGNALS_SCOPED = 6
"""The version since which nothing outside may be sent signals, and sockets without a path cannot be reached."""


class Kernel:
    """Calls of Linux that Python does not have, which raise ``OSError`` with the call's name."""

    def __init__(self) -> None:
        self.libc = ctypes.CDLL(None, use_errno=True)

    def prctl(self, option: int, value: int) -> bool:
        return hasattr(self.libc, "prctl") and self.libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) == 0

    def mount(self, source: str | None, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
        given = [text and text.encode() for text in (source, target, kind, data)]
        self("mount", *given[:3], flags, given[3])

    def __call__(self, name: str, *arguments: Any) -> int:
        ctypes.set_errno(0)
        done: int = getattr(self.libc, name)(*arguments)
        if done < 0:
            raise OSError(ctypes.get_errno(), f"{name}: {os.strerror(ctypes.get_errno())}")
        return done


def landlock_version(kernel: Kernel) -> int:
    """0 where there is none."""
    try:
        return kernel("syscall", SYS_LANDLOCK[0], None, ctypes.c_size_t(0), 1)
    except (OSError, AttributeError):
        return 0


def become_stranger(kernel: Kernel, user: int) -> None:
    """A user of this program's own, if this is root: limits on processes do not hold for root, and root owns much."""
    if os.getuid() != 0:
        return
    for number in (user, NOBODY):
        with contextlib.suppress(OSError):  # in some containers there are few users
            os.chown(".", number, number)
            os.setgroups([])
            os.setresgid(number, number, number)
            os.setresuid(number, number, number)
            kernel.prctl(PR_SET_DUMPABLE, 1)  # else its own /proc is root's
            kernel.prctl(PR_SET_PDEATHSIG, SIGKILL)
            return


def all_may_run_python() -> bool:
    """Whether a stranger on this machine may run this Python, and enter the program's folder."""
    return all(_all_may_enter(path) for path in (os.__file__, sys.executable, os.path.join(os.getcwd(), "x")))


def _all_may_enter(path: str) -> bool:
    path = os.path.realpath(path)
    if os.path.exists(path) and not os.stat(path).st_mode & 0o004:
        return False
    while (path := os.path.dirname(path)) != "/":
        if not os.stat(path).st_mode & 0o001 and path != os.getcwd():
            return False
    return True


def namespaces(kernel: Kernel, given: dict[str, Any]) -> None:
    """Return in a new process, first of its namespaces and in a root of its own. The one that called waits for it."""
    privileged = os.getuid() == 0 and kernel.libc.unshare(OTHER_NAMESPACES) == 0
    if not privileged:
        if all_may_run_python():
            become_stranger(kernel, given["user"])
        _own_users(kernel)
        kernel("unshare", OTHER_NAMESPACES)
    child = os.fork()
    if child:
        ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        os._exit(ended if ended >= 0 else 128 - ended)
    kernel.prctl(PR_SET_PDEATHSIG, SIGKILL)
    _own_root(kernel, given["readable"], given["file_bytes"])
    if privileged:
        become_stranger(kernel, given["user"])
        _own_users(kernel)


def _own_users(kernel: Kernel) -> None:
    """A user namespace with this user alone, in which no other can be made."""
    user, group = os.getuid(), os.getgid()
    kernel("unshare", USER_NAMESPACE)
    for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)
    with contextlib.suppress(OSError), open("/proc/sys/user/max_user_namespaces", "w") as file:
        file.write("0")  # where /proc is read-only, as in some containers, the filter alone refuses it


def _own_root(kernel: Kernel, readable: list[str], file_bytes: int) -> None:
    """Only what may be read, read-only; some devices; the program's folder, in memory of a limited size, as /tmp."""
    here = os.getcwd()
    kernel.mount(None, "/", None, MS_REC | MS_PRIVATE)
    kernel.mount("tmpfs", here, "tmpfs", MS_NOSUID | MS_NODEV, "size=1m,mode=0755")
    for folder in EMPTY:
        os.makedirs(here + folder)
    sizes = f"size={file_bytes},nr_inodes={file_bytes >> 12},mode=01777"
    kernel.mount("tmpfs", f"{here}/tmp", "tmpfs", MS_NOSUID | MS_NODEV, sizes)
    for path in (*readable, *DEVICES):
        if os.path.isdir(path):
            os.makedirs(here + path, exist_ok=True)
        else:
            os.makedirs(os.path.dirname(here + path), exist_ok=True)
            os.close(os.open(here + path, os.O_CREAT | os.O_WRONLY, 0o644))
        kernel.mount(path, here + path, None, MS_BIND | MS_REC)
    _set_mounts(kernel, here, AT_RECURSIVE, (READ_ONLY | MS_NOSUID, 0))
    _set_mounts(kernel, f"{here}/tmp", 0, (0, READ_ONLY))
    with contextlib.suppress(OSError):  # in some containers none may be mounted: then the program sees none
        kernel.mount("proc", f"{here}/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    os.chdir(here)
    kernel("pivot_root", b".", b".")
    kernel("umount2", b".", MNT_DETACH)
    os.chdir("/tmp")


def _set_mounts(kernel: Kernel, path: str, flags: int, changes: tuple[int, int]) -> None:
    attributes = struct.pack("QQQQ", *changes, 0, 0)
    size = ctypes.c_size_t(len(attributes))
    kernel("syscall", SYS_MOUNT_SETATTR, AT_FDCWD, path.encode(), flags, attributes, size)


def landlock(kernel: Kernel, given: dict[str, Any]) -> None:
    """Return with no way to a file but to what may be read and the program's folder, whoever owns it."""
    if all_may_run_python():
        become_stranger(kernel, given["user"])
    version = landlock_version(kernel)
    if not version:
        raise OSError("this Linux has no Landlock")
    everything = (1 << LANDLOCK_RIGHTS[min(version, max(LANDLOCK_RIGHTS))]) - 1
    handled = struct.pack("QQQ", everything, 3 if version >= 4 else 0, 3 if version >= SIGNALS_SCOPED else 0)
    size = 8 if version < 4 else 16 if version < SIGNALS_SCOPED else 24
    rules = kernel("syscall", SYS_LANDLOCK[0], handled, ctypes.c_size_t(size), 0)
    read = RUN_FILE | READ_FILE | READ_FOLDER
    rights = dict.fromkeys(given["readable"], read) | dict.fromkeys(DEVICES, READ_FILE) | {".": everything}
    for path, allowed in {**rights, "/dev/null": READ_FILE | WRITE_FILE}.items():
        opened = os.open(path, os.O_PATH)
        allowed &= everything if os.path.isdir(path) else ~READ_FOLDER
        kernel("syscall", SYS_LANDLOCK[1], rules, 1, struct.pack("=Qi", allowed, opened), 0)
        os.close(opened)
    kernel.prctl(PR_SET_NO_NEW_PRIVS, 1)
    kernel("syscall", SYS_LANDLOCK[2], rules, 0)
    os.close(rules)


def limits(kernel: Kernel, given: dict[str, Any]) -> None:
    """Return as somebody else where root may: no more can be had."""
    if all_may_run_python():
        become_stranger(kernel, given["user"])


def bubblewrap(kernel: Kernel, given: dict[str, Any], filter_file: int | None) -> list[str]:
    """The command that goes before a program's. It gets descriptors of ours, too."""
    if given["bubblewrap"] is None:
        raise OSError("there is no bubblewrap (bwrap)")
    if os.getuid() == 0 and not all_may_run_python():
        raise OSError("this Python is root's alone, and bubblewrap would run it as root")
    become_stranger(kernel, given["user"])
    words = [
        given["bubblewrap"],
        "--unshare-all",
        "--unshare-user",
        "--disable-userns",
        "--die-with-parent",
        "--cap-drop",
        "ALL",
    ]
    words += ["--size", str(given["file_bytes"]), "--perms", "0700", "--tmpfs", "/tmp", "--proc", "/proc"]
    for path in given["readable"]:
        words += ["--ro-bind", path, path]
    for path in DEVICES:
        words += ["--dev-bind", path, path]
    for path in EMPTY:
        words += [] if path in ("/proc", "/tmp") else ["--dir", path]
    words += ["--remount-ro", "/", "--chdir", "/tmp"]
    return [*words, *([] if filter_file is None else ["--seccomp", str(filter_file)]), "--"]
