"""Protects which groups dynamic sampling keeps, and how batches of different widths become one."""

import torch
from hypothesis import given
from hypothesis import strategies as st
from tensordict import TensorDict

from executor.rl.dynamic_sampling import joined, varied


@given(st.lists(st.tuples(st.sampled_from([0.0, 0.5, 1.0]), st.integers(0, 3)), min_size=1, max_size=12))
def test_rows_are_kept_whose_group_has_two_scores(rows):
    scores, groups = zip(*rows, strict=True)
    expected = [len({s for s, g in rows if g == mine}) > 1 for mine in groups]
    assert varied(torch.tensor(scores), torch.tensor(groups)).tolist() == expected


def test_answers_of_other_lengths_are_padded_with_none():
    narrow = TensorDict({"answers": torch.tensor([[1]]), "scores": torch.tensor([1.0])}, batch_size=[1])
    wide = TensorDict({"answers": torch.tensor([[2, 3]]), "scores": torch.tensor([0.0])}, batch_size=[1])
    found = joined([narrow, wide])
    assert found["answers"].tolist() == [[1, -1], [2, 3]]
    assert found["scores"].tolist() == [1.0, 0.0]
