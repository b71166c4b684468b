"""Runs one program of somebody else's, with as little around it as the kernel lets us take away.

``sandbox.run`` starts it in a process of its own, once for each program: it imports the standard library and its
neighbours alone, and starts in milliseconds. It passes on what the program prints, and says what became of it on its
standard error, which the program never has: ``{"status", "isolation", "reason"}``.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import resource
import select
import signal
import sys
import time
from typing import Any

from executor.sandbox import walls
from executor.sandbox.count import Cgroup, Watch, descendants
from executor.sandbox.filter import Filter

STARTED, LOOKS_S = b"started", 0.01
INSIDE_BUBBLEWRAP = """
import os, resource, sys
most, started = map(int, sys.argv[1:])
resource.setrlimit(resource.RLIMIT_NPROC, (most, most))
os.write(started, b"started")
os.close(started)
os.execv(sys.executable, [sys.executable, "-I", "-"])
"""
"""Counted from inside its user namespace: outside, all processes of the user would be."""


def main() -> None:
    """Run the program on standard input within what the command line gives."""
    given = {**json.loads(sys.argv[2]), "user": walls.STRANGERS + os.getpid()}
    source = _in_memory(sys.stdin.buffer.read())
    kernel = walls.Kernel()
    kernel.prctl(walls.PR_SET_CHILD_SUBREAPER, 1)
    calls, cgroup = _filter(kernel, given["walls"]), _cgroup(given)
    watch = _watch(given)
    started, says_started = os.pipe()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        _become_program(kernel, given, calls, cgroup, (source, writer, says_started))
    os.close(writer)
    os.close(says_started)
    try:
        said = os.read(started, 4096)  # its time begins when it does
        status = _watched(child, reader, given, watch, cgroup) if said == STARTED else "lost"
    finally:
        _end_all(child)
        if cgroup:
            cgroup.close()
    words = [given["walls"], *(["seccomp"] if calls else [])]
    words.append("cgroup" if cgroup else "supervisor" if watch else "uncounted")
    reason = "" if said == STARTED else said.decode(errors="replace") or "it ended before the program began"
    sys.stdout.flush()
    print(json.dumps({"status": status, "isolation": words, "reason": reason}), file=sys.stderr)


def _in_memory(program: bytes) -> int:
    """A file with no name that cannot be changed: standard input is no memory of the program's own."""
    if not hasattr(os, "memfd_create"):
        import tempfile

        handle, name = tempfile.mkstemp(dir=".")
        os.unlink(name)
    else:
        handle = os.memfd_create("program", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.write(handle, program)
    os.lseek(handle, 0, os.SEEK_SET)
    if hasattr(os, "memfd_create"):
        fcntl.fcntl(handle, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK)
    return handle


def _filter(kernel: walls.Kernel, chosen: str) -> Filter | None:
    scoped = chosen == "landlock" and walls.landlock_version(kernel) >= walls.SIGNALS_SCOPED
    with contextlib.suppress(OSError, AttributeError):
        return Filter(alone=chosen in ("bubblewrap", "namespaces"), signals=scoped)
    return None


def _cgroup(given: dict[str, Any]) -> Cgroup | None:
    with contextlib.suppress(OSError):
        return Cgroup(given)
    return None


def _watch(given: dict[str, Any]) -> Watch | None:
    with contextlib.suppress(OSError):
        return Watch(given, None if given["walls"] in ("bubblewrap", "namespaces") else os.getcwd())
    return None


def _become_program(
    kernel: walls.Kernel, given: dict[str, Any], calls: Filter | None, cgroup: Cgroup | None, files: tuple[int, ...]
) -> None:
    """In the child: walls, limits, no privileges, then the program; or what went wrong, told instead of "started"."""
    try:
        kernel.prctl(walls.PR_SET_PDEATHSIG, signal.SIGKILL)
        if cgroup:
            cgroup.enter()
        os.setsid()
        started = _only(*files)
        _limit(given)
        if given["walls"] == "bubblewrap":
            _bubblewrapped(kernel, given, calls, started)
        getattr(walls, given["walls"])(kernel, given)
        _limit_processes(given)
        for capability in range(walls.LAST_CAPABILITY + 1):
            kernel.prctl(walls.PR_CAPBSET_DROP, capability)
        kernel.prctl(walls.PR_SET_NO_NEW_PRIVS, 1)
        if calls:
            calls.load()
        os.write(started, STARTED)
        os.execv(sys.executable, [sys.executable, "-I", "-"])
    except BaseException as error:
        os.write(started, f"{type(error).__name__}: {error}".encode())
    finally:
        os._exit(127)


def _only(source: int, out: int, started: int) -> int:
    """Leave no file open but standard input and output, and where the start is told, which the program closes."""
    nothing = os.open(os.devnull, os.O_WRONLY)
    kept = fcntl.fcntl(started, fcntl.F_DUPFD_CLOEXEC, 64)
    for here, there in ((source, 0), (out, 1), (nothing, 2), (kept, 3)):
        os.dup2(here, there, inheritable=there != 3)
    os.closerange(4, 256)
    return 3


def _bubblewrapped(kernel: walls.Kernel, given: dict[str, Any], calls: Filter | None, started: int) -> None:
    exported = None
    if calls:
        exported = os.memfd_create("filter", 0)
        calls.export(exported)
        os.lseek(exported, 0, os.SEEK_SET)
    os.set_inheritable(started, True)
    command = walls.bubblewrap(kernel, given, exported)
    inside = [sys.executable, "-I", "-S", "-c", INSIDE_BUBBLEWRAP, str(given["processes"]), str(started)]
    os.execv(command[0], [*command, *inside])


def _limit(given: dict[str, Any]) -> None:
    """Limits for each process."""
    for which, most in (
        (resource.RLIMIT_CPU, int(given["wall_s"]) + 1),
        (resource.RLIMIT_NOFILE, 64),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_AS, given["memory_bytes"] - given["file_bytes"]),
        (resource.RLIMIT_FSIZE, given["file_bytes"]),
    ):
        hard = resource.getrlimit(which)[1]
        most = int(most) if hard == resource.RLIM_INFINITY else min(int(most), hard)
        resource.setrlimit(which, (most, most))


