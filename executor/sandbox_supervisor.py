"""Runs one program of somebody else's, with as little around it as the kernel lets us take away. A script, run by path.

    python -I -S sandbox_supervisor.py LIMITS_AS_JSON < program

Standard library alone, and nothing of ours: this process starts in milliseconds, once for each program. It says on its
last line of output ``ended STATUS ISOLATION``; what the program printed comes before that, at most so many bytes of it.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import select
import signal
import sys
import time

NEW_NAMESPACES = {"mount": 0x00020000, "ipc": 0x08000000, "user": 0x10000000, "pid": 0x20000000, "network": 0x40000000}
"""Flags of unshare(2)."""

PR_SET_PDEATHSIG, PR_CAPBSET_DROP, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 1, 24, 36, 38
SYS_MOUNT_SETATTR, AT_FDCWD, AT_RECURSIVE, MOUNT_ATTR_RDONLY, MS_PRIVATE = 442, -100, 0x8000, 0x1, 1 << 18
MS_NOSUID_NODEV = 2 | 4
NOBODY = 65534
LAST_CAPABILITY = 63


def main() -> int:
    """Run the program on standard input within the limits of the command line."""
    limits = json.loads(sys.argv[1])
    program = sys.stdin.buffer.read()
    libc = _libc()
    isolated = libc is not None and _may_isolate(libc) and _isolated(libc)
    if libc is not None:
        libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    reader, writer = os.pipe()
    source = os.memfd_create("program") if hasattr(os, "memfd_create") else _unnamed_file()
    os.write(source, program)
    os.lseek(source, 0, os.SEEK_SET)
    child = os.fork()
    if child == 0:
        _become_program(libc, isolated, limits, source, writer)
    os.close(writer)
    status = _watched(child, reader, limits["wall_s"], limits["output_bytes"])
    _end_all(child)
    print(f"\nended {status} {'namespaces' if isolated else 'limits'}", flush=True)
    return 0


def _libc() -> ctypes.CDLL | None:
    libc = ctypes.CDLL(None, use_errno=True)
    return libc if hasattr(libc, "unshare") and hasattr(libc, "prctl") else None


def _may_isolate(libc: ctypes.CDLL) -> bool:
    """Try in a child: some kernels make namespaces and then let nobody live there, and there is no way back."""
    child = os.fork()
    if child == 0:
        made = False
        try:
            made = _isolated(libc)
        finally:
            os._exit(0 if made else 1)
    return os.waitpid(child, 0)[1] == 0


def _isolated(libc: ctypes.CDLL) -> bool:
    """Leave the machine's network, processes, mounts and users, where we may. ``False``: everything is as it was."""
    user, group = os.getuid(), os.getgid()
    if user == 0 and _all_may_read(os.__file__) and _all_may_read(sys.executable):
        os.chown(".", NOBODY, NOBODY)  # root is nobody inside: limits on processes do not hold for root
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
        user = group = NOBODY
        libc.prctl(4, 1, 0, 0, 0)  # PR_SET_DUMPABLE: else its own /proc is root's
    if libc.unshare(sum(NEW_NAMESPACES.values())) != 0:
        return False
    for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)
    return True


def _all_may_read(path: str) -> bool:
    """Whether a stranger on this machine may read a file and everything on the way to it."""
    path = os.path.realpath(path)
    if not os.stat(path).st_mode & 0o004:
        return False
    while path != "/":
        path = os.path.dirname(path)
        if not os.stat(path).st_mode & 0o001:
            return False
    return True


def _unnamed_file() -> int:
    import tempfile

    handle, name = tempfile.mkstemp(dir=".")
    os.unlink(name)
    return handle


def _become_program(libc: ctypes.CDLL | None, isolated: bool, limits: dict[str, int], source: int, out: int) -> None:
    """In the child: limits, a view of the machine that cannot be written to, no privileges; then the program."""
    try:
        if libc is not None:
            libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if isolated:
                _shut_mounts(libc, limits["file_bytes"])
            for capability in range(LAST_CAPABILITY + 1):
                libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)
            libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        os.setsid()
        nothing = os.open(os.devnull, os.O_WRONLY)
        for here, there in ((source, 0), (out, 1), (nothing, 2)):
            os.dup2(here, there)
        os.closerange(3, 256)
        _limit(limits, isolated)
        os.execv(sys.executable, [sys.executable, "-I", "-"])
    finally:
        os._exit(127)


def _shut_mounts(libc: ctypes.CDLL, file_bytes: int) -> None:
    """All that is mounted becomes read-only for the program; its folder becomes memory of a limited size."""
    attributes = (ctypes.c_uint64 * 4)(MOUNT_ATTR_RDONLY, 0, MS_PRIVATE, 0)
    size = ctypes.c_size_t(ctypes.sizeof(attributes))
    if libc.syscall(SYS_MOUNT_SETATTR, AT_FDCWD, b"/", AT_RECURSIVE, ctypes.byref(attributes), size) != 0:
        return
    here = os.getcwd()
    options = f"size={file_bytes},mode=0700".encode()
    if libc.mount(b"tmpfs", here.encode(), b"tmpfs", MS_NOSUID_NODEV, options) == 0:
        os.chdir(here)


def _limit(limits: dict[str, int], isolated: bool) -> None:
    """Limits for each process. The number of processes counts all of a user's, unless the user is one of our own."""
    cpu_s = int(limits["wall_s"]) + 1
    for which, most in (
        (resource.RLIMIT_CPU, cpu_s), (resource.RLIMIT_AS, limits["memory_bytes"]), (resource.RLIMIT_NOFILE, 64),
        (resource.RLIMIT_FSIZE, limits["file_bytes"]), (resource.RLIMIT_CORE, 0),
    ):  # fmt: skip
        hard = resource.getrlimit(which)[1]
        most = int(most) if hard == resource.RLIM_INFINITY else min(int(most), hard)
        resource.setrlimit(which, (most, most))
    if isolated:
        resource.setrlimit(resource.RLIMIT_NPROC, (limits["processes"], limits["processes"]))


def _watched(child: int, reader: int, wall_s: float, output_bytes: int) -> str:
    """Pass on what the program prints until it ends: its exit status, or why it was ended."""
    ends_s = time.monotonic() + wall_s
    passed = 0
    while True:
        left_s = ends_s - time.monotonic()
        if left_s <= 0:
            return "late"
        done, status = os.waitpid(child, os.WNOHANG)
        if select.select([reader], [], [], 0 if done else min(left_s, 0.01))[0]:
            data = os.read(reader, 65536)
            passed += len(data)
            if passed > output_bytes:
                return "talks"
            sys.stdout.buffer.write(data)
        if done:
            while select.select([reader], [], [], 0)[0] and (data := os.read(reader, 65536)) and passed <= output_bytes:
                passed += len(data)
                sys.stdout.buffer.write(data)
            return str(os.waitstatus_to_exitcode(status))


def _end_all(child: int) -> None:
    """Kill the program and whatever it has started: orphans come to us, who asked for them."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    ends_s = time.monotonic() + 2.0
    while time.monotonic() < ends_s:
        for name in _children():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(name, signal.SIGKILL)
        try:
            done, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not done:
            time.sleep(0.001)


def _children() -> list[int]:
    try:
        with open(f"/proc/self/task/{os.getpid()}/children") as file:
            return [int(word) for word in file.read().split()]
    except OSError:
        return []


if __name__ == "__main__":
    sys.exit(main())
