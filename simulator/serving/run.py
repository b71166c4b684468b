"""What a serving run is described by: the scheduler's rules, the load, the prices of steps, and what comes out.

Three kinds of load: a closed loop (a request that ends is followed by the next), everything at once (offline
throughput: as many in flight as there are requests), and one fixed batch (as many as the engine takes).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from profiles.errors import InfeasibleError, InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from profiles.records import Floats, Ints

SEED = 0
"""Of the lengths that a load draws."""


class StepPrices(Protocol):
    """Prices of one engine on one layout, in seconds."""

    def stretch_s(self, active: int, context_tokens: int, steps: int) -> float:
        """So many decode steps in a row; the first reads ``context_tokens``, each next one ``active`` more."""
        ...

    def until_s(
        self, active: int, context_tokens: int, steps: int, within_s: float, begun: bool
    ) -> tuple[int, float, float]:
        """As many of such steps as it takes until ``within_s`` are over, or until a step has ``begun`` that late.

        How many, one at least; how long they take without the last; and how long with it.
        """
        ...

    def stretches_s(self, active: Ints, context_tokens: Ints, steps: Ints) -> Floats:
        """Many such stretches, each as long as its steps together, shape ``[stretches]``."""
        ...

    def mixed_step_s(
        self, active: int, context_tokens: int, new: Sequence[int], past: Sequence[int], heads: int
    ) -> float:
        """One step that computes so many ``new`` tokens of each prompt and samples ``heads`` sequences in all.

        ``past`` has the tokens of the first of these prompts that are in the cache already; of the others none is.
        """
        ...

    def mixed_steps_s(self, steps: Ints, chunks: Ints) -> Floats:
        """Many such steps, shape ``[steps]``.

        ``steps`` has the active, context tokens, heads and number of prompts of each, shape ``[steps, 4]``, and
        ``chunks`` the new and past tokens of the prompts of all steps, shape ``[prompts, 2]``.
        """
        ...


@dataclass(frozen=True, slots=True)
class Scheduler:
    """The rules of an engine's scheduler.

    Parameters
    ----------
    mixes
        Prefill and decode share steps; otherwise prefill goes first and decode waits.
    chunked
        A prompt may be cut to fill the token budget of a step; otherwise it is computed whole.
    plans_ahead
        A step is planned when the step before it starts (the host runs one step ahead of the GPU), so what arrives
        meanwhile waits one step longer.
    admits_with_output, keeps_for_running
        Shares of the response still to come that must have room in the cache when a request is admitted: of its own
        response, and of the responses that run. (1, 1) never evicts; (0, 0) takes cache as it grows. When the cache
        is full the newest request is evicted and computed again.
    max_num_seqs, token_budget, copies
        Sequences in flight, tokens of one step, and attention copies that share both: a prompt lies in one of them.
    kv_tokens, tokens_of_a_sequence
        Tokens that the cache holds, and what each running sequence takes of them beside its own tokens.
    """

    mixes: bool
    chunked: bool
    plans_ahead: bool
    admits_with_output: float
    keeps_for_running: float
    max_num_seqs: int
    token_budget: int
    kv_tokens: int
    copies: int = 1
    tokens_of_a_sequence: int = 0

    @property
    def longest_chunk(self) -> int:
        """Tokens of one prompt in a step, where it may be cut."""
        return self.token_budget // self.copies


@dataclass(frozen=True, slots=True)
class Load:
    """What clients send: ``num_requests``, at most ``concurrency`` of them in flight at once.

    Parameters
    ----------
    input_tokens, output_tokens
        Longest prompt and response.
    concurrency, num_requests, warm_up
        Requests in flight, in all, and of the first ones how many are left out of the latencies.
    front_end_s, front_end_s_per_prompt_token
        From sending a request to the scheduler's seeing it; and what the front end takes of its own time for each, one
        request after another.
    shortest_share
        Prompts and responses are drawn evenly between this share of the longest and the longest; 1 makes all equal.
    """

    input_tokens: int
    output_tokens: int
    concurrency: int
    num_requests: int
    warm_up: int = 0
    front_end_s: float = 0.0
    front_end_s_per_prompt_token: float = 0.0
    shortest_share: float = 1.0

    @property
    def at_once(self) -> bool:
        """Whether all requests are sent at the start: the engine is never idle, so its power limit holds it back."""
        return self.concurrency >= self.num_requests

    def shortest(self, longest: int) -> int:
        """Tokens of the shortest prompt or response that is drawn where the longest has so many."""
        return max(1, int(self.shortest_share * longest))

    def lengths(self) -> list[tuple[int, int]]:
        """Prompt and response tokens of every request, in the order they are sent; always the same."""
        if self.shortest_share == 1.0:
            return [(self.input_tokens, self.output_tokens)] * self.num_requests
        draw = np.random.default_rng(SEED)
        most = (self.input_tokens, self.output_tokens)
        drawn = [draw.integers(self.shortest(m), m + 1, self.num_requests) for m in most]
        return list(zip(drawn[0].tolist(), drawn[1].tolist(), strict=True))


@dataclass(frozen=True)
class Served:
    """Means and medians over the requests after the warm-up, and the generated tokens per second of the whole run."""

    ttft_s: float
    tpot_s: float
    ttft_median_s: float
    tpot_median_s: float
    throughput_tokens_per_s: float
    duration_s: float
    evictions: int


def check(scheduler: Scheduler, load: Load) -> None:
    """Whether the run can end.

    Raises
    ------
    InputError
        A count is not positive.
    InfeasibleError
        The cache is too small for a single request.
    """
    for name in ("input_tokens", "output_tokens", "concurrency", "num_requests"):
        if getattr(load, name) < 1:
            raise InputError(f"load.{name} is {getattr(load, name)}; it must be at least 1")
    if scheduler.max_num_seqs < 1 or scheduler.token_budget < 1:
        raise InputError("the scheduler needs at least one sequence and one token a step")
    if not 0 <= load.warm_up < load.num_requests:
        raise InputError(f"a warm-up of {load.warm_up} leaves none of {load.num_requests} requests")
    if not 0.0 < load.shortest_share <= 1.0:
        raise InputError(f"load.shortest_share is {load.shortest_share}; it must be above 0 and at most 1")
    most = load.input_tokens + load.output_tokens + scheduler.tokens_of_a_sequence
    if scheduler.kv_tokens < most:
        raise InfeasibleError(f"the KV cache holds {scheduler.kv_tokens} tokens, one request needs {most}")
