"""How services that judge a response are asked: a body to post, and the reward in what they answer.

The word before ``+`` in a URL names the service, as in ``nemo-gym+https://host:8000``; a URL without one is a service
of the user's own. Formats: SandboxFusion as its client ``sandbox_fusion`` 0.3.7 posts (``client.py:85``,
``models.py:26``, ``models.py:101``); NeMo Gym's resource servers as ``verifiers`` 0.4.0 asks them
(``v1/tasksets/nemo_gym/taskset.py:62`` and ``:77``, ``response.py:47`` and ``:95``); ``verifiers`` names the arguments
of that package's reward functions, whose own servers speak no HTTP.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from executor.rl.code_reward import LIMITS, program_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


@dataclass(frozen=True)
class Question:
    """What is posted for one response.

    Parameters
    ----------
    posts
        Pairs of a path below the service's URL and a body, in order; one session holds them.
    reward
        The reward in the answer to the last post; what is no finite number where that holds none.
    expects
        What an answer looks like, for a message.
    """

    posts: tuple[tuple[str, Mapping[str, Any]], ...]
    reward: Callable[[Mapping[str, Any]], object] = lambda found: found.get("reward")
    expects: str = '{"reward": number}'


def own(response: str, answer: str) -> Question:
    """A service of the user's: response and answer; ``{"reward": number}`` comes back."""
    return Question((("", {"response": response, "answer": answer}),))


def sandbox_fusion(response: str, answer: str) -> Question:
    """The reward ``unit-tests``, whose program runs in a SandboxFusion service instead of here."""
    program, ended = program_of(response, answer)
    body = {"code": program, "language": "python", "run_timeout": LIMITS.wall_s}

    def reward(found: Mapping[str, Any]) -> float | None:
        if found.get("status") not in ("Success", "Failed"):  # SandboxError: it could not run the program
            return None
        ran = found.get("run_result") or {}
        return float(ran.get("return_code") == 0 and str(ran.get("stdout")).rstrip().endswith(ended))

    return Question((("/run_code", body),), reward, '{"status": "Success" or "Failed", "run_result": {...}}')


def nemo_gym(response: str, answer: str) -> Question:
    """A resource server of NeMo Gym; ``answer`` is the data set's row as JSON, or else the ``expected_answer``."""
    row = {"responses_create_params": {"input": []}, **_row_of(answer)}
    text = {"type": "output_text", "text": response, "annotations": []}
    message = {"id": "msg_0", "type": "message", "role": "assistant", "status": "completed", "content": [text]}
    said = {
        "id": "resp_0",
        "created_at": 0,
        "model": "policy",
        "object": "response",
        "output": [message],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "status": "completed",
    }
    return Question((("/seed_session", row), ("/verify", row | {"response": said})))


def verifiers(response: str, answer: str) -> Question:
    """A service around reward functions of verifiers: the completion as messages, beside the answer."""
    body = {"completion": [{"role": "assistant", "content": response}], "answer": answer, "state": {}, "info": {}}
    return Question((("", body),))


SERVICES: dict[str, Callable[[str, str], Question]] = {
    "sandbox-fusion": sandbox_fusion,
    "nemo-gym": nemo_gym,
    "verifiers": verifiers,
}
"""By the word before ``+`` in a URL."""


def _row_of(answer: str) -> dict[str, Any]:
    try:
        row = json.loads(answer)
    except ValueError:
        row = None
    return row if isinstance(row, dict) else {"expected_answer": answer}
