"""Protects messages between pipeline stages: which borders leave a node, and what the slowest takes."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.cost import stage_hops
from simulator.facts import Facts
from tests.builders import make_facts

GIB = 2.0**30


@pytest.fixture
def facts() -> Facts:
    return make_facts(nodes=4)


def test_point_to_point_by_hand(facts: Facts) -> None:
    spec = facts.device.spec
    inside, across = stage_hops.point_to_point(facts, GIB, [False, True]).s
    assert inside == pytest.approx(GIB / spec.nvlink_bytes_per_s + 5e-6)
    assert across == pytest.approx(GIB / (25e9 * 0.85 / 8) + spec.inter_node_latency_s)


def borders(facts: Facts, width: int, stages: int, replicas: int) -> int:
    return int(stage_hops.borders_across(facts, *(np.asarray([n]) for n in (width, stages, replicas)))[0])


def test_stage_borders_that_leave_a_node_by_hand(facts: Facts) -> None:
    """Nodes of eight GPUs; stages of neighbours, replicas behind each other."""
    assert borders(facts, 1, 8, 4) == 0  # a pipeline a node
    assert borders(facts, 1, 16, 1) == 1  # GPUs 7 and 8
    assert borders(facts, 2, 16, 1) == 3  # 32 GPUs
    assert borders(facts, 8, 4, 2) == 3  # a stage a node
    assert borders(facts, 16, 2, 1) == 1  # a stage on two nodes
    assert borders(facts, 4, 1, 8) == 0  # one stage
    assert borders(facts, 1, 6, 1) == 0
    assert borders(facts, 1, 6, 2) == 1  # the second replica has GPUs 6 to 11
    assert borders(facts, 3, 4, 1) == 2  # stages 0-2, 3-5, 6-8, 9-11: GPU 5 sends to 8, and GPU 6 to 9
    rack = replace(facts, group=replace(facts.group, nvlink_domain_gpus=32))
    assert borders(rack, 2, 16, 1) == 0


@settings(max_examples=100)
@given(st.integers(1, 20), st.integers(1, 12), st.integers(1, 20), st.sampled_from([8, 24, 72]))
def test_borders_are_those_of_every_replica_and_gpu_counted_out(width: int, stages: int, num: int, domain: int) -> None:
    facts = make_facts(nodes=4)
    wide = replace(facts, group=replace(facts.group, nvlink_domain_gpus=domain))
    starts = [[(replica * stages + stage) * width for stage in range(stages - 1)] for replica in range(num)]
    apart = [
        sum(any((x + k) // domain != (x + width + k) // domain for k in range(width)) for x in own) for own in starts
    ]
    assert borders(wide, width, stages, num) == max(apart)


def test_pipeline_hops_by_hand(facts: Facts) -> None:
    """Sixteen stages of two GPUs on four nodes: 12 borders inside nodes and 3 between, then the slow one paces."""
    inside, across = stage_hops.point_to_point(facts, GIB, [False, True]).s
    columns = [np.asarray([n]) for n in (2, 16, 1)]
    assert float(stage_hops.pipeline_hops(facts, GIB, *columns, 1).s[0]) == pytest.approx(12 * inside + 3 * across)
    assert float(stage_hops.pipeline_hops(facts, GIB, *columns, 5).s[0]) == pytest.approx(12 * inside + 7 * across)
    one_node = [np.asarray([n]) for n in (2, 4, 4)]
    assert float(stage_hops.pipeline_hops(facts, GIB, *one_node, 5).s[0]) == pytest.approx(7 * inside)
    alone = [np.asarray([n]) for n in (2, 1, 4)]
    assert float(stage_hops.pipeline_hops(facts, GIB, *alone, 5).s[0]) == 0.0
