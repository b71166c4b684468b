"""Protects where pools lie: apart, slices in a node, and inside pods wherever some order of the pools allows it."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mapper.search.place import first_gpus, pod_nodes, pods_of, straddles
from profiles.hardware import ClusterGroup


def cluster(nodes: int, pod: int = 0, domain: int = 8) -> ClusterGroup:
    return ClusterGroup("a100-80gb-sxm", nodes, 8, 25e9, domain, pod)


def test_without_pods_the_largest_lie_first() -> None:
    assert first_gpus([4, 16, 2, 8], cluster(4), 4) == [24, 0, 28, 16]


def test_by_hand_a_pool_is_moved_to_where_it_stays_in_a_pod() -> None:
    """Pods of four nodes: six nodes take two pods and leave two nodes in the second, where the pool of two goes."""
    starts = first_gpus([3 * 8, 2 * 8, 6 * 8], cluster(12, pod=4), 12)
    assert starts == [8 * 8, 6 * 8, 0]
    assert not any(straddles(s, n, cluster(12, 4)) for s, n in zip(starts, [24, 16, 48], strict=True))


def test_spare_nodes_are_skipped_where_that_saves_a_split() -> None:
    assert first_gpus([3 * 8, 3 * 8], cluster(8, pod=4), 8) == [0, 32]
    assert first_gpus([3 * 8, 3 * 8], cluster(8, pod=4), 6) == [0, 24]  # two nodes stay free at the end
    assert pods_of(24, 24, cluster(8, pod=4)) == 2


def test_a_wide_nvlink_domain_is_a_pod() -> None:
    assert (pod_nodes(cluster(8)), pod_nodes(cluster(8, domain=32)), pod_nodes(cluster(8, 2, 32))) == (0, 4, 2)


@given(
    st.lists(st.sampled_from([1, 2, 4, 8, 16, 24, 40]), min_size=1, max_size=5), st.integers(0, 6), st.integers(0, 4)
)
def test_pools_fit_apart_and_slices_in_a_node(sizes: list[int], spare: int, pod: int) -> None:
    slices = -(-sum(n for n in sizes if n < 8) // 8)
    nodes = sum(n // 8 for n in sizes if n >= 8) + slices + spare
    group = cluster(nodes, pod)
    starts = first_gpus(sizes, group, nodes)
    taken = [set(range(s, s + n)) for s, n in zip(starts, sizes, strict=True)]
    assert not any(a & b for a, b in itertools.combinations(taken, 2))
    assert max(max(t) for t in taken) < nodes * 8
    for s, n in zip(starts, sizes, strict=True):
        assert s // 8 == (s + n - 1) // 8 if n < 8 else s % 8 == 0
    whole = [n // 8 for n in sizes if n >= 8]
    if pod and not spare and len(whole) <= 4:
        fewest = (
            min(
                sum(straddles(8 * at, 8 * n, group) for at, n in zip(_row(order), order, strict=True))
                for order in itertools.permutations(whole)
            )
            if whole
            else 0
        )
        assert sum(straddles(s, n, group) for s, n in zip(starts, sizes, strict=True) if n >= 8) <= fewest


def _row(sizes: tuple[int, ...]) -> list[int]:
    return [sum(sizes[:i]) for i in range(len(sizes))]


@pytest.mark.parametrize("pod", [0, 2])
def test_no_pools_of_whole_nodes(pod: int) -> None:
    assert first_gpus([2, 4, 1], cluster(1, pod), 1) == [4, 0, 6]
