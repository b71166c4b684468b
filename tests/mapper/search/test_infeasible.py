"""Protects the answer "nothing fits": it names the role, the need, what there is, and how many GPUs would do."""

from dataclasses import replace

import pytest

from mapper.model.instance import make_instance
from mapper.problem import make_problem
from mapper.request import SearchRequest
from mapper.search.find_plan import find_plan
from mapper.search.incumbent import greedy
from mapper.search.infeasible import MAX_NODES, explain_infeasible, fewest_gpus, smallest_need_bytes
from profiles.errors import InfeasibleError
from profiles.units import GIB
from simulator.facts import Facts
from tests.builders import make_facts, tiny_facts

# The paper's lower bound (18 bytes of a trained parameter, 2 of a frozen one, 80 GB) and its smallest runs of PPO.
STARTS = [
    pytest.param("llama-2-7b", 3.4, 8, id="7b"),
    pytest.param("llama-2-13b", 6.5, 16, id="13b"),
    pytest.param("codellama-34b", 16.9, 32, id="34b"),
    pytest.param("llama-2-70b", 34.5, 64, id="70b", marks=pytest.mark.long),
]


@pytest.mark.parametrize(("model", "lower_bound", "paper"), STARTS)
def test_fewest_gpus_lie_between_the_papers_bound_and_its_smallest_runs(
    model: str, lower_bound: float, paper: int
) -> None:
    fewest = fewest_gpus(make_problem(make_facts("ppo", model)))
    assert fewest is not None
    assert lower_bound <= fewest <= paper


def on_nodes(facts: Facts, nodes: int) -> Facts:
    return replace(facts, group=replace(facts.group, nodes=nodes))


@pytest.mark.parametrize(
    ("algorithm", "model", "start"),
    [
        pytest.param("ppo", "codellama-34b", 1, marks=pytest.mark.slow),
        pytest.param("ppo", "llama-2-70b", 2, marks=pytest.mark.long),
        pytest.param("remax", "llama-2-70b", 1, marks=pytest.mark.long),
    ],
)
def test_the_fewest_do_fit_and_one_node_less_does_not(algorithm: str, model: str, start: int) -> None:
    facts = on_nodes(make_facts(algorithm, model), start)
    with pytest.raises(InfeasibleError) as error:
        find_plan(SearchRequest(facts))
    fewest = error.value.fewest_gpus
    assert fewest is not None
    assert str(fewest) in str(error.value)
    assert find_plan(SearchRequest(on_nodes(facts, fewest // 8), runners_up=False)).status == "optimal"
    if fewest // 8 - 1 > start:  # on as many as it started with it was refused already
        with pytest.raises(InfeasibleError):
            find_plan(SearchRequest(on_nodes(facts, fewest // 8 - 1)))


def test_from_a_cluster_that_fits_the_fewest_are_found_below_it() -> None:
    assert fewest_gpus(make_problem(make_facts("ppo", nodes=3))) == 8


def test_one_role_alone_is_too_much() -> None:
    facts = make_facts("ppo", "llama-2-70b", gpus_per_node=4)
    problem = make_problem(facts)
    need = smallest_need_bytes(problem, "actor")
    assert need > facts.memory_capacity_bytes
    assert need > facts.roles["actor"].shape.num_params * 18 / 4
    message = str(explain_infeasible(problem))
    assert f"actor (llama-2-70b) alone needs at least {need / GIB:.1f} GiB per GPU" in message
    assert "there are 79.2 GiB per GPU on 4 x a100-80gb-sxm" in message


def test_each_fits_alone_but_not_together() -> None:
    facts = make_facts("ppo", "llama-2-13b", gpus_per_node=4)
    message = str(explain_infeasible(make_problem(facts)))
    assert "each role fits alone, but not all together" in message
    assert "the fewest GPUs that would do: 8" in message


def test_a_need_that_just_fits_is_a_plan() -> None:
    facts = tiny_facts("grpo", 2, 64.0)
    need = smallest_need_bytes(make_problem(facts), "actor")
    for room, fits in ((2**21, True), (-(2**21), False)):
        spec = replace(facts.device.spec, memory_bytes=int(need) + room)
        snug = replace(facts, device=facts.device.with_spec(spec))
        assert (greedy(make_instance(make_problem(snug)))[0] is not None) is fits


def test_no_number_of_gpus_would_do() -> None:
    """A GPU smaller than the reserve."""
    facts = tiny_facts("grpo", 2, 0.5)
    with pytest.raises(InfeasibleError, match=f"not even {MAX_NODES} nodes would do") as error:
        find_plan(SearchRequest(facts))
    assert error.value.fewest_gpus is None


def test_room_for_the_reserve_and_little_else() -> None:
    with pytest.raises(InfeasibleError, match="alone needs at least"):
        find_plan(SearchRequest(tiny_facts("ppo", 2, 1.0)))
