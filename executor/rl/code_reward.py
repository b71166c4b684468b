"""A reward for code: the response's program must pass the answer's tests within a time limit, in a sandbox."""

from __future__ import annotations

import re
import secrets
from typing import TYPE_CHECKING

from executor.sandbox.run import WALLS, Limits, isolation, require_strict, run_program

if TYPE_CHECKING:
    from executor.run_config import RunConfig

LIMITS = Limits()
_FENCED = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)```", re.DOTALL)


def unit_tests(response: str, answer: str) -> float:
    """1 if the last fenced block of ``response`` (or all of it), followed by the tests in ``answer``, runs through.

    An error, a failed assertion, more than ``LIMITS`` allow, or an exit before the tests' end gives 0. Tests run in the
    program's own process: one that looks for a way to seem to pass can find it.
    """
    program, ended = program_of(response, answer)
    ran = run_program(program, LIMITS)
    return float(ran.status == "0" and ran.output.rstrip().endswith(ended))


def program_of(response: str, answer: str) -> tuple[str, str]:
    """The program of ``unit_tests``, and the line that it prints last: who exits early does not print it."""
    blocks = _FENCED.findall(response)
    ended = secrets.token_hex(16)
    return f"{blocks[-1] if blocks else response}\n{answer}\nprint('{ended}')\n", ended


def isolation_note(config: RunConfig) -> str | None:
    """What to tell a user whose run executes programs of the model: what isolates them here; else ``None``.

    ``InputError`` where they cannot be run at all, or not as strictly as the run asks.
    """
    sections = [section for section in (config.reward, config.cost) if section and section.function == "unit-tests"]
    if not sections:
        return None
    if any(section.isolation == "strict" for section in sections):
        require_strict()
    found = isolation()
    stronger = WALLS[: WALLS.index(found[0])]
    missing = [*stronger, *(word for word in ("seccomp", "cgroup") if word not in found)]
    without = f" (not available: {', '.join(missing)})" if missing else ""
    return (
        f"unit-tests runs the model's programs, on this machine isolated by {', '.join(found)}"
        f"{without}; docs/security.md says what that keeps out"
    )
