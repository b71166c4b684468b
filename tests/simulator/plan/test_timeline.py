"""Protects the timeline as a document: a round trip through JSON is the identity, floats included."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from simulator.plan.timeline import PoolMemory, Span, Timeline
from simulator.play.simulate import simulate
from tests.builders import make_plan, tiny_facts

seconds = st.floats(0, 1e9)


@given(times=st.lists(seconds, min_size=6, max_size=6), tokens=st.floats(1, 1e12))
def test_timeline_to_json_to_timeline_is_the_identity(times: list[float], tokens: float) -> None:
    start, length, compute, comm, other, share = times
    span = Span(
        call="update_actor",
        api="update_actor",
        role="actor",
        pool="A",
        stage="training",
        start_s=start,
        end_s=start + length,
        compute_s=compute,
        comm_s=comm,
        basis={"measured": share / 1e9},
        critical=True,
    )
    timeline = Timeline(
        source="simulated",
        iteration_s=start + length,
        stages={"training": length, "other": other},
        spans=(span,),
        memory={"A": PoolMemory(used_bytes=3, capacity_bytes=2**63, peak_call="x", classes={"reserve": 3})},
        basis={"measured": 1.0},
        tokens=tokens,
        num_gpus=8,
    )
    text = timeline.model_dump_json()
    assert Timeline.model_validate_json(text) == timeline
    assert Timeline.model_validate_json(text).model_dump_json() == text


def test_a_simulated_one_survives_too() -> None:
    facts = tiny_facts("ppo", 4)
    timeline = simulate(make_plan(facts, (("actor", "reference"), ("critic", "reward")), (2, 2)), facts)
    assert Timeline.model_validate_json(timeline.model_dump_json()) == timeline


def test_derived_numbers() -> None:
    facts = tiny_facts("ppo", 4)
    timeline = simulate(make_plan(facts, (("actor", "critic", "reference", "reward"),), (4,)), facts)
    assert timeline.tokens_per_s == pytest.approx(16 * 1024 / timeline.iteration_s)
    assert all(math.isclose(s.duration_s, s.end_s - s.start_s) for s in timeline.spans)


def test_unknown_fields_are_refused() -> None:
    with pytest.raises(ValidationError, match="extra"):
        PoolMemory.model_validate(
            {"used_bytes": 1, "capacity_bytes": 1, "peak_call": "", "classes": {}, "free_bytes": 0}
        )
