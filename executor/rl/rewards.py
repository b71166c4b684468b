"""Reward functions: from a response and the right answer, both text, to a number."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from executor.rl.code_reward import unit_tests

if TYPE_CHECKING:
    from collections.abc import Callable

_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")
REGEX_LIMIT_S = 1.0
_BOXED = re.compile(r"\\boxed\{([^{}]*)\}")


def exact_match(response: str, answer: str) -> float:
    """1 if the texts are equal but for space around them."""
    return float(response.strip() == answer.strip())


def per_character(response: str, answer: str) -> float:
    """Share of the answer's characters that stand at their place."""
    right = sum(a == b for a, b in zip(response, answer, strict=False))
    return right / max(len(answer), 1)


def math_answer(response: str, answer: str) -> float:
    r"""1 if the response's last ``\\boxed{}``, or else its last number, equals the answer as a number."""
    boxed = _BOXED.findall(response)
    found = _number_in(boxed[-1] if boxed else response)
    wanted = _number_in(answer)
    if found is None or wanted is None:
        return float(bool(boxed) and boxed[-1].strip() == answer.strip())
    return float(abs(found - wanted) <= 1e-6 * max(1.0, abs(wanted)))


def regex_match(response: str, answer: str) -> float:
    """1 if the whole response matches the answer, a regular expression; 0 where that takes over ``REGEX_LIMIT_S``."""
    import regex  # Python's own has no limit, and a pattern can take years

    try:
        return float(regex.fullmatch(answer, response.strip(), timeout=REGEX_LIMIT_S) is not None)
    except TimeoutError:
        return 0.0


def first_is_even(response: str, answer: str) -> float:
    """1 if the response starts with an even digit: a cost to try constraints with."""
    return float(response[:1] in {"0", "2", "4", "6", "8"} and response != "")


def unfinished(response: str, answer: str) -> float:
    """1 unless the response ends with ``=`` right behind as many characters as the answer has: a cost."""
    return float(response[len(answer) :] != "=")


def _number_in(text: str) -> float | None:
    found = _NUMBER.findall(text)
    return float(found[-1].replace(",", "")) if found else None


REWARDS: dict[str, Callable[[str, str], float]] = {
    "exact-match": exact_match,
    "per-character": per_character,
    "math": math_answer,
    "regex": regex_match,
    "unit-tests": unit_tests,
    "first-is-even": first_is_even,
    "unfinished": unfinished,
}
"""Reward functions by the name that a job file uses."""
