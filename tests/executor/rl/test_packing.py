"""Protects packed micro-batches: what runs at once, without padding, every target behind the token before it."""

import pytest
import torch
from tensordict import TensorDict

from executor.rl.packing import lengths_of, pack, spans
from executor.rl.sequences import sequences_of


@pytest.mark.parametrize(
    ("rows", "tokens", "expected"),
    [
        (2, 0, [2, 2, 1]),
        (9, 0, [5]),
        (2, 10, [2, 1, 2]),  # 3 + 7, 9, 2 + 1
        (2, 1, [1, 1, 1, 1, 1]),
        (2, 12, [2, 3]),
        (2, 1000, [5]),
    ],
)
def test_a_budget_holds_real_tokens(rows, tokens, expected):
    found = spans([3, 7, 9, 2, 1], rows, tokens)
    assert [len(part) for part in found] == expected
    assert [i for part in found for i in part] == list(range(5))


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
