"""A reward for code: the response's program must pass the answer's tests within a time limit, in a sandbox."""

from __future__ import annotations

import re
import secrets

from executor.sandbox import Limits, require_sandbox, run_program

LIMITS = Limits()
_FENCED = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)```", re.DOTALL)


def unit_tests(response: str, answer: str) -> float:
    """1 if the last fenced block of ``response`` (or all of it), followed by the tests in ``answer``, runs through.

    An error, a failed assertion, more than ``LIMITS`` allow, or an exit before the tests' end gives 0. Tests run in the
    program's own process: one that looks for a way to seem to pass can find it.
    """
    blocks = _FENCED.findall(response)
    program = f"{blocks[-1] if blocks else response}\n{answer}\n"
    require_sandbox()
    ended = secrets.token_hex(16)  # who exits early does not print it
    ran = run_program(f"{program}print('{ended}')\n", LIMITS)
    return float(ran.status == "0" and ran.output.rstrip().endswith(ended))
