"""Protects what is said of time between calls: an assumption inside the range of every system, and shown with it."""

import pytest

from profiles.engine_facts import engine_names, load_training_engine
from profiles.records import Basis
from simulator.systems.host_costs import BETWEEN_CALLS, between_calls_text
from simulator.systems.targets import TARGETS
from tests.builders import make_facts


@pytest.mark.parametrize("name", sorted(TARGETS))
def test_the_assumed_time_lies_in_the_range_of_each_system(name: str) -> None:
    known = BETWEEN_CALLS[TARGETS[name].system]
    for family in TARGETS[name].trainers:
        newest = [engine for engine in engine_names("training") if engine.startswith(f"{family}@")][-1]
        engine = load_training_engine(newest)
        assert engine.basis("controller_s_per_token") is Basis.ASSUMED
        assert known.low_s_per_token <= engine.controller_s_per_token <= known.high_s_per_token


def test_the_range_is_said_in_seconds_of_the_job() -> None:
    facts = make_facts(training="fsdp@2.13")
    tokens = facts.workload.tokens
    text = between_calls_text("verl", facts)
    assert f"{tokens * 0.5e-6:.1f} s an iteration; it may be {tokens * 0.44e-6:.1f} to {tokens * 2.82e-6:.1f} s" in text
    assert "MI300X" in text
