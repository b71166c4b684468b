"""Protects the cut of packed sequences among context-parallel ranks: nothing lost, nothing twice, work even."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tensordict import TensorDict

from executor.rl.context_parallel import chunks_of_sequence, part_of, places_of
from executor.rl.packing import pack


def batch(lengths, targets):
    """Rows of these lengths, right-padded, of which ``targets`` last tokens each are to be predicted."""
    widest = max(lengths)
    mask = torch.arange(widest)[None] < torch.tensor(lengths)[:, None]
    tokens = (torch.arange(len(lengths) * widest).view(-1, widest) + 1) * mask
    counted = mask & (torch.arange(widest)[None] >= torch.tensor(lengths)[:, None] - targets)
    rows = {"tokens": tokens, "token_mask": mask, "target_mask": counted[:, 1:]}
    return TensorDict(rows, batch_size=[len(lengths)])


def parts_of(rows, num_ranks, **options):
    each = chunks_of_sequence(num_ranks)
    (whole,) = pack(rows, 1, [range(len(rows))], multiple=each, each=each, **options)
    return whole, [part_of(whole, i, num_ranks) for i in range(num_ranks)]


def test_a_rank_has_an_early_and_a_late_chunk_of_every_sequence():
    assert places_of((8, 4), 0, 2).tolist() == [0, 1, 6, 7, 8, 11]
    assert places_of((8, 4), 1, 2).tolist() == [2, 3, 4, 5, 9, 10]


def test_sequences_are_padded_to_whole_chunks_and_fillers_follow():
    whole, parts = parts_of(batch([5, 3], 2), 2, size=14)
    assert whole.lengths == (8, 4, 4)
    assert whole.tokens[0, :8].tolist() == [1, 2, 3, 4, 5, 0, 0, 0]
    assert whole.positions[0].tolist() == [*range(8), *range(4), *range(4)]
    assert [part.positions[0].tolist() for part in parts] == [[0, 1, 6, 7, 0, 3, 0, 3], [2, 3, 4, 5, 1, 2, 1, 2]]
    assert all(part.lengths == whole.lengths for part in parts)


def test_the_target_of_a_chunks_last_token_lies_in_another_chunk():
    """Token 3 (position 2, rank 1) is predicted at position 1, which rank 0 has."""
    _, (first, second) = parts_of(batch([4], 3), 2)
    assert (first.tokens[0, first.before].tolist(), first.targets.tolist()) == ([1], [2])
    assert (second.tokens[0, second.before].tolist(), second.targets.tolist()) == ([2, 3], [3, 4])
    assert (first.last.tolist(), second.last.tolist()) == ([1], [-1])


def test_a_rank_without_targets_predicts_one_that_does_not_count():
    _, (first, second) = parts_of(batch([8], 2), 2)  # predicted at positions 5 and 6
    assert (first.has_targets, second.has_targets) == (True, True)
    _, (first, second) = parts_of(batch([8], 1), 2)
    assert (first.has_targets, second.has_targets, second.before.shape) == (True, False, (1,))
    assert not second.spread(torch.ones(1)).any()


def test_one_rank_has_the_micro_batch_as_it_is():
    whole, (part,) = parts_of(batch([5, 3], 2), 1)
    assert part is whole
    assert whole.lengths == (5, 3)


@given(
    lengths=st.lists(st.integers(2, 40), min_size=1, max_size=6),
    targets=st.integers(1, 20),
    num_ranks=st.sampled_from([2, 3, 4]),
)
def test_every_token_and_every_target_is_on_one_rank(lengths, targets, num_ranks):
    whole, parts = parts_of(batch(lengths, targets), num_ranks)
    held = torch.cat([places_of(whole.lengths, i, num_ranks) for i in range(num_ranks)])
    assert sorted(held.tolist()) == list(range(whole.tokens.shape[1]))
    assert torch.equal(torch.cat([part.tokens[0] for part in parts]), whole.tokens[0, held])
    assert len({part.tokens.shape for part in parts}) == 1
    together = sum(part.spread(part.targets) for part in parts)
    assert torch.equal(together, whole.spread(whole.targets))
    before = sum(part.spread(part.tokens[0, part.before]) for part in parts)
    assert torch.equal(before, whole.spread(whole.tokens[0, whole.before]))
    for row, last in enumerate(whole.last.tolist()):
        ends = [part.tokens[0, part.last[row]] for part in parts if part.last[row] >= 0]
        assert ends == [whole.tokens[0, last]]


@pytest.mark.parametrize("num_ranks", [2, 4, 8])
def test_ranks_see_equally_many_pairs_of_tokens(num_ranks):
    seen = {int((places_of((16 * num_ranks,), i, num_ranks) + 1).sum()) for i in range(num_ranks)}
    assert len(seen) == 1
