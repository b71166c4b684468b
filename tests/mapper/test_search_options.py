"""Protects what is searched beside the usual: it is found where it helps, left out where it is not allowed, and refused
where there is nothing to gain.
"""

from dataclasses import replace

import numpy as np
import pytest

from mapper.candidates.layouts import chunks
from mapper.execution_mode import GENERATOR, ExecutionMode
from mapper.model.instance import make_instance
from mapper.pins import Share
from mapper.problem import make_problem
from mapper.request import SearchRequest
from mapper.search.find_plan import find_plan
from mapper.search_options import FROZEN_OFFLOADS, OFFLOADS, USUAL, SearchOptions
from profiles.errors import InfeasibleError, InputError
from simulator.cost.pricing import role_costs
from simulator.cost.role_memory import role_memory
from simulator.feasibility import check_plan
from simulator.play.simulate import simulate
from tests.builders import TINY, make_facts, tiny_facts, workload
from tests.mapper.exhaustive import exhaustive
from tests.mapper.tables import role_table


def test_chunks_are_equal_and_micro_batches_come_in_whole_rounds() -> None:
    assert chunks(80, 8, 64, 1) == [2, 5, 10]
    assert chunks(80, 8, 64, 16) == []  # four micro-batches for eight stages
    assert chunks(80, 12, 96, 1) == []  # stages of unequal length
    assert chunks(80, 1, 64, 1) == []
    assert chunks(0, 8, 64, 1) == []


def test_interleaving_shortens_a_deep_pipeline() -> None:
    facts = make_facts("ppo", "llama-2-70b", nodes=8, inter_node_bytes_per_s=200e9)  # more hops between nodes too
    plain, chunked = (
        find_plan(SearchRequest(facts, runners_up=False, options=s)) for s in (USUAL, SearchOptions(interleaving=True))
    )
    assert {entry.training.vpp for entry in plain.plan.roles if entry.training} == {1}
    assert max(entry.training.vpp for entry in chunked.plan.roles if entry.training) > 1
    assert chunked.iteration_s < plain.iteration_s
    assert check_plan(chunked.plan, facts) == []


@pytest.mark.parametrize("mode", [ExecutionMode(), ExecutionMode(dedicated_rollout=True)])
def test_offload_holds_what_does_not_fit_otherwise_and_equals_brute_force(mode: ExecutionMode) -> None:
    roles = {"actor": TINY, "reference": TINY}
    facts = tiny_facts("grpo", 1 if not mode.dedicated_rollout else 2, 4.1, roles=roles)
    allowed, pins = SearchOptions(offload=True), (Share(("actor", "reference"), wanted=True),)
    with pytest.raises(InfeasibleError):
        find_plan(SearchRequest(facts, runners_up=False, modes=(mode,), pins=pins))
    found = find_plan(SearchRequest(facts, runners_up=False, modes=(mode,), pins=pins, options=allowed))
    assert any(entry.offload for entry in found.plan.roles)
    assert simulate(found.plan, facts).iteration_s == found.iteration_s
    x = make_instance(make_problem(facts, pins=pins, mode=mode, options=allowed))
    assert found.iteration_s == pytest.approx(exhaustive(x)[1] * x.tick_s, abs=x.rounding_s)


@pytest.mark.parametrize("dedicated_rollout", [False, True])
@pytest.mark.parametrize("role", ["actor", "critic", "reference"])
def test_every_offloaded_row_is_the_simulators(role: str, dedicated_rollout: bool) -> None:
    """Memory and times of the calls, for some rows of each choice of what is away."""
    facts = tiny_facts("ppo", 2, 20.0)
    facts = replace(facts, workload=workload(16, 64, 64, minibatches=16))  # so small that states decide
    table = role_table(
        make_problem(
            facts, mode=ExecutionMode(dedicated_rollout=dedicated_rollout), options=SearchOptions(offload=True)
        ),
        role,
        prune=False,
    )
    options = OFFLOADS if facts.dataflow.is_trained(role) else FROZEN_OFFLOADS
    assert set(np.unique(table.offload).tolist()) == set(range(len(options)))
    apart = dedicated_rollout and role == "actor"
    for i, option in enumerate(options):
        rows = np.random.default_rng(0).permutation(np.flatnonzero(table.offload == i))[:20]
        layouts = replace(table.layouts.take(rows), offload=option, separate_generation=apart)
        costs, needs = role_costs(facts, role, layouts), role_memory(facts, role, layouts)
        for key, seconds in table.durations_s.items():
            assert seconds[rows] == pytest.approx(costs[key].time.s, rel=1e-12), key
        assert table.resident_bytes[rows] == pytest.approx(np.broadcast_to(needs.resident_bytes, len(rows)))
        assert table.transient_bytes[rows] == pytest.approx(np.broadcast_to(needs.transient_bytes, len(rows)))


@pytest.mark.parametrize("memory_gib", [2.6, 3.4])
def test_pruning_with_offload_keeps_the_optimum(memory_gib: float) -> None:
    problem = make_problem(tiny_facts("remax", 2, memory_gib), options=SearchOptions(offload=True))
    pruned, whole = make_instance(problem), make_instance(problem, prune=False)
    assert pruned.num_candidates < whole.num_candidates
    assert exhaustive(pruned)[1] == exhaustive(whole)[1] > 0


def test_tensor_parallelism_leaves_the_domain_only_where_allowed() -> None:
    facts = make_facts("grpo", "llama-2-7b", nodes=2, gpus_per_node=2, work=workload(64, 512, 512, minibatches=2))
    wide = SearchOptions(tensor_parallel_across_nodes=True)
    for role, mode in (("actor", ExecutionMode()), (GENERATOR, ExecutionMode(dedicated_rollout=True))):
        near = role_table(make_problem(facts, mode=mode), role).layouts
        far = role_table(make_problem(facts, mode=mode, options=wide), role, prune=False).layouts
        degrees = [layouts.generation if role == GENERATOR else layouts.training for layouts in (near, far)]
        assert [int(d.tp.max()) for d in degrees if d is not None] == [2, 4]
    found = find_plan(SearchRequest(facts, options=wide, runners_up=False))
    assert found.iteration_s <= find_plan(SearchRequest(facts, runners_up=False)).iteration_s


def test_permissions_without_use_are_refused() -> None:
    with pytest.raises(InputError, match=r"fsdp@2.13 runs no interleaved pipelines"):
        make_problem(make_facts(training="fsdp@2.13"), options=SearchOptions(interleaving=True))
    with pytest.raises(InputError, match="there is nothing to cross"):
        make_problem(make_facts(), options=SearchOptions(tensor_parallel_across_nodes=True))
