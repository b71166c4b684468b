"""Protects when calls run: schedules that train and generate at once by hand, and the event queue as a closed form."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.plan.dataflow import CONTROLLER, build_dataflow
from simulator.play.schedule import play
from tests.draws import draws

GRPO = {
    "transition": 2,
    "generate_sequences": 10,
    "compute_ref_log_prob": 3,
    "compute_reward": 4,
    "compute_advantage": 1,
    "update_actor": 6,
}
"""Seconds of each call; the reward is a function on the controller, beside the reference. The rest of a step is
max(3, 4) + 1 + 6 = 11."""


def grpo(schedule: str, in_flight: bool = False, **seconds: int) -> list[tuple[str, float, float]]:
    flow = build_dataflow("grpo", ("actor", "reference"))
    pool_of = {"actor": "A", "reference": "A", CONTROLLER: CONTROLLER}
    records = play(flow, GRPO | seconds, pool_of, "G", schedule != "sync", in_flight)
    return [(call.key, r.start_s, r.end_s) for call, r in zip(flow.calls, records, strict=True)]


def period(schedule: str, in_flight: bool = False, **seconds: int) -> float:
    return max(end for _, _, end in grpo(schedule, in_flight, **seconds))


def test_engines_apart_in_turn() -> None:
    assert grpo("sync") == [
        ("transition", 0, 2),
        ("generate_sequences", 2, 12),
        ("compute_ref_log_prob", 12, 15),
        ("compute_reward", 12, 16),
        ("compute_advantage", 16, 17),
        ("update_actor", 17, 23),
    ]


def test_one_step_off_trains_on_the_last_samples_while_it_generates_the_next() -> None:
    assert grpo("one-step-off") == [
        ("transition", 0, 2),
        ("generate_sequences", 2, 12),
        ("compute_ref_log_prob", 2, 5),
        ("compute_reward", 2, 6),
        ("compute_advantage", 6, 7),
        ("update_actor", 7, 13),
    ]


def test_in_flight_updates_reach_engines_that_generate() -> None:
    """The transfer occupies the trainer alone."""
    assert grpo("async", in_flight=True)[:3] == [
        ("transition", 0, 2),
        ("generate_sequences", 0, 10),
        ("compute_ref_log_prob", 2, 5),
    ]


@pytest.mark.parametrize(
    ("seconds", "in_turn", "overlapped", "in_flight"),
    [
        ({}, 2 + 10 + 11, 2 + 11, 2 + 11),  # training paces
        ({"generate_sequences": 30}, 2 + 30 + 11, 2 + 30, 30),  # generation paces
        ({"generate_sequences": 12}, 2 + 12 + 11, 2 + 12, 13),  # generation is hidden behind transfer and training
        ({"transition": 0}, 21, 11, 11),
    ],
)
def test_periods_by_hand(seconds: dict[str, int], in_turn: int, overlapped: int, in_flight: int) -> None:
    """Overlapped: transfer + max(generation, rest); with in-flight updates: max(generation, transfer + rest)."""
    assert period("sync", **seconds) == in_turn
    assert period("one-step-off", **seconds) == overlapped
    assert period("async", **seconds) == overlapped
    assert period("async", in_flight=True, **seconds) == in_flight


@settings(max_examples=draws(150))
@given(
    job=st.sampled_from(
        [
            ("ppo", ("actor", "critic", "reference", "reward")),
            ("grpo", ("actor", "reference")),
            ("remax", ("actor", "reference", "reward")),
        ]
    ),
    data=st.data(),
)
def test_the_event_queue_is_the_closed_form(job: tuple[str, tuple[str, ...]], data: st.DataObject) -> None:
    """For any durations and any placement of the other roles; the rest is an iteration that generates in no time."""
    flow = build_dataflow(*job)
    seconds = {call.key: data.draw(st.integers(0, 20), label=call.key) for call in flow.calls}
    pool_of = {role: data.draw(st.sampled_from("ABC"), label=role) for role in flow.roles} | {CONTROLLER: CONTROLLER}

    def iteration(durations: dict[str, int], overlapped: bool = False, in_flight: bool = False) -> float:
        return max(r.end_s for r in play(flow, durations, pool_of, "G", overlapped, in_flight))

    generated = [call.key for call in flow.calls if call.kind == "generate"]
    generation = sum(seconds[key] for key in generated)
    # The order of the script still holds, so what waits for a sample waits for the transfer at least.
    rest = iteration(seconds | dict.fromkeys([*generated, "transition"], 0))
    transfer = seconds["transition"]
    assert iteration(seconds, overlapped=True) == transfer + max(generation, rest)
    assert iteration(seconds, overlapped=True, in_flight=True) == max(generation, transfer + rest)
    assert iteration(seconds, overlapped=True) <= iteration(seconds)
