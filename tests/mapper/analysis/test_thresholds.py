"""Protects thresholds: just below the old placement wins, just above the other one, and the nearest flip comes first.

Made-up instances put the flip where the test says; of a small job both sides are searched in full.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mapper.analysis.shortlist import Shortlist, make_shortlist
from mapper.analysis.thresholds import BISECTIONS, REACH, Dimension, Flip, Scan, changed, scan
from mapper.deadline import NEVER, Deadline
from mapper.model.instance import make_instance
from mapper.problem import Placement, make_problem
from mapper.request import SearchRequest
from mapper.search.best import best_choice
from mapper.search.find_plan import find_plan
from mapper.search.place import placement_of
from profiles.workload import LengthDistribution
from tests.builders import TINY, make_facts, on_toy, tiny_facts, toy_instance, workload
from tests.draws import draws
from tests.work import HANGS_S

if TYPE_CHECKING:
    from mapper.model.instance import Instance
    from simulator.facts import Facts

FACTS = tiny_facts("grpo", 2, 20.0)
TOGETHER, APART = on_toy(("actor", "reference")), on_toy(("actor",), ("reference",))
BRACKET = REACH ** (1 / 2**BISECTIONS) * (1 + 1e-9)
"""How many times as far as the factor that holds the one that wins may be."""


class Made(Shortlist):
    """The reference takes 1,000 ticks on one GPU, and on both 900 where ``flips`` says so, else 1,100.

    Apart each role has one of two GPUs, together both have both: so together wins exactly where ``flips`` says so.
    ``flips``: by dimension the factors below and above which it does.
    """

    def __init__(self, **flips: tuple[float, float]) -> None:
        x = toy_instance("grpo", ("actor", "reference"), 0, num_gpus=2, sizes=(1, 2), most_rows=1)
        super().__init__(make_problem(FACTS), x)
        object.__setattr__(self, "flips", flips)

    def instance(self, facts: Facts, partitions: tuple[Placement, ...]) -> Instance:
        factors = {
            "network": facts.group.inter_node_bytes_per_s / FACTS.group.inter_node_bytes_per_s,
            "memory": facts.device.spec.memory_bytes_per_s / FACTS.device.spec.memory_bytes_per_s,
        }
        wins = any(factors[d] < low or factors[d] > high for d, (low, high) in self.flips.items())  # type: ignore[attr-defined]
        none, on_both = np.asarray([0, 0]), 900 if wins else 1100
        ticks = {
            "actor": {"transition": none, "generate_sequences": none + 50, "update_actor": none + 50},
            "reference": {"compute_ref_log_prob": np.asarray([1000, on_both])},
            "controller": {"compute_reward": none[:1], "compute_advantage": none[:1]},
        }
        free = dict.fromkeys(("actor", "reference"), none)
        return replace(self.base, partitions=partitions, ticks=ticks, resident_mib=free, transient_mib=free)


def scanned(shortlist: Shortlist, won: Placement, rivals: tuple[Placement, ...], *dimensions: Dimension) -> Scan:
    return scan(shortlist, won, rivals, NEVER, dimensions)


@settings(max_examples=draws(6))
@given(st.floats(1.001, 7.999))
def test_the_flip_is_between_the_last_factor_that_holds_and_the_first_that_wins(at: float) -> None:
    (flip,) = scanned(Made(network=(0.0, at)), APART, (TOGETHER,), "network").flips
    assert flip.rival == TOGETHER
    assert 1.0 <= flip.holds <= at < flip.wins <= 8.0
    assert flip.wins <= flip.holds * BRACKET
    (slower,) = scanned(Made(memory=(1 / at, 99.0)), APART, (TOGETHER,), "memory").flips
    assert 1 / 8 <= slower.wins < 1 / at <= slower.holds <= 1.0
    assert slower.holds <= slower.wins * BRACKET


def test_of_two_flips_the_nearer_one_is_reported_whichever_way() -> None:
    up = scanned(Made(network=(0.2, 3.0)), APART, (TOGETHER,), "network").flips[0]
    down = scanned(Made(network=(0.4, 3.0)), APART, (TOGETHER,), "network").flips[0]
    assert up.wins == pytest.approx(3.0, rel=0.04)
    assert down.wins == pytest.approx(0.4, rel=0.04)


def test_flips_are_sorted_by_distance_and_what_never_flips_is_steady() -> None:
    found = scanned(Made(network=(0.0, 5.0), memory=(0.5, 99.0)), APART, (TOGETHER,), "network", "host", "memory")
    assert [flip.dimension for flip in found.flips] == ["memory", "network"]
    assert (found.steady, found.skipped) == (("host",), ())


def test_a_flip_beyond_reach_is_none() -> None:
    found = scanned(
        Made(network=(0.0, REACH * 1.01), memory=(0.99 / REACH, 99.0)), APART, (TOGETHER,), "network", "memory"
    )
    assert (found.flips, found.steady) == ((), ("network", "memory"))


def test_distance_is_the_same_up_and_down() -> None:
    assert Flip("network", 1.0, 4.0, TOGETHER).distance == pytest.approx(math.log(4.0))
    assert Flip("network", 1.0, 0.25, TOGETHER).distance == pytest.approx(math.log(4.0))


def test_no_time_for_any_dimension_is_said() -> None:
    late = scan(Made(), APART, (TOGETHER,), Deadline(0.0), ("network", "nodes"))
    assert late == Scan((), (), ("network", "nodes"))


def best_s(facts: Facts, placement: Placement) -> float:
    """Seconds of the best plan of one placement, of all candidates under these facts; infinite if none fits."""
    x = make_instance(replace(make_problem(facts), partitions=(placement,)))
    choice, solution = best_choice(x, 0, HANGS_S)
    return math.inf if choice is None else solution.objective_ticks * x.tick_s


def test_flips_of_a_small_job_are_those_of_searches_on_both_sides() -> None:
    """Two nodes of two GPUs: what wins on this network loses on a slower one, and on fewer or more nodes."""
    work = workload(16, 512, 512, minibatches=2)
    facts = make_facts("ppo", TINY, nodes=2, gpus_per_node=2, inter_node_bytes_per_s=18e9, work=work)
    best = find_plan(SearchRequest(facts))
    won, rivals = placement_of(best.plan), tuple(placement_of(other.plan) for other in best.runners_up)
    found = scanned(make_shortlist(SearchRequest(facts)), won, rivals, "network", "nodes")
    assert {flip.dimension for flip in found.flips} == {"network", "nodes"}
    for flip in found.flips:
        here, there = (changed(facts, flip.dimension, factor) for factor in (flip.holds, flip.wins))
        assert best_s(here, won) <= min(best_s(here, other) for other in rivals) * (1 + 1e-6)
        assert best_s(there, flip.rival) < best_s(there, won)
        assert best_s(there, flip.rival) <= min(best_s(there, other) for other in rivals) * (1 + 1e-6)
        if flip.dimension == "nodes":
            assert abs(here.group.nodes - there.group.nodes) == 1


def test_each_dimension_scales_its_own_rate_and_nothing_else() -> None:
    """Twice as fast, twice as long or twice as many."""
    before, spec = FACTS, FACTS.device.spec
    network, memory, nvlink, compute, host = (
        changed(before, d, 2.0) for d in ("network", "memory", "nvlink", "compute", "host")
    )
    assert network.group == replace(before.group, inter_node_bytes_per_s=2 * before.group.inter_node_bytes_per_s)
    assert network.device.spec == replace(spec, inter_node_latency_s=spec.inter_node_latency_s / 2)
    assert memory.device.spec == replace(spec, memory_bytes_per_s=2 * spec.memory_bytes_per_s)
    assert nvlink.device.spec == replace(spec, nvlink_bytes_per_s=2 * spec.nvlink_bytes_per_s)
    assert compute.device.spec.peak_flop_per_s == {k: 2 * v for k, v in spec.peak_flop_per_s.items()}
    assert compute.device.spec.memory_bytes_per_s == spec.memory_bytes_per_s
    assert host.generation.host_s_per_step == before.generation.host_s_per_step / 2
    assert host.device.spec == spec
    assert changed(before, "nodes", 3.0).group == replace(before.group, nodes=3)
    assert changed(before, "nodes", 0.1).group.nodes == 1
    longer = changed(before, "response", 2.0).workload
    assert longer == replace(before.workload, response=LengthDistribution.fixed(1024))


@pytest.mark.parametrize(
    ("prompts", "samples", "minibatches", "factor", "expected"),
    [
        (16, 1, 2, 2.0, 32),
        (16, 1, 2, 1.1, 18),  # 17.6 prompts: two minibatches want an even number
        (96, 2, 8, 0.3, 28),  # 28.8 prompts of two samples: a multiple of four
        (96, 2, 8, 1e-9, 4),  # never none
        (10, 4, 4, 0.5, 5),  # four samples of a prompt fill four minibatches
    ],
)
def test_prompts_stay_a_whole_number_of_minibatches(prompts, samples, minibatches, factor, expected) -> None:  # type: ignore[no-untyped-def]
    facts = replace(FACTS, workload=workload(prompts, 64, 64, samples_per_prompt=samples, minibatches=minibatches))
    found = changed(facts, "prompts", factor).workload
    assert found.prompts == expected
    assert found.num_samples % minibatches == 0
