"""Protects communication across nodes: measured inside an NVLink domain, by hand across, monotone in everything."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiles.records import Basis
from simulator.cost import comms, stage_hops
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
    hops = [float(stage_hops.pipeline_hops(f, size, width, stages, np.asarray([2]), 3).s[0]) for f in (faster, facts)]
    assert hops[0] <= hops[1]


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
