"""Which sizes the operators of a model have: what a profile of a machine for these models has to cover."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from profiles.models.shape import ModelShape

DEGREES = (1, 2, 4, 8)
"""Tensor-parallel degrees whose slices count."""


def linear_shapes(shape: ModelShape, degrees: Iterable[int] = DEGREES) -> set[tuple[int, int]]:
    """``(n, k)`` of dense linear layers and vocabulary head of a rank, at each degree that divides the heads."""
    found = set()
    h = shape.hidden
    for t in degrees:
        if not shape.max_tensor_parallel_ok(t):
            continue
        kv = shape.head_dim * max(shape.num_kv_heads // t, 1)
        if shape.mla is None:
            found |= {(shape.q_width // t + 2 * kv, h), (h, shape.q_width // t)}
        if shape.num_dense_layers or shape.moe is None:
            found |= {((2 if shape.gated_mlp else 1) * shape.ffn // t, h), (h, shape.ffn // t)}
        found.add((shape.vocab // t, h))
    return {(n, k) for n, k in found if n > 0 and k > 0}


def head_shapes(shape: ModelShape, degrees: Iterable[int] = DEGREES) -> set[tuple[int, int, int]]:
    """``(head_dim, heads, kv_heads)`` of one rank; none for latent attention, which has tables of its own."""
    if shape.mla is not None:
        return set()
    return {
        (shape.head_dim, shape.num_heads // t, max(shape.num_kv_heads // t, 1))
        for t in degrees
        if shape.max_tensor_parallel_ok(t)
    }


def powers_of_two(low: int, high: int) -> list[int]:
    """Powers of two from the last one that is at most ``low`` to the first one that is at least ``high``."""
    first, last = max(low, 1).bit_length() - 1, max(high - 1, 0).bit_length()
    return [2**i for i in range(first, last + 1)]
