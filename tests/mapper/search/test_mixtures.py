"""Protects engines of mixtures: experts and attention copies are searched, and no spread by hand beats the answer."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from mapper.candidates import layouts
from mapper.pins import Pin
from mapper.request import SearchRequest
from mapper.search.find_plan import find_plan
from profiles.models.catalogue import load_model
from simulator.cost.kv_budget import kv_budget_bytes
from simulator.feasibility import check_plan
from simulator.legality import engine_fault
from simulator.plan.layouts import GenerationLayouts
from simulator.play.simulate import simulate
from tests.builders import make_facts, replace_role

PAPER = make_facts("grpo", "qwen3-30b-a3b", nodes=2)
FACTS = replace(PAPER, generation=replace(PAPER.generation, mixture_parallel=True))


@pytest.mark.parametrize("model", ["qwen3-30b-a3b", "deepseek-v3", "llama-2-7b"])
def test_every_legal_spread_of_an_engine_is_listed(model):
    shape = load_model(model)
    listed = layouts.generation_layouts(FACTS, shape, 16)
    found = set(zip(*(getattr(listed, f).tolist() for f in ("tp", "pp", "ep", "attention_dp")), strict=True))
    powers = (1, 2, 4, 8)
    legal = {
        (tp, pp, ep, copies)
        for tp, pp, ep, copies in product(powers, (*powers, 16), powers, powers)
        if tp * pp <= 16 and not engine_fault(shape, tp, pp, ep, copies)
    }
    assert found == legal
    without = layouts.generation_layouts(PAPER, shape, 16)
    assert set(without.ep.tolist()) == set(without.attention_dp.tolist()) == {1}


def test_no_spread_by_hand_beats_the_optimum():
    found = find_plan(SearchRequest(FACTS, runners_up=False))
    shape, best = FACTS.roles["actor"].shape, found.plan.role("actor").generation
    num = best.dp * best.tp * best.pp
    tried = 0
    for tp, ep, copies in product((2, 4, 8), (1, 2, 4, 8), (1, 2, 4, 8)):
        if engine_fault(shape, tp, 1, ep, copies):
            continue
        hand = best.model_copy(update={"dp": num // tp, "tp": tp, "pp": 1, "ep": ep, "attention_dp": copies})
        budget = int(kv_budget_bytes(FACTS, shape, GenerationLayouts.of([hand]))[0])
        plan = replace_role(found.plan, "actor", generation=hand.model_copy(update={"kv_cache_bytes": budget}))
        if check_plan(plan, FACTS):
            continue
        tried += 1
        assert simulate(plan, FACTS).iteration_s >= found.bound_s - 1e-9
    assert tried > 5


def test_a_pinned_spread_is_what_the_plan_has():
    pins = (Pin("actor", generation={"tp": 4, "ep": 2, "attention_dp": 4}),)
    plan = find_plan(SearchRequest(FACTS, pins=pins, runners_up=False)).plan
    engine = plan.role("actor").generation
    assert (engine.tp, engine.ep, engine.attention_dp) == (4, 2, 4)
    assert check_plan(plan, FACTS) == []
