"""Protects the price of a forward pass: a third of a training pass's compute, streamed through the pipeline."""

import numpy as np
import pytest

from profiles.models.catalogue import load_model
from simulator.cost.score import inference_cost
from simulator.cost.train import training_cost
from simulator.plan.layouts import Layouts
from simulator.plan.plan import ParallelLayout
from tests.builders import make_facts, workload

LLAMA = load_model("llama-2-7b")


def one(**degrees: object) -> Layouts:
    return Layouts.of([ParallelLayout.model_validate({"dp": 1, **degrees})])


def test_forward_is_about_a_third_of_forward_and_backward() -> None:
    facts = make_facts(work=workload(1024, minibatches=1))
    forward = inference_cost(facts, LLAMA, "lm", one(tp=8)).compute.s[0]
    both = training_cost(facts, LLAMA, "lm", one(tp=8)).compute.s[0]
    assert 0.25 < forward / both < 0.40


def test_scores_skip_the_vocabulary_head() -> None:
    facts = make_facts()
    log_probs, scores = (inference_cost(facts, LLAMA, head, one(tp=8)).time.s[0] for head in ("lm", "scalar"))
    assert 0.9 * log_probs < scores < log_probs


def test_every_sample_is_scored_whatever_the_minibatches() -> None:
    few, many = (inference_cost(make_facts(work=workload(1024, minibatches=m)), LLAMA, "lm", one(tp=8)) for m in (1, 8))
    assert few.time.s == many.time.s
    halves = inference_cost(make_facts(work=workload(512, minibatches=1)), LLAMA, "lm", one(tp=8))
    assert few.time.s == pytest.approx(2 * halves.time.s)


def test_more_replicas_divide_the_samples() -> None:
    facts = make_facts(nodes=4)
    single = inference_cost(facts, LLAMA, "lm", one(tp=8)).time.s[0]
    four = inference_cost(facts, LLAMA, "lm", one(dp=4, tp=8)).time.s[0]
    assert four == pytest.approx(single / 4)


def test_gathers_of_fsdp_are_hidden_where_compute_suffices() -> None:
    facts = make_facts()
    plain = inference_cost(facts, LLAMA, "lm", one(dp=8, zero_stage=0, micro_batch=8))
    sharded = inference_cost(facts, LLAMA, "lm", one(dp=8, zero_stage=3, micro_batch=8))
    assert sharded.comm.s[0] > 0
    assert plain.comm.s[0] == 0
    assert sharded.time.s == pytest.approx(plain.time.s)
    assert np.all(sharded.compute.s == plain.compute.s)


def test_a_pipeline_streams() -> None:
    """Eight stages do not take eight times as long as their share: only filling the pipeline is lost."""
    facts = make_facts()
    flat = inference_cost(facts, LLAMA, "scalar", one(tp=1)).time.s[0]
    piped = inference_cost(facts, LLAMA, "scalar", one(pp=8)).time.s[0]
    assert flat / 8 < piped < 1.1 * flat / 8


def test_context_parallel_ranks_exchange_keys_and_values() -> None:
    """Hidden behind attention inside a node; over a slow network it shows."""
    long = workload(64, 16384, 16384, minibatches=1)
    near = inference_cost(make_facts(work=long), LLAMA, "lm", one(cp=8))
    assert near.comm.s[0] > 0
    assert near.exposed.s[0] < near.comm.s[0]
    slow = make_facts(work=long, nodes=2, inter_node_bytes_per_s=1e9)
    far = inference_cost(slow, LLAMA, "lm", one(tp=1, cp=16))
    assert far.exposed.s[0] > 0
    assert inference_cost(make_facts(work=long), LLAMA, "lm", one()).comm.s[0] == 0
