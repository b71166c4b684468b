"""A reward from a service: a sandbox for programs, or an environment that judges, on a machine of its own.

What is posted depends on the service (``executor.rl.reward_services``). What it does with a program stays there, so
this is the strongest isolation that a run can have.
"""

from __future__ import annotations

import json
import math
import re
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.error import HTTPError
from urllib.request import HTTPCookieProcessor, OpenerDirector, Request, build_opener

from executor.rl.reward_services import SERVICES, Question, own
from profiles.errors import InputError, UnknownNameError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

TIMEOUT_S = 60.0
"""For one response."""
AT_ONCE = 16
TRIES = 3
PAUSE_S = 0.5
"""Before the second try; twice as long before the third."""
MOST_BYTES = 16 << 20
"""Of an answer: one number, and of some services all that was posted."""

_URL = re.compile(r"(?:([^:/]+)\+)?(https?://.+)")


def is_url(function: str) -> bool:
    """Whether a reward's name says where a service listens."""
    return _URL.fullmatch(function) is not None


@dataclass(frozen=True)
class ServedReward:
    """Asks ``url`` for rewards, some at once; ``nemo-gym+https://..`` names one of ``SERVICES``."""

    url: str

    def __post_init__(self) -> None:
        service, _ = self._parts()
        if service is not None and service not in SERVICES:
            raise UnknownNameError("reward service", service, SERVICES, hint="(before '+' in a URL)")

    def __call__(self, response: str, answer: str) -> float:
        """The reward of one response; ``InputError`` where the service gives none after ``TRIES``."""
        service, address = self._parts()
        question = (SERVICES[service] if service else own)(response, answer)
        for again in range(TRIES):
            try:
                return _asked(address, question)
            except (OSError, ValueError) as error:  # also what is no JSON
                problem = str(error)
                if isinstance(error, HTTPError):
                    error.close()
                    if error.code < 500:
                        break
            if again + 1 < TRIES:
                time.sleep(PAUSE_S * 2**again)
        raise InputError(f"the reward service {self.url} gave no reward after {again + 1} tries: {problem}")

    def many(self, responses: Sequence[str], answers: Sequence[str]) -> list[float]:
        """The rewards of a batch, in its order."""
        with ThreadPoolExecutor(AT_ONCE) as pool:
            return list(pool.map(self, responses, answers))

    def _parts(self) -> tuple[str | None, str]:
        found = _URL.fullmatch(self.url)
        if found is None:
            raise InputError(f"{self.url} is no URL of a reward service")
        return found[1], found[2]


def _asked(address: str, question: Question) -> float:
    opener, found = build_opener(HTTPCookieProcessor()), None
    for path, body in question.posts:
        found = _posted(opener, address.rstrip("/") + path if path else address, body)
    reward = question.reward(found) if isinstance(found, dict) else None
    if isinstance(reward, bool) or not isinstance(reward, int | float) or not math.isfinite(reward):
        raise ValueError(f"expected {question.expects}, got {str(found)[:80]}")
    return float(reward)


def _posted(opener: OpenerDirector, address: str, body: Mapping[str, Any]) -> object:
    headers = {"Content-Type": "application/json"}
    request = Request(address, data=json.dumps(body).encode(), headers=headers, method="POST")
    with opener.open(request, timeout=TIMEOUT_S) as reply:
        return json.loads(reply.read(MOST_BYTES) or b"null")
