"""Protects packed micro-batches: what runs at once, without padding, every target behind the token before it."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tensordict import TensorDict

from executor.rl.packing import in_order, lengths_of, pack, spans
from executor.rl.sequences import sequences_of


@pytest.mark.parametrize(
    ("rows", "tokens", "expected"),
    [
        (2, 0, [[0, 1], [2, 3], [4]]),
        (9, 0, [[0, 1, 2, 3, 4]]),
        (2, 11, [[2, 3], [0, 1, 4]]),  # 22 tokens, two of eleven: 9 + 2, and 7 + 3 + 1
        (2, 8, [[0, 3, 4], [2], [1]]),  # three; 6, 9 and 7, the longest in the middle
        (2, 1, [[4], [0], [2], [1], [3]]),
        (2, 1000, [[0, 1, 2, 3, 4]]),
    ],
)
def test_a_budget_is_dealt_evenly(rows, tokens, expected):
    assert [list(part) for part in spans([3, 7, 9, 2, 1], rows, tokens)] == expected


@given(
    lengths=st.lists(st.integers(1, 50), min_size=1, max_size=30), budget=st.integers(50, 200), num=st.integers(0, 5)
)
def test_dealing_keeps_every_row_and_leaves_little_uneven(lengths, budget, num):
    found = spans(lengths, 1, budget, num)
    assert sorted(i for part in found for i in part) == list(range(len(lengths)))
    assert len(found) == min(max(-(-sum(lengths) // budget), num), len(lengths))
    tokens = [sum(lengths[i] for i in part) for part in found]
    assert max(tokens) - min(tokens) <= max(lengths)
    assert max(tokens) < budget + max(lengths)


def test_outputs_go_back_to_the_order_of_the_batch():
    part, first = rows()
    found = pack(part, first, [[1], [0]], num=3)
    outputs = [micro.spread(micro.targets) for micro in found]
    assert in_order(outputs, found).tolist() == [[13, 0, 0], [22, 23, 24]]


def rows():
    """Two rows: prompts of 2 and 1 tokens, responses of 1 and 3."""
    batch = TensorDict(
        {
            "prompts": torch.tensor([[11, 12], [0, 21]]),
            "prompt_mask": torch.tensor([[True, True], [False, True]]),
            "responses": torch.tensor([[13, 0, 0], [22, 23, 24]]),
            "response_mask": torch.tensor([[True, False, False], [True, True, True]]),
        },
        batch_size=[2],
    )
    return sequences_of(batch)


def test_sequences_stand_one_after_another_and_targets_behind_their_tokens():
    part, first = rows()
    assert lengths_of(part) == [3, 4]
    (micro,) = pack(part, first, [range(2)])
    assert micro.tokens.tolist() == [[11, 12, 13, 21, 22, 23, 24]]
    assert micro.positions.tolist() == [[0, 1, 2, 0, 1, 2, 3]]
    assert micro.lengths == (3, 4)
    assert micro.targets.tolist() == [13, 22, 23, 24]
    assert micro.tokens[0, micro.before].tolist() == [12, 21, 22, 23]
    assert micro.tokens[0, micro.last].tolist() == [13, 24]
    assert micro.spread(micro.targets).tolist() == [[13, 0, 0], [22, 23, 24]]


def test_micro_batches_of_one_size_and_number_where_ranks_need_them():
    part, first = rows()
    found = pack(part, first, [range(1), range(1, 2)], multiple=3, size=4, num=3)
    assert [micro.tokens.shape[1] for micro in found] == [6, 6, 6]
    assert [micro.lengths for micro in found] == [(3, 3), (4, 2), (3, 3)]
    assert [micro.num_real for micro in found] == [1, 1, 0]
    assert not found[2].rows["target_mask"].any()
    assert found[2].spread(torch.ones(1)).shape == (1, 3)  # one result, which no mask lets through