def _limit_processes(given: dict[str, Any]) -> None:
    """The kernel counts all of a user's: a user of our own has so many, another so many more than run here in all."""
    most = given["processes"]
    if given["walls"] != "namespaces" and os.getuid() < walls.STRANGERS:
        with contextlib.suppress(OSError), open("/proc/loadavg") as file:
            most += int(file.read().split()[3].split("/")[1])
    hard = resource.getrlimit(resource.RLIMIT_NPROC)[1]
    most = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(resource.RLIMIT_NPROC, (most, most))


def _watched(child: int, reader: int, given: dict[str, Any], watch: Watch | None, cgroup: Cgroup | None) -> str:
    """Pass on what the program prints until it ends: its exit status, or why it was ended."""
    ends_s = time.monotonic() + given["wall_s"]
    left_bytes, readers = given["output_bytes"], [reader]
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        while select.select(readers, [], [], 0 if done else LOOKS_S)[0]:
            data = os.read(reader, 65536)
            left_bytes -= len(data)
            if left_bytes < 0:
                return "talks"
            sys.stdout.buffer.write(data)
            readers = readers if data else []  # it may close its output and go on
            if not done:
                break
        if cgroup and cgroup.is_full():
            return "memory"
        if done:
            return str(os.waitstatus_to_exitcode(status))
        if time.monotonic() > ends_s:
            return "late"
        if watch and (excess := watch.excess()):
            return excess


def _end_all(child: int) -> None:
    """Kill the program and whatever it has started: orphans come to us, who asked for them."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    ends_s = time.monotonic() + 10.0
    while time.monotonic() < ends_s:
        for process in (child, *descendants()):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(process, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.001)
