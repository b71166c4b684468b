"""Protects even work: ranks get equally many tokens in every step, and no row leaves its step."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from executor.rl.dealing import deal
from profiles.workload import LengthDistribution


@given(st.lists(st.integers(1, 500), min_size=1, max_size=60).map(tuple), st.integers(1, 6), st.integers(1, 4))
def test_every_row_is_dealt_once_and_tokens_of_a_step_differ_by_one_round_at_most(lengths, num_ranks, num_steps):
    hands = deal(lengths, num_ranks, num_steps)
    assert sorted(row for hand in hands for row in hand.rows) == list(range(len(lengths)))
    for step in range(num_steps):
        mine = [[row for row in hand.rows if row % num_steps == step] for hand in hands]
        padded = {
            len(rows) + sum(row % num_steps == step for row in hand.fillers)
            for rows, hand in zip(mine, hands, strict=True)
        }
        assert len(padded) == 1  # SPMD: as many rows on every rank
        tokens = [sum(lengths[row] for row in rows) for rows in mine]
        longest = sorted((lengths[row] for rows in mine for row in rows), reverse=True)
        rounds = [longest[i : i + num_ranks] for i in range(0, len(longest), num_ranks)]
        widest = max((r[0] - (r[-1] if len(r) == num_ranks else 0) for r in rounds), default=0)
        assert max(tokens) - min(tokens) <= widest


@pytest.mark.parametrize("num_ranks", [2, 8, 32])
def test_ranks_have_the_tokens_that_are_priced(num_ranks):
    """The simulator prices ranks of equal tokens; consecutive rows are not even."""
    lengths = LengthDistribution("lognormal", 1200.0, 8000).sample(64 * num_ranks)
    lengths = tuple(np.random.default_rng(0).permutation(lengths).astype(int).tolist())
    dealt = np.array([sum(lengths[row] for row in hand.rows) for hand in deal(lengths, num_ranks, 1)])
    in_order = np.array(lengths).reshape(num_ranks, -1).sum(1)
    assert dealt.max() / dealt.mean() - 1 < 0.01 < in_order.max() / in_order.mean() - 1
