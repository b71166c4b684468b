"""Programs of somebody else's: each in a process of its own that has little, reaches nothing and does not last.

What is taken away, and what is not, is in docs/security.md.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Literal

from profiles.errors import InputError
from profiles.units import GIB, MIB

SUPERVISOR = Path(__file__).with_name("sandbox_supervisor.py")
PATIENCE_S = 5.0
"""What the supervisor may take beyond the program's time, to start and to clean up."""

ENVIRONMENT = {"PATH": os.defpath, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
"""All that a program has of it; libraries must not start a thread for every core."""


@dataclass(frozen=True)
class Limits:
    """What a program may have.

    Parameters
    ----------
    wall_s
        Seconds from its start; processor time is bounded by it too.
    memory_bytes
        Address space of each of its processes.
    file_bytes
        Its folder, and any one file. The folder is memory where namespaces may be made.
    output_bytes
        Printed text; a program that prints more is ended.
    processes
        How many at once; only where namespaces may be made.
    """

    wall_s: float = 5.0
    memory_bytes: int = GIB
    file_bytes: int = 64 * MIB
    output_bytes: int = MIB
    processes: int = 64


@dataclass(frozen=True)
class Ran:
    """``status`` is an exit status, ``late`` or ``talks`` (beyond its limits), or ``lost`` if the supervisor died.

    ``isolation``: ``namespaces``, or ``limits`` alone where the kernel does not let us make any.
    """

    status: str
    output: str
    isolation: Literal["namespaces", "limits"] = "limits"


@cache
def require_sandbox() -> None:
    """Raise ``InputError`` if programs cannot be run here at all, so that not every one of them seems to fail."""
    ran = run_program("print('ready')", Limits(wall_s=60.0))
    if (ran.status, ran.output) != ("0", "ready\n"):
        raise InputError(
            f"programs cannot be run here: one that prints a word ended with {ran.status} and printed {ran.output!r}; "
            "is there memory and room in the temporary folder?"
        )


def run_program(program: str, limits: Limits) -> Ran:
    """Run a Python program, without input, arguments or environment, in an empty folder that goes with it."""
    with tempfile.TemporaryDirectory(prefix="program-") as folder:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(SUPERVISOR), json.dumps(asdict(limits))], cwd=folder,
            env=ENVIRONMENT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip
        try:
            raw, _ = process.communicate(program.encode("utf-8", "replace"), timeout=limits.wall_s + PATIENCE_S)
        except subprocess.TimeoutExpired:
            raw = b""
        finally:
            _end(process)
    output, _, last = raw.decode("utf-8", "replace").rstrip("\n").rpartition("\n")
    words = last.split(" ")
    if len(words) != 3 or words[0] != "ended":
        return Ran("lost", output)
    return Ran(words[1], output, "namespaces" if words[2] == "namespaces" else "limits")


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the supervisor, and with it the program."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
