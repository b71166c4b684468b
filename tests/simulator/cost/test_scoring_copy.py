"""Protects scoring of a trained role in a layout of its own: what the copy costs and holds by hand, who may do it."""

from dataclasses import replace

import numpy as np
import pytest

from simulator.cost import comms, parameters, scoring_copy
from simulator.cost.pricing import call_cost
from simulator.cost.role_layouts import layouts_of
from simulator.cost.role_memory import role_memory
from simulator.facts import Facts
from simulator.feasibility import check_plan
from simulator.plan.layouts import Layouts
from simulator.plan.plan import ParallelLayout, Plan
from simulator.play.simulate import simulate
from simulator.pool_memory import pool_memory
from tests.builders import call_of, make_facts, make_plan, replace_role

TRAINED = ParallelLayout(dp=2, tp=8, zero_stage=1)
NARROW = ParallelLayout(dp=8, tp=2, zero_stage=0, micro_batch=2)
ALONE = NARROW.model_copy(update={"dp": 2, "tp": 8})


@pytest.fixture
def facts() -> Facts:
    return make_facts("ppo", "llama-2-7b", nodes=2, training="megatron-core@0.16")


def planned(facts: Facts, scores: ParallelLayout, trains: ParallelLayout = TRAINED) -> Plan:
    plan = make_plan(facts, (("actor", "critic", "reference", "reward"),), (16,), tp=8)
    return replace_role(plan, "critic", training=trains, inference=scores)


def test_a_copy_is_needed_for_other_degrees_and_for_what_only_training_shards() -> None:
    trained = Layouts.of([TRAINED, TRAINED, TRAINED, TRAINED.model_copy(update={"zero_stage": 3})])
    scored = Layouts.of([TRAINED, NARROW, ALONE, ALONE])
    assert scoring_copy.apart(trained, scored).tolist() == [False, True, False, True]


def test_a_copy_costs_one_gather_of_the_model_and_the_hand_over_of_each_tensor(facts: Facts) -> None:
    """6.7 billion parameters in bf16 over the 8 GPUs of a replica; 291 tensors at the engine's time of one."""
    shape = facts.roles["critic"].shape
    pair = (Layouts.of([TRAINED]), Layouts.of([NARROW]))
    found = scoring_copy.gather_time(facts, shape, *pair)
    gather = facts.device.collective("all_gather", np.asarray([shape.num_params * 2.0]), np.asarray([8]))
    assert float(found.s[0]) == pytest.approx(float(gather.s[0]) + 291 * facts.training.export_s_per_tensor)
    alone, copied = (layouts_of(planned(facts, x).role("critic")) for x in (TRAINED, NARROW))
    call, forward = call_of(facts.dataflow, "compute_values"), replace(copied, training=None)
    seconds = [float(call_cost(facts, call, x).time.s[0]) for x in (copied, forward)]
    assert seconds[0] == pytest.approx(seconds[1] + float(found.s[0]))
    assert float(scoring_copy.gather_time(facts, shape, pair[0], pair[0]).s[0]) == 0.0
    assert "scoring weights" not in role_memory(facts, "critic", alone).transient["compute_values"]


def test_across_nodes_the_gather_takes_the_network(facts: Facts) -> None:
    """Two nodes at 25 GB/s x 0.85: half of the model comes in through each node's cards."""
    shape = facts.roles["critic"].shape
    deep = ParallelLayout(dp=1, tp=8, pp=2)
    found = scoring_copy.gather_time(facts, shape, Layouts.of([deep]), Layouts.of([NARROW]))
    wire = shape.num_params * 2.0 / 2 / comms.domain_bandwidth(facts) + facts.device.spec.inter_node_latency_s
    assert float(found.s[0]) == pytest.approx(wire + 291 * facts.training.export_s_per_tensor)


def test_the_copy_lies_beside_the_training_shards_while_it_scores_and_no_longer(facts: Facts) -> None:
    shape = facts.roles["critic"].shape
    needs = role_memory(facts, "critic", layouts_of(planned(facts, NARROW).role("critic")))
    same = role_memory(facts, "critic", layouts_of(planned(facts, TRAINED).role("critic")))
    assert needs.resident_bytes == same.resident_bytes
    copy = needs.transient["compute_values"]
    params = parameters.params_per_gpu(shape, "scalar", np.asarray([2]), np.asarray([1]), np.asarray([1]))
    assert float(copy["scoring weights"][0]) == float(params[0]) * 2
    working = float(copy["activations"][0] + copy["logits"][0])
    assert float(copy["gather buffer"][0]) == max(2 * 32000 * 4096 * 2 - working, 0)  # the embedding twice
    assert "scoring weights" not in needs.transient["update_critic"]
    assert pool_memory(planned(facts, NARROW), planned(facts, NARROW).pools[0], facts).used_bytes > 0


def test_an_engine_that_copies_weights_runs_it_and_another_is_named(facts: Facts) -> None:
    plan = planned(facts, NARROW)
    assert check_plan(plan, facts) == []
    assert simulate(plan, facts).stages["preparation"] > 0
    older = make_facts("ppo", "llama-2-7b", nodes=2, training="megatron-core@0.6")
    (found,) = check_plan(plan, older)
    assert "with megatron-core@0.6 a trained role scores in its training layout" in found.message


@pytest.mark.parametrize(
    ("trains", "scores", "message"),
    [
        (TRAINED, NARROW.model_copy(update={"zero_stage": 1}), "on a whole copy"),
        (TRAINED, ALONE, "on a whole copy"),  # the same degrees: no copy, and another sharding
        (TRAINED.model_copy(update={"dp": 1}), NARROW, "16 GPUs to score and 8 that hold the weights"),
        (NARROW.model_copy(update={"zero_stage": 1}), ALONE, "a replica of the copy has 8 GPUs, training's has 2"),
    ],
)
def test_a_copy_that_cannot_be_made_is_refused(
    facts: Facts, trains: ParallelLayout, scores: ParallelLayout, message: str
) -> None:
    found = check_plan(planned(facts, scores, trains), facts)
    assert [v.rule for v in found] == ["layouts"]
    assert message in found[0].message


def test_a_copy_that_does_not_fit_is_named_with_its_class(facts: Facts) -> None:
    small = replace(facts, device=facts.device.with_spec(replace(facts.device.spec, memory_bytes=22 * 2**30)))
    wide = ParallelLayout(dp=16, tp=1, zero_stage=0)
    messages = [v.message for v in check_plan(planned(small, wide), small)]
    assert any("during compute_values" in m and "scoring weights 12." in m for m in messages), messages
