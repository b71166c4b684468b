"""Scaled dot-product attention: prefill (causal, whole sequences), decode (one new token), forward and backward.

Keys and values are repeated to the query heads, as the torch-native engine does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from executor.profiling.cases import Case, torch_dtype

if TYPE_CHECKING:
    from executor.profiling.cases import Key
    from executor.profiling.timing import Runner


def prefill_case(dtype: str, head_dim: int, heads: int, kv_heads: int, batch: int, seq: int) -> Case:
    """A row of table ``attention_prefill``."""
    key: Key = {"head_dim": head_dim, "heads": heads, "kv_heads": kv_heads, "batch": batch, "seq": seq}

    def make(device: torch.device, copies: int) -> Runner:
        operands = [_operands(dtype, device, batch, seq, seq, heads, kv_heads, head_dim) for _ in range(copies)]

        def run(i: int) -> torch.Tensor:
            with torch.no_grad():
                q, k, v = operands[i]
                return F.scaled_dot_product_attention(
                    q, _grouped(k, heads), _grouped(v, heads), is_causal=True, enable_gqa=False
                )

        return run

    return Case("attention_prefill", dict(key), make, _bytes(dtype, batch, seq, seq, heads, kv_heads, head_dim))


def decode_case(dtype: str, head_dim: int, heads: int, kv_heads: int, batch: int, context: int) -> Case:
    """A row of table ``attention_decode``; the context holds the new token too."""
    key: Key = {"kv_dtype": dtype, "head_dim": head_dim, "heads": heads, "kv_heads": kv_heads}

    def make(device: torch.device, copies: int) -> Runner:
        operands = [_operands(dtype, device, batch, 1, context, heads, kv_heads, head_dim) for _ in range(copies)]

        def run(i: int) -> torch.Tensor:
            with torch.no_grad():
                q, k, v = operands[i]
                return F.scaled_dot_product_attention(q, _grouped(k, heads), _grouped(v, heads))

        return run

    return Case(
        "attention_decode",
        {**key, "batch": batch, "context": context},
        make,
        _bytes(dtype, batch, 1, context, heads, kv_heads, head_dim),
    )


def training_case(
    dtype: str, direction: str, mask: str, head_dim: int, heads: int, kv_heads: int, batch: int, seq: int
) -> Case:
    """A row of table ``attention_training``: ``forward`` or ``both``; the ``causal`` kernel or a ``masked`` one."""
    key: Key = {
        "direction": direction,
        "mask": mask,
        "head_dim": head_dim,
        "heads": heads,
        "kv_heads": kv_heads,
        "batch": batch,
        "seq": seq,
    }

    def make(device: torch.device, copies: int) -> Runner:
        operands = [_operands(dtype, device, batch, seq, seq, heads, kv_heads, head_dim) for _ in range(copies)]
        square = torch.ones(seq, seq, dtype=torch.bool, device=device).tril().expand(batch, 1, seq, seq).contiguous()
        given = {"is_causal": True} if mask == "causal" else {"attn_mask": square}
        for group in operands:
            for tensor in group:
                tensor.requires_grad_(direction == "both")

        def run(i: int) -> object:
            q, k, v = operands[i]
            out = F.scaled_dot_product_attention(q, _grouped(k, heads), _grouped(v, heads), **given)
            return torch.autograd.grad(out, (q, k, v), out) if direction == "both" else out

        return run

    return Case("attention_training", dict(key), make, 2 * _bytes(dtype, batch, seq, seq, heads, kv_heads, head_dim))


def _operands(
    dtype: str, device: torch.device, batch: int, queries: int, keys: int, heads: int, kv_heads: int, head_dim: int
) -> list[torch.Tensor]:
    kind = torch_dtype(dtype)
    shapes = [(batch, heads, queries, head_dim), *[(batch, kv_heads, keys, head_dim)] * 2]
    return [torch.randn(shape, device=device).to(kind) for shape in shapes]


def _grouped(x: torch.Tensor, heads: int) -> torch.Tensor:
    repeats = heads // x.shape[1]
    return x if repeats == 1 else x.repeat_interleave(repeats, dim=1)


def _bytes(dtype: str, batch: int, queries: int, keys: int, heads: int, kv_heads: int, head_dim: int) -> float:
    elements = batch * head_dim * (2 * queries * heads + 2 * keys * kv_heads)
    return float(elements * torch_dtype(dtype).itemsize)
