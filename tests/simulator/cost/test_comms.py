"""Protects communication across nodes: measured inside an NVLink domain, by hand across, monotone in everything."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiles.records import Basis
from simulator.cost import comms
from simulator.facts import Facts
from tests.builders import make_facts

KINDS = ["all_gather", "reduce_scatter", "all_reduce", "all_to_all"]
GIB = 2.0**30


@pytest.fixture
def facts() -> Facts:
    return make_facts(nodes=4)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
def test_inside_a_domain_it_is_the_measured_table(facts: Facts, kind: str, ranks: int) -> None:
    found = comms.strided(facts, kind, GIB / 32, ranks, 1)
    assert found.s == facts.device.collective(kind, GIB / 32, ranks).s
    assert found.weakest < Basis.ANALYTIC


def test_ranks_in_a_domain(facts: Facts) -> None:
    assert comms.ranks_in_domain(facts, [2, 8, 16, 4, 4, 4], [1, 1, 1, 2, 4, 8]).tolist() == [2, 8, 8, 4, 2, 1]


def test_across_domains_by_hand(facts: Facts) -> None:
    """25 GB/s per node at 0.85: an all-gather of the whole takes 3/4 of it through each of four nodes' cards."""
    network, hop = 25e9 * 0.85, facts.device.spec.inter_node_latency_s
    whole_nodes = comms.strided(facts, "all_gather", GIB, 32, 1)
    assert float(whole_nodes.s) == pytest.approx(GIB * 3 / 4 / network + 3 * hop)
    one_rank_per_node = comms.strided(facts, "all_gather", GIB, 4, 8)  # eight such groups share a node's cards
    assert float(one_rank_per_node.s) == pytest.approx(8 * GIB * 3 / 4 / network + 3 * hop)
    twice = comms.strided(facts, "all_reduce", GIB, 4, 8)
    assert float(twice.s) == pytest.approx(16 * GIB * 3 / 4 / network + 6 * hop)
    exchange = comms.strided(facts, "all_to_all", GIB, 32, 1)  # what one rank sends; 8 ranks leave 3/4 of it each
    assert float(exchange.s) == pytest.approx(GIB * 3 / 4 * 8 / network + 3 * hop)
    assert int(whole_nodes.weakest) == Basis.ASSUMED, "nobody measured the 0.85"


def test_an_exchange_that_each_domain_takes_in_once_by_hand(facts: Facts) -> None:
    """Eight GPUs a domain send what leaves it through the node's cards; inside, the measured table."""
    spec, inside = facts.device.spec, np.asarray([8, 8, 4])
    found = comms.exchange_through_domains(facts, GIB / 8, GIB / 4, inside, np.asarray([1, 4, 2]))
    local = [float(facts.device.collective("all_to_all", GIB / 8, int(n)).s) for n in inside]
    network = 25e9 * 0.85
    assert found.s[0] == pytest.approx(local[0])
    assert found.s[1] == pytest.approx(GIB / 4 * 8 / network + 3 * spec.inter_node_latency_s)
    assert found.s[2] == pytest.approx(GIB / 4 * 8 / network + spec.inter_node_latency_s)
    alone = comms.exchange_through_domains(facts, GIB / 8, GIB / 4, inside[:1], np.asarray([1]))
    assert alone.s.tolist() == [local[0]]
    assert alone.weakest < Basis.ANALYTIC
    mostly_inside = comms.exchange_through_domains(facts, GIB, 1.0, inside[:1], np.asarray([2]))
    assert mostly_inside.s[0] == pytest.approx(float(facts.device.collective("all_to_all", GIB, 8).s))


def test_the_slower_of_network_and_nvlink_counts() -> None:
    fast = make_facts(nodes=2, inter_node_bytes_per_s=1e15)
    found = comms.strided(fast, "all_gather", GIB, 16, 1)
    assert found.s == pytest.approx(fast.device.collective("all_gather", GIB, 8).s, rel=1e-9)


@settings(max_examples=60)
@given(
    kind=st.sampled_from(KINDS),
    size=st.floats(0, 1e11),
    ranks=st.sampled_from([1, 2, 3, 4, 8, 16, 32]),
    stride=st.sampled_from([1, 2, 4, 8]),
    more=st.floats(1, 10),
)
def test_a_faster_network_and_fewer_bytes_are_never_slower(
    kind: str, size: float, ranks: int, stride: int, more: float
) -> None:
    facts = make_facts(nodes=4)
    faster = replace(facts, group=replace(facts.group, inter_node_bytes_per_s=25e9 * more))
    here = comms.strided(facts, kind, size, ranks, stride).s
    assert comms.strided(faster, kind, size, ranks, stride).s <= here * (1 + 1e-12)
    assert np.isfinite(here)
    width, stages = np.asarray([stride]), np.asarray([ranks])
    hops = [float(comms.pipeline_hops(f, size, width, stages, np.asarray([2]), 3).s[0]) for f in (faster, facts)]
    assert hops[0] <= hops[1]


def test_point_to_point_by_hand(facts: Facts) -> None:
    spec = facts.device.spec
    inside, across = comms.point_to_point(facts, GIB, [False, True]).s
    assert inside == pytest.approx(GIB / spec.nvlink_bytes_per_s + 5e-6)
    assert across == pytest.approx(GIB / (25e9 * 0.85 / 8) + spec.inter_node_latency_s)


def test_a_rack_scale_domain_has_the_cards_of_all_its_nodes() -> None:
    facts = make_facts(nodes=4)
    rack = replace(facts, group=replace(facts.group, nvlink_domain_gpus=16))
    assert comms.domain_bandwidth(rack) == 2 * comms.domain_bandwidth(facts)


def test_replicas_in_a_domain_by_hand(facts: Facts) -> None:
    """Eight GPUs a domain; ranks tensor fastest, then context, then pipeline, then data."""
    columns = np.asarray(
        # tp cp pp dp   ranks with the same weights that share a domain
        [
            (1, 1, 1, 16, 8),
            (2, 1, 1, 8, 4),
            (2, 2, 1, 8, 4),  # both context ranks, two data ranks
            (1, 1, 4, 8, 2),  # pipeline stages lie between the replicas
            (2, 8, 1, 2, 4),  # half of a context group, so no second replica
            (8, 2, 1, 2, 1),
        ]
    )
    tp, cp, pp, dp, expected = columns.T
    assert comms.replicas_in_domain(facts, tp, cp, pp, dp).tolist() == expected.tolist()


def borders(facts: Facts, width: int, stages: int, replicas: int) -> int:
    return int(comms.borders_across(facts, *(np.asarray([n]) for n in (width, stages, replicas)))[0])


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
    inside, across = comms.point_to_point(facts, GIB, [False, True]).s
    columns = [np.asarray([n]) for n in (2, 16, 1)]
    assert float(comms.pipeline_hops(facts, GIB, *columns, 1).s[0]) == pytest.approx(12 * inside + 3 * across)
    assert float(comms.pipeline_hops(facts, GIB, *columns, 5).s[0]) == pytest.approx(12 * inside + 7 * across)
    one_node = [np.asarray([n]) for n in (2, 4, 4)]
    assert float(comms.pipeline_hops(facts, GIB, *one_node, 5).s[0]) == pytest.approx(7 * inside)
    alone = [np.asarray([n]) for n in (2, 1, 4)]
    assert float(comms.pipeline_hops(facts, GIB, *alone, 5).s[0]) == 0.0
