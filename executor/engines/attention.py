"""Causal attention over packed sequences: each one by torch's fused kernel, without a mask of all by all.

On a GPU in 16 bits all sequences are one launch; elsewhere each is its own.

Under context parallelism a sequence is cut into ``2 c`` chunks, and rank ``r`` has the queries of chunks ``r`` and
``2 c - 1 - r``, together as much work as any other rank's; keys and values of all ranks are gathered (Llama 3, section
3.3.2).
"""

from __future__ import annotations

import inspect
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch.nn.attention.bias import causal_lower_right
from torch.nn.attention.varlen import varlen_attn

from executor.collectives import gather_parts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from executor.collectives import Group


FLASH_TYPES = (torch.bfloat16, torch.float16)
CAUSAL_WINDOW = (-1, 0)
TELLS_OF_GROUPS = "enable_gqa" in inspect.signature(varlen_attn).parameters
"""Since torch 2.13 query heads may share a KV head only where that is said; before, as a matter of course."""


def packed_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, lengths: Sequence[int], scale: float | None = None
) -> torch.Tensor:
    """``q [N, heads, D]`` on ``k`` and ``v [N, kv heads, D]`` to ``[N, heads, D]``; a token sees its own sequence.

    ``lengths`` are the sequences' in order, ``N`` together. ``scale`` as in torch: ``D ** -0.5`` unless given.
    """
    if q.is_cuda and q.dtype in FLASH_TYPES:
        return _in_one_launch(q, k, v, lengths, scale)
    shared = {"is_causal": True, "scale": scale, "enable_gqa": q.shape[1] != k.shape[1]}
    parts = zip(*(x.transpose(0, 1).split(list(lengths), dim=1) for x in (q, k, v)), strict=True)
    one_by_one = [F.scaled_dot_product_attention(*(x[None] for x in part), **shared)[0] for part in parts]  # type: ignore[arg-type]
    return torch.cat(one_by_one, dim=1).transpose(0, 1)


def _in_one_launch(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, lengths: Sequence[int], scale: float | None
) -> torch.Tensor:
    ends, most = _ends(tuple(lengths), q.device), max(lengths)
    grouped: dict[str, Any] = {"enable_gqa": True} if TELLS_OF_GROUPS else {}
    mixed = varlen_attn(q, k, v, ends, ends, most, most, scale=scale, window_size=CAUSAL_WINDOW, **grouped)
    assert isinstance(mixed, torch.Tensor), "a pair only where the log-sum-exp is asked for"
    return mixed


@lru_cache(maxsize=64)
def _ends(lengths: tuple[int, ...], device: torch.device) -> torch.Tensor:
    """Where sequences begin and end, ``[num + 1]``: the same for every layer of a micro-batch. Nobody waits for it."""
    ends = torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32)
    return ends.to(device, non_blocking=True)


def shared_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    lengths: Sequence[int],
    group: Group,
    scale: float | None = None,
) -> torch.Tensor:
    """``packed_attention`` where every rank of ``group`` has its two chunks of each sequence, in ``N / c`` tokens.

    ``lengths`` are those of whole sequences, multiples of ``2 c``.
    """
    num, chunks = 2 * group.size, [length // (2 * group.size) for length in lengths for _ in range(2)]
    queries = q.split(chunks)
    gathered = [part.split(chunks) for part in gather_parts(torch.cat([k, v], dim=1), group)]
    mixed = []
    for i in range(0, len(chunks), 2):
        whole = [part[i] for part in gathered] + [part[i + 1] for part in reversed(gathered)]
        for query, chunk in zip(queries[i : i + 2], (group.index, num - 1 - group.index), strict=True):
            keys, values = torch.cat(whole[: chunk + 1]).chunk(2, dim=1)
            mixed.append(_last_of(query, keys, values, scale))
    return torch.cat(mixed)


def _last_of(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float | None) -> torch.Tensor:
    """Attention of the last tokens of a sequence on all tokens up to them."""
    bias = causal_lower_right(len(q), len(k))
    q, k, v = (x.transpose(0, 1)[None] for x in (q, k, v))
    gqa = q.shape[1] != k.shape[1]
    return F.scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=scale, enable_gqa=gqa)[0].transpose(0, 1)
