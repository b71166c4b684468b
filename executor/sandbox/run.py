"""Programs of somebody else's: each in a process of its own that has little, reaches nothing and does not last.

What is taken away, and what is not, is in docs/security.md.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

from profiles.errors import InputError
from profiles.units import GIB, MIB

ROOT = Path(__file__).parents[2]
SUPERVISOR = "import sys; sys.path.insert(0, sys.argv[1]); from executor.sandbox.supervisor import main; main()"
PATIENCE_S = 60.0
"""What the supervisor may take beyond the program's time, to start and to clean up, on however busy a machine."""

ENVIRONMENT = {"PATH": os.defpath, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
"""All that a program has of it; libraries must not start a thread for every core."""

WALLS = ("bubblewrap", "namespaces", "landlock", "limits")
"""What may stand between a program and the machine, strongest first."""

SYSTEM = ("/usr", "/bin", "/lib", "/lib32", "/lib64", "/etc/ld.so.cache", "/etc/alternatives")
"""What a program may read besides Python."""


@dataclass(frozen=True)
class Limits:
    """What a program may have, with all of its children.

    Parameters
    ----------
    wall_s
        Seconds from its start; the processor time of each process is bounded by it too.
    memory_bytes
        Its processes together, and its folder.
    file_bytes
        Its folder, and any one file.
    output_bytes
        Printed text; a program that prints more is ended.
    processes
        Processes and threads at once.
    """

    wall_s: float = 5.0
    memory_bytes: int = GIB
    file_bytes: int = 64 * MIB
    output_bytes: int = MIB
    processes: int = 64


@dataclass(frozen=True)
class Ran:
    """What became of a program.

    ``status`` is an exit status; ``late``, ``talks``, ``memory``, ``processes`` or ``files`` for one that was ended
    beyond that limit; or ``lost`` if it could not be started or watched, and ``reason`` says why.
    ``isolation`` names the walls, then ``seccomp`` where calls are filtered, then who counts memory and processes.
    """

    status: str
    output: str
    isolation: tuple[str, ...] = ()
    reason: str = ""


@cache
def isolation() -> tuple[str, ...]:
    """The strongest isolation that a program which prints a word comes through on this machine.

    ``InputError`` if it fails in all of them: else every program would seem to be wrong.
    """
    reasons = []
    for walls in WALLS:
        ran = run_program("print('ready')", Limits(wall_s=PATIENCE_S), walls)
        if (ran.status, ran.output) == ("0", "ready\n"):
            return ran.isolation
        reasons.append(f"{walls}: {ran.reason or f'{ran.status} and printed {ran.output!r}'}")
    raise InputError(
        f"programs cannot be run here: one that prints a word ended in none of {', '.join(WALLS)} "
        f"({'; '.join(reasons)}); is there memory and room in the temporary folder?"
    )


STRICT = ("bubblewrap", "seccomp", "cgroup")
"""The well-kept tools; what stands in for each where it is missing is our own."""


def require_strict() -> None:
    """``InputError`` unless programs are isolated by ``STRICT`` on this machine, and by nothing less."""
    found = isolation()
    if missing := [word for word in STRICT if word not in found]:
        raise InputError(
            f"isolation: strict needs {', '.join(STRICT)}; here programs would run behind {', '.join(found)}, without "
            f"{', '.join(missing)}: install bubblewrap 0.8 and libseccomp 2.5, give us a cgroup (version 2), or name a "
            "service's URL as the reward; no program was run"
        )


def run_program(program: str, limits: Limits, walls: str | None = None) -> Ran:
    """Run a Python program, without input, arguments or environment, in an empty folder that goes with it.

    ``walls``: one of ``WALLS`` and no other, or else the strongest that there are.
    """
    given = {
        **asdict(limits),
        "walls": walls or isolation()[0],
        "readable": _readable(),
        "bubblewrap": shutil.which("bwrap"),
    }
    with tempfile.TemporaryDirectory(prefix="program-") as folder:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", SUPERVISOR, str(ROOT), json.dumps(given)],
            cwd=folder,
            env=ENVIRONMENT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        try:
            raw, said = process.communicate(program.encode("utf-8", "replace"), timeout=limits.wall_s + PATIENCE_S)
        except subprocess.TimeoutExpired:
            raw, said = b"", b"its supervisor did not end"
        finally:
            _end(process)
    output = raw.decode("utf-8", "replace")
    try:
        ended = json.loads(said)
        return Ran(ended["status"], output, tuple(ended["isolation"]), ended["reason"])
    except (ValueError, TypeError, KeyError):
        return Ran("lost", output, reason=said.decode("utf-8", "replace").strip().rpartition("\n")[2])


@cache
def _readable() -> list[str]:
    """Python with its packages, and the system's libraries; no folder that is inside another."""
    pythons = (sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix)
    wanted = [*SYSTEM, *pythons, *(os.path.realpath(path) for path in pythons)]
    found: list[str] = []
    for path in wanted:
        if os.path.exists(path) and not any(path == other or path.startswith(f"{other}/") for other in found):
            found.append(path)
    return found


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the supervisor, and with it the program."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
