"""Protects what is searched: the paper's counts of placements, the named ones, and the pool sizes that pack."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mapper.problem import make_problem, named_partition, pool_sizes, set_partitions, sets_of
from profiles.errors import InputError
from tests.builders import make_facts

ROLES = ("actor", "critic", "reference", "reward", "cost")


@pytest.mark.parametrize(("num_models", "placements"), [(1, 1), (2, 2), (3, 5), (4, 15), (5, 52)])
def test_number_of_placements_is_the_bell_number_of_the_paper(num_models: int, placements: int) -> None:
    found = list(set_partitions(ROLES[:num_models]))
    assert len({frozenset(p) for p in found}) == len(found) == placements
    for partition in found:
        assert sorted(itertools.chain(*partition)) == sorted(ROLES[:num_models])
        assert all(tuple(sorted(s, key=ROLES.index)) == s for s in partition)


@pytest.mark.parametrize(("algorithm", "placements"), [("remax", 5), ("ppo", 15), ("safe-rlhf", 52), ("grpo", 1)])
def test_an_unrestricted_problem_has_them_all(algorithm: str, placements: int) -> None:
    problem = make_problem(make_facts(algorithm))
    assert len(problem.partitions) == placements
    assert len(problem.groups) == 2 ** len(problem.roles) - 1


@pytest.mark.parametrize(
    ("name", "sets"),
    [
        ("colocate", (("actor", "critic", "reference", "reward"),)),
        ("split", (("actor", "reference"), ("critic", "reward"))),
        ("standalone", (("actor",), ("critic",), ("reference",), ("reward",))),
    ],
)
def test_named_placements(name: str, sets: tuple[tuple[str, ...], ...]) -> None:
    facts = make_facts("ppo")
    assert [sets_of(p) for p in make_problem(facts, name).partitions] == [sets]
    assert sets in [sets_of(p) for p in make_problem(facts).partitions]


def test_refusals_say_what_is_known() -> None:
    with pytest.raises(InputError, match="known: any, colocate, split, standalone"):
        make_problem(make_facts(), "scattered")
    with pytest.raises(InputError, match="even halves are defined for the split placement, not for 'colocate'"):
        make_problem(make_facts(), "colocate", even=True)
    with pytest.raises(InputError, match="no critic, reward or cost model to split off"):
        named_partition("grpo", ("actor", "reference"), "split")
    assert make_problem(make_facts(), "split", even=True).equal_sizes


def test_pool_sizes_are_slices_that_divide_a_node_and_whole_nodes() -> None:
    assert pool_sizes(1, 8) == (1, 2, 4, 8)
    assert pool_sizes(3, 8) == (1, 2, 4, 8, 16, 24)
    assert pool_sizes(2, 6) == (1, 2, 6, 12)
    assert pool_sizes(2, 1) == (1, 2)


@given(nodes=st.integers(1, 4), per_node=st.sampled_from([1, 2, 4, 6, 8]), data=st.data())
def test_pools_that_fit_in_sum_never_straddle_a_node_when_placed_largest_first(
    nodes: int, per_node: int, data: st.DataObject
) -> None:
    """Why the search needs no packing rule."""
    chosen: list[int] = []
    while fitting := [n for n in pool_sizes(nodes, per_node) if n + sum(chosen) <= nodes * per_node]:
        chosen.append(data.draw(st.sampled_from(fitting)))
        if len(chosen) == 5:
            break
    first = 0
    for n in sorted(chosen, reverse=True):
        inside = first // per_node == (first + n - 1) // per_node
        assert inside or (first % per_node == 0 and n % per_node == 0), chosen
        first += n
    assert first <= nodes * per_node
