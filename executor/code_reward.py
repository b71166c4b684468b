"""A reward for code: the response's program must pass the answer's tests within a time limit.

The program runs as this user in a process of its own, in an empty folder and with little memory. That stops accidents;
it is no sandbox against a program that means harm.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import signal
import subprocess
import sys
import tempfile

TIME_LIMIT_S = 5.0
MEMORY_BYTES = 1 << 30
_LIMITS = f"import resource\nresource.setrlimit(resource.RLIMIT_AS, ({MEMORY_BYTES}, {MEMORY_BYTES}))\n"
_FENCED = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)```", re.DOTALL)


def unit_tests(response: str, answer: str) -> float:
    """1 if the last fenced block of ``response`` (or all of it), followed by the tests in ``answer``, runs through.

    An error, a failed assertion, more than ``TIME_LIMIT_S`` seconds, or an exit before the tests' end gives 0.
    """
    blocks = _FENCED.findall(response)
    return float(_runs_through(f"{blocks[-1] if blocks else response}\n{answer}\n", TIME_LIMIT_S))


def _runs_through(program: str, time_limit_s: float) -> bool:
    ended = secrets.token_hex(16)  # who exits early does not print it
    with tempfile.TemporaryDirectory() as folder:
        process = subprocess.Popen(
            [sys.executable, "-I", "-"], cwd=folder, env={"PATH": os.defpath}, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, errors="replace", start_new_session=True,
        )  # fmt: skip
        try:
            output, _ = process.communicate(f"{_LIMITS}{program}print('{ended}')\n", timeout=time_limit_s)
        except subprocess.TimeoutExpired:
            return False
        finally:
            _end(process)
    return process.returncode == 0 and output.rstrip().endswith(ended)


def _end(process: subprocess.Popen[str]) -> None:
    """End the program with whatever it has started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
