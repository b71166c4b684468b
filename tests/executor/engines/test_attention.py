"""Protects attention on shared sequences: ranks together compute what one computes, and gradients add up to its own."""

import pytest
import torch

from executor.engines import attention
from executor.engines.attention import packed_attention, shared_attention
from executor.rl.context_parallel import places_of


class Place:
    """A rank's place in a group; what it gathers is given."""

    def __init__(self, index, size):
        self.index, self.size = index, size


@pytest.mark.parametrize(("num_ranks", "kv_heads"), [(2, 4), (2, 2), (4, 1)])
def test_ranks_together_attend_like_one(num_ranks, kv_heads, monkeypatch):
    torch.manual_seed(0)
    lengths = (8 * num_ranks, 2 * num_ranks, 6 * num_ranks)
    q, k, v = (torch.randn(sum(lengths), n, 8, requires_grad=True) for n in (4, kv_heads, kv_heads))
    expected = packed_attention(q, k, v, lengths, 0.3)
    held = [places_of(lengths, i, num_ranks) for i in range(num_ranks)]
    gathered = torch.stack([torch.cat([k[places], v[places]], dim=1) for places in held])
    monkeypatch.setattr(attention, "gather_parts", lambda _x, _group: gathered)
    parts = [
        shared_attention(q[places], k[places], v[places], lengths, Place(i, num_ranks), 0.3)
        for i, places in enumerate(held)
    ]
    for places, part in zip(held, parts, strict=True):
        assert torch.allclose(part, expected[places], atol=1e-6)
    weights = torch.randn_like(expected)
    loss = sum((part * weights[places]).sum() for part, places in zip(parts, held, strict=True))
    mine = torch.autograd.grad(loss, (q, k, v), retain_graph=True)
    theirs = torch.autograd.grad((expected * weights).sum(), (q, k, v))
    for a, b in zip(mine, theirs, strict=True):
        assert torch.allclose(a, b, atol=1e-5)
