"""A reward from a service: a sandbox for programs, or an environment that judges, on a machine of its own.

One POST a response, ``{"response": text, "answer": text}``; the service answers ``{"reward": number}``. What it does
with a program stays there, so this is the strongest isolation that a run can have.
"""

from __future__ import annotations

import json
import math
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from profiles.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

TIMEOUT_S = 60.0
"""For one response."""
AT_ONCE = 16
TRIES = 3
PAUSE_S = 0.5
"""Before the second try; twice as long before the third."""
MOST_BYTES = 1 << 20
"""Of an answer: it holds one number."""


def is_url(function: str) -> bool:
    """Whether a reward's name says where a service listens."""
    return function.startswith(("http://", "https://"))


@dataclass(frozen=True)
class ServedReward:
    """Asks ``url`` for the reward of each response, some at once."""

    url: str

    def __call__(self, response: str, answer: str) -> float:
        """The reward of one response; ``InputError`` where the service gives none after ``TRIES``."""
        body = json.dumps({"response": response, "answer": answer}).encode()
        for again in range(TRIES):
            try:
                return self._asked(body)
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

    def _asked(self, body: bytes) -> float:
        request = Request(self.url, data=body, headers={"Content-Type": "application/json"}, method="POST")
        with urlopen(request, timeout=TIMEOUT_S) as reply:
            found = json.loads(reply.read(MOST_BYTES))
        reward = found.get("reward") if isinstance(found, dict) else None
        if isinstance(reward, bool) or not isinstance(reward, int | float) or not math.isfinite(reward):
            raise ValueError(f'expected {{"reward": number}}, got {str(found)[:80]}')
        return float(reward)
