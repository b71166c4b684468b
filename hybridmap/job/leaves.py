"""Leaves of the job's schema: each checks itself and fails with what it expects.

So a message can say "got x, expected y" and nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict
from pydantic_core import PydanticCustomError

from profiles.workload import MOST_TOKENS

if TYPE_CHECKING:
    from collections.abc import Callable

EXPECTED = "expected"
"""Type of the validation errors whose message is what would have been right."""

MOST_NUMBER = 1e300
MOST_NODES = 1_024
MOST_GPUS_PER_NODE = 1_024
MOST_SAMPLES = 10_000_000


def refusal(expected: str) -> PydanticCustomError:
    """The error that says what would have been right."""
    return PydanticCustomError(EXPECTED, "{text}", {"text": expected})


def leaf(expected: str, is_right: Callable[[Any], bool]) -> BeforeValidator:
    """A leaf that passes what ``is_right`` accepts unchanged."""

    def check(value: Any) -> Any:
        if not is_right(value):
            raise refusal(expected)
        return value

    return BeforeValidator(check)


def whole(most: int, least: int = 1) -> BeforeValidator:
    """A whole number from ``least`` to ``most``."""
    return leaf(f"a whole number from {least} to {most:,}", lambda v: type(v) is int and least <= v <= most)


def number(expected: str, is_right: Callable[[float], bool]) -> BeforeValidator:
    """A finite number that ``is_right`` accepts."""
    return leaf(expected, lambda v: is_number(v) and is_right(v))


def is_number(value: Any) -> bool:
    """Whether ``value`` is a finite number; a whole one that no float holds is none."""
    # bool is an int to Python, but no amount of anything.
    return type(value) in (int, float) and -MOST_NUMBER <= value <= MOST_NUMBER


def one_of(names: tuple[str, ...]) -> BeforeValidator:
    """One of some words."""
    return leaf(f"one of {', '.join(names)}", lambda v: v in names)


def is_name(value: Any) -> bool:
    """Whether ``value`` is a text of a sensible length."""
    return isinstance(value, str) and 0 < len(value) <= 4096


Name = Annotated[Any, leaf("a name", is_name)]
Samples = Annotated[Any, whole(MOST_SAMPLES)]
Tokens = Annotated[Any, whole(MOST_TOKENS)]
Positive = Annotated[Any, number("a positive number", lambda v: v > 0)]
NotNegative = Annotated[Any, number("a number of at least 0", lambda v: v >= 0)]


class Section(BaseModel):
    """A mapping of the job file; unknown keys fail."""

    model_config = ConfigDict(extra="forbid", frozen=True)
