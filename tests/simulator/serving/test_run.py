"""Protects the request-level scheduler: the loop that skips runs of decode steps against one that takes every step."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiles.errors import InfeasibleError, InputError
from simulator.serving.run import Load
from simulator.serving.serve import serve
from tests.draws import draws
from tests.simulator.serving.step_by_step import LinearPrices, Reference, rules

KINDS = ("mixed", "prefill-first", "in-flight", "in-flight-chunked")


@settings(max_examples=draws(400))
@given(
    kind=st.sampled_from(KINDS),
    ahead=st.booleans(),
    slots=st.integers(1, 8),
    budget=st.integers(9, 40),
    prompt=st.integers(1, 30),
    response=st.integers(1, 20),
    clients=st.integers(1, 10),
    more=st.integers(0, 14),
    spare=st.sampled_from([0, 3, 10, 40, 100, 10_000]),
    front=st.sampled_from([0.0, 0.7, 3.0]),
    serial=st.sampled_from([0.0, 0.05]),
    shortest=st.sampled_from([1.0, 0.8, 0.3]),
    state=st.sampled_from([0, 5]),
)
def test_equals_a_step_by_step_reference(
    kind: str,
    ahead: bool,
    slots: int,
    budget: int,
    prompt: int,
    response: int,
    clients: int,
    more: int,
    spare: int,
    front: float,
    serial: float,
    shortest: float,
    state: int,
) -> None:
    room = {"kv_tokens": prompt + response + state + spare, "tokens_of_a_sequence": state}
    scheduler = rules(kind, plans_ahead=ahead, max_num_seqs=slots, token_budget=budget, **room)
    load = Load(prompt, response, clients, clients + more, 0, front, serial, shortest)
    ttft, tpot, duration, evictions = Reference(scheduler, load).run()
    served = serve(scheduler, load, LinearPrices())
    assert served.evictions == evictions
    assert served.duration_s == pytest.approx(duration)
    assert served.ttft_s == pytest.approx(ttft)
    assert served.tpot_s == pytest.approx(tpot)
    assert served.throughput_tokens_per_s == pytest.approx(sum(r for _, r in load.lengths()) / duration)


@settings(max_examples=draws(200))
@given(
    kind=st.sampled_from(KINDS),
    copies=st.integers(1, 3),
    slots=st.integers(2, 12),
    prompt=st.integers(1, 8),
    response=st.integers(10, 50),
    requests=st.integers(5, 40),
    together=st.floats(1.0, 6.0),
    shortest=st.sampled_from([1.0, 0.3]),
    state=st.sampled_from([0, 3]),
)
def test_equals_the_reference_where_all_come_at_once_and_the_cache_is_always_full(
    kind: str,
    copies: int,
    slots: int,
    prompt: int,
    response: int,
    requests: int,
    together: float,
    shortest: float,
    state: int,
) -> None:
    room = int(together * (prompt + response + state))
    rest = {"max_num_seqs": slots, "token_budget": 30, "kv_tokens": room, "tokens_of_a_sequence": state}
    scheduler = rules(kind, copies=copies, **rest)
    load = Load(prompt, response, requests, requests, shortest_share=shortest)
    ttft, tpot, duration, evictions = Reference(scheduler, load).run()
    served = serve(scheduler, load, LinearPrices())
    assert served.evictions == evictions
    assert (served.ttft_s, served.tpot_s, served.duration_s) == pytest.approx((ttft, tpot, duration))


def test_one_request_by_hand() -> None:
    served = serve(rules("mixed"), Load(10, 3, 1, 1), LinearPrices())
    assert served.ttft_s == pytest.approx(1.3 + 0.3 + 0.01 + 1e-3)
    assert served.tpot_s == pytest.approx((1.01 + 1e-3 + 1.01 + 1.1e-3) / 2)


def test_prefill_first_puts_the_queue_into_the_first_token_and_mixing_into_the_others() -> None:
    load = Load(30, 40, 8, 80, warm_up=8)
    first, mixed = (serve(rules(kind, token_budget=40), load, LinearPrices()) for kind in ("prefill-first", "mixed"))
    assert first.ttft_s > mixed.ttft_s
    assert first.tpot_s < mixed.tpot_s


def test_a_small_cache_makes_requests_wait_or_evicts_them() -> None:
    load = Load(30, 40, 8, 40)
    whole = serve(rules("in-flight-chunked"), load, LinearPrices())
    waits = serve(rules("in-flight-chunked", kv_tokens=160), load, LinearPrices())
    evicts = serve(rules("mixed", kv_tokens=160), load, LinearPrices())
    assert whole.evictions == waits.evictions == 0
    assert waits.ttft_s > 5 * whole.ttft_s
    assert evicts.evictions > 0


def test_drawn_lengths_are_the_same_every_time_and_stay_between_their_bounds() -> None:
    load = Load(1000, 500, 4, 200, shortest_share=0.8)
    assert load.lengths() == load.lengths()
    prompts, responses = zip(*load.lengths(), strict=True)
    assert 800 <= min(prompts) < 850
    assert 950 < max(prompts) <= 1000
    assert 400 <= min(responses) < 425
    assert 475 < max(responses) <= 500


def test_equal_lengths_run_in_lockstep_and_drawn_ones_do_not() -> None:
    """What a closed loop of equal lengths gets wrong: all requests wait for all prompts, and none is disturbed."""
    lockstep, drawn = (
        serve(rules("prefill-first", token_budget=40), Load(30, 40, 8, 80, shortest_share=share), LinearPrices())
        for share in (1.0, 0.8)
    )
    assert lockstep.ttft_s > 1.5 * drawn.ttft_s
    assert lockstep.tpot_s < drawn.tpot_s
    assert drawn.ttft_median_s < drawn.ttft_s  # the first requests come all at once


def test_what_cannot_end_is_refused() -> None:
    with pytest.raises(InfeasibleError, match="holds 69 tokens, one request needs 70"):
        serve(rules("mixed", kv_tokens=69), Load(30, 40, 1, 1), LinearPrices())
    with pytest.raises(InputError, match=r"load\.output_tokens is 0"):
        serve(rules("mixed"), Load(30, 0, 1, 1), LinearPrices())
    with pytest.raises(InputError, match=r"shortest_share is 1\.2"):
        serve(rules("mixed"), Load(30, 4, 1, 4, shortest_share=1.2), LinearPrices())
    with pytest.raises(InputError, match="leaves none"):
        serve(rules("mixed"), Load(30, 4, 1, 4, warm_up=4), LinearPrices())
