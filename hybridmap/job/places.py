"""Where in a job an error lies."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from profiles.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def at(place: str) -> Iterator[None]:
    """Put the place in front of the message of an ``InputError``."""
    try:
        yield
    except InputError as error:
        error.args = (f"{place}: {error}",)
        raise
