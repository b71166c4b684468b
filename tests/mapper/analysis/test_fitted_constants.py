"""Protects that a fitted constant which carries much of an iteration is named with its share, and no other is."""

from dataclasses import replace

import pytest

from mapper.analysis.fitted_constants import LARGE, carrying_constants
from profiles.records import Basis
from simulator.play.simulate import simulate
from tests.builders import make_facts, make_plan, workload


def facts(**bases: Basis):
    found = make_facts("grpo", "llama-2-7b", work=workload(prompts=64), generation="vllm@0.32", reserve_bytes=0.0)
    engine = replace(found.generation, bases=bases, plans_ahead=False, host_s_per_step=0.05, host_s_per_sequence=0.0)
    device = found.device.with_spec(replace(found.device.spec, bases={}))
    return replace(found, generation=engine, training=replace(found.training, bases={}), device=device)


def test_a_constant_that_paces_generation_is_named_with_the_share_it_carries() -> None:
    known = facts(host_s_per_step=Basis.FITTED, host_s_per_sequence=Basis.FITTED)
    plan = make_plan(known, (known.dataflow.roles,), (8,), slots=8)
    (one,) = carrying_constants(known, plan)
    assert (one.name, one.owner) == ("host_s_per_step", "vllm@0.32")
    timeline = simulate(plan, known)
    fitted = sum(s.duration_s * s.basis["fitted"] for s in timeline.spans if s.call == "generate_sequences")
    assert one.share == pytest.approx(fitted / timeline.iteration_s) and one.share > LARGE


def test_what_is_assumed_or_small_is_not_named() -> None:
    known = facts(host_s_per_step=Basis.ASSUMED)
    plan = make_plan(known, (known.dataflow.roles,), (8,), slots=8)
    assert carrying_constants(known, plan) == []
