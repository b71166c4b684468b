"""Protects the all-to-all of a mixture: its rows, each once to a node, and never beyond a rack that holds all."""

from dataclasses import replace

import numpy as np
import pytest

from profiles.models.catalogue import load_model
from profiles.records import Basis
from simulator.cost import comms, expert_exchange
from simulator.facts import ExpertDispatch, Facts, Implementation
from tests.builders import MOE, make_facts

SHAPE = load_model(MOE)  # 60 experts of 1408, 4 per token, shared 5632


ONE = np.asarray([1], dtype=np.int64)


TOKENS = np.asarray([4096.0])


def test_dispatch_and_combine_is_two_exchanges_of_the_routed_rows() -> None:
    facts = make_facts(model=MOE, nodes=2)
    sent = 4096 * 4 * SHAPE.hidden * 2.0
    for ep in (4, 20):
        found = expert_exchange.dispatch_and_combine(facts, SHAPE, TOKENS, ONE, ep * ONE).s
        assert found == pytest.approx(2 * comms.strided(facts, "all_to_all", [sent], ep * ONE, ONE).s)
    assert expert_exchange.dispatch_and_combine(facts, SHAPE, TOKENS, ONE, ONE).s == [0.0]


def dispatched(facts: Facts, dispatch: ExpertDispatch, ep: int, tokens: float = 4096.0) -> float:
    """Seconds of DeepSeek-V3's exchange of experts, there and back."""
    built = replace(facts, implementation=Implementation(expert_dispatch=dispatch))
    found = expert_exchange.dispatch_and_combine(built, load_model("deepseek-v3"), np.asarray([tokens]), ONE, ep * ONE)
    return float(found.s[0])


def test_deepep_takes_its_measured_time_inside_a_node() -> None:
    """The table of dispatch and combine, not a rate of our own: twice as long as NCCL's for a copy to each rank."""
    facts = make_facts(device="h100-80gb-sxm", nodes=2)
    table = float(facts.device.moe_all_to_all(4096.0, 7168, 8, 256, 8).s)
    assert facts.device.moe_all_to_all(4096.0, 7168, 8, 256, 8).weakest == Basis.MEASURED
    assert dispatched(facts, "deepep", 8) == pytest.approx(table)
    assert dispatched(facts, "hybrid", 8) < 0.8 * table


def test_a_token_goes_once_to_each_node_that_has_some_of_its_experts() -> None:
    """Four of eight nodes at most: half of what eight experts, each with a copy of its own, would send."""
    facts, shape = make_facts(device="h100-80gb-sxm", nodes=8, inter_node_bytes_per_s=400e9), load_model("deepseek-v3")
    assert shape.moe is not None
    nodes = float(expert_exchange.domains_reached(shape.moe, np.asarray(8)))
    sent = 8 * 4096 * nodes * (7 / 8) * shape.hidden * 2.0  # of the eight ranks of a node
    wire = sent / comms.domain_bandwidth(facts) + 7 * facts.device.spec.inter_node_latency_s
    for dispatch in ("deepep", "hybrid"):
        assert dispatched(facts, dispatch, 64) == pytest.approx(2 * wire)
    assert dispatched(facts, "all-to-all", 64) > 1.8 * 2 * wire


def test_sixty_four_ranks_of_one_rack_never_touch_the_network() -> None:
    """GB200: 72 GPUs share an NVLink domain, whatever the cards of their nodes give."""
    facts = make_facts(device="gb200", nodes=18, gpus_per_node=4)
    assert facts.device.spec.nvlink_domain_gpus == 72
    rack = replace(facts.group, nvlink_domain_gpus=72)
    slow, fast = (replace(facts, group=replace(rack, inter_node_bytes_per_s=rate)) for rate in (1e9, 400e9))
    for dispatch in ("all-to-all", "deepep", "hybrid"):
        assert dispatched(slow, dispatch, 64) == dispatched(fast, dispatch, 64)
        nodes_apart = replace(facts, group=replace(rack, nvlink_domain_gpus=4))
        assert dispatched(nodes_apart, dispatch, 64) > dispatched(fast, dispatch, 64)


def test_experts_of_a_few_groups_are_on_a_few_nodes() -> None:
    """DeepSeek-V3: eight experts of four of eight groups; on eight nodes a token goes to at most four of them."""
    shape = load_model("deepseek-v3")
    assert shape.moe is not None
    grouped, free = shape.moe, replace(shape.moe, num_groups=1, groups_per_token=1)
    nodes = np.asarray([1, 2, 4, 8, 16])
    found, without = (expert_exchange.domains_reached(part, nodes) for part in (grouped, free))
    assert np.all(found <= without + 1e-9)
    assert found[0] == pytest.approx(1.0, abs=0.01)
    assert 3.5 < found[3] <= 4.0 < 5.0 < without[3]
    assert found[4] <= 8.0
