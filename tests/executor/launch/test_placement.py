"""Protects which node each tensor-parallel group goes to, and by which address ranks meet."""

import socket

import pytest

from executor.launch.placement import Node, first_split, num_groups, planned_nodes
from executor.records import Identity
from executor.worker.worker import RankProcess


def nodes(*sizes):
    return [Node("abcdef"[i], f"10.0.0.{i}", size) for i, size in enumerate(sizes)]


@pytest.mark.parametrize(
    ("first", "num", "together", "sizes", "found"),
    [
        (0, 8, 4, (8, 8), "aa"),
        (8, 8, 4, (8, 8), "bb"),
        (4, 8, 4, (8, 8), "ab"),
        (6, 4, 2, (8, 8), "ab"),
        (0, 8, 4, (3, 5), None),  # ranks 0 to 3 would be cut over both
        (0, 8, 1, (3, 5), "aaabbbbb"),
        (8, 16, 8, (8, 8), None),  # beyond the last node
    ],
)
def test_groups_lie_where_the_plan_numbers_them(first, num, together, sizes, found):
    assert planned_nodes(first, num, together, nodes(*sizes)) == (None if found is None else list(found))


def test_uneven_nodes_hold_fewer_groups_than_devices():
    assert [num_groups(n, nodes(3, 5)) for n in (1, 2, 4, 8)] == [8, 3, 1, 0]


def test_a_group_on_two_nodes_is_seen():
    assert first_split(list("aabb"), 2) is None
    assert first_split(list("aaab"), 2) == 2
    assert first_split(list("ab"), 1) is None


def test_ranks_meet_at_the_address_that_their_launcher_gives(monkeypatch):
    """No name is resolved: on many clusters a host's own name leads to the loopback address."""

    def refuses(name):
        raise AssertionError(f"{name} was looked up")

    monkeypatch.setattr(socket, "gethostbyname", refuses)
    rank = RankProcess(Identity("A", 0, 1), list)
    assert rank.address().startswith("tcp://127.0.0.1:")
    rank.host = "10.1.2.3"
    assert rank.address().startswith("tcp://10.1.2.3:")
