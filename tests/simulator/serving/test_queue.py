"""Protects the queue of requests that are all alike: it does what the loop for any requests does, turn by turn."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.serving.loop import Loop
from simulator.serving.queue import Queue, is_queue
from simulator.serving.requests import Clock
from simulator.serving.run import Load, Scheduler
from simulator.serving.sequences import Sequences
from tests.draws import draws
from tests.simulator.serving.step_by_step import LinearPrices, Reference


def by_queue(scheduler: Scheduler, load: Load) -> tuple[np.ndarray, int]:
    queue = Queue(scheduler, load, Clock(LinearPrices()))
    queue.run()
    return times_of(queue.done, queue.clock), queue.evictions


def by_loop(scheduler: Scheduler, load: Load) -> tuple[np.ndarray, int]:
    inside = Sequences(scheduler.kv_tokens, scheduler.tokens_of_a_sequence)
    loop = Loop(scheduler, load, LinearPrices(), load.lengths(), Clock(LinearPrices()), inside)
    loop.run()
    return times_of(loop.done, loop.clock), loop.evictions


def times_of(done: np.ndarray, clock: Clock) -> np.ndarray:
    """When each request was sent, began and ended, in the order in which they ended."""
    return clock.times()[np.repeat(done[:, :3], done[:, 4], axis=0)]


@settings(max_examples=draws(800))
@given(
    mixes=st.booleans(),
    chunked=st.booleans(),
    ahead=st.booleans(),
    shares=st.sampled_from([(0.0, 0.0), (1.0, 1.0), (1.0, 0.1), (1.0, 0.0), (0.5, 0.25)]),
    slots=st.integers(1, 12),
    budget=st.integers(1, 60),
    prompt=st.integers(1, 30),
    response=st.integers(1, 40),
    clients=st.integers(1, 30),
    more=st.integers(0, 30),
    spare=st.integers(0, 300),
    state=st.sampled_from([0, 5]),
    front_end=st.sampled_from([0.0, 0.37, 2.1, 19.3]),
)
def test_equals_the_loop_for_any_requests_and_every_step_on_its_own(
    mixes: bool,
    chunked: bool,
    ahead: bool,
    shares: tuple[float, float],
    slots: int,
    budget: int,
    prompt: int,
    response: int,
    clients: int,
    more: int,
    spare: int,
    state: int,
    front_end: float,
) -> None:
    room = prompt + response + state + spare
    scheduler = Scheduler(mixes, chunked, ahead, *shares, slots, budget, room, tokens_of_a_sequence=state)
    load = Load(prompt, response, clients, clients + more, front_end_s=front_end)
    assert is_queue(scheduler, load)
    (quick, evictions), (plain, as_many) = by_queue(scheduler, load), by_loop(scheduler, load)
    assert evictions == as_many
    assert quick == pytest.approx(plain)
    reference = Reference(scheduler, load)
    assert reference.run()[3] == evictions
    assert quick == pytest.approx(np.asarray([(r["sent"], r["first"], r["end"]) for r in reference.done]))


@pytest.mark.parametrize(
    "other",
    [
        {"copies": 2},  # two prompts may be begun at once
        {"shortest_share": 0.8},
        {"front_end_s_per_prompt_token": 1e-3},
    ],
)
def test_who_is_no_queue(other: dict) -> None:
    scheduler = Scheduler(True, True, False, 0.0, 0.0, 8, 64, 1000, copies=other.get("copies", 1))
    assert not is_queue(scheduler, Load(8, 8, 2, 4, **{k: v for k, v in other.items() if k != "copies"}))
