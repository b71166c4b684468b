"""Protects what a plan says of drafted tokens: seconds that they save in it, or that they cost."""

from dataclasses import replace

import pytest

from hybridmap.answers.drafts import draft_notes
from simulator.play.simulate import simulate
from simulator.speculation import Speculation
from tests.builders import make_facts, make_plan, workload

ALONE = (("actor",),)


@pytest.mark.parametrize(("acceptance", "word"), [((0.9, 0.8, 0.7), "save"), ((0.05, 0.0, 0.0), "cost")])
def test_a_plan_is_held_against_itself_without_drafts(acceptance: tuple[float, ...], word: str) -> None:
    facts = make_facts("grpo", "qwen3.5-9b", device="h100-80gb-sxm", gpus_per_node=8, work=workload(64, 512, 1024))
    plan = make_plan(facts, ALONE, (8,), tp=2, slots=16)
    assert draft_notes(plan, facts) == []
    drafting = replace(facts, speculation=Speculation(acceptance))
    (note,) = draft_notes(plan, drafting)
    plain = simulate(plan, facts)
    less = abs(plain.iteration_s - simulate(plan, drafting).iteration_s)
    assert note.startswith(f"drafts {word} {less:.3g} s an iteration")
    assert f"generates for {plain.stages['generation']:.3g} s" in note
    assert ("leave speculation out" in note) == (word == "cost")
