"""The decoder: Llama and Qwen as functions of a dictionary of (sharded) parameters.

Shapes: B rows, T tokens, h hidden. Tensor parallelism is explicit: a region starts with ``copy_in`` and ends with
``sum_out``, and between them each rank works on its own heads or its own part of the feed-forward layer.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from executor.collectives import Group, copy_in, sum_out
from executor.engines.attention import packed_attention
from executor.engines.rotary import frequencies
from executor.weights.architecture import EMBEDDING, NORM

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from executor.weights.architecture import Architecture
    from executor.weights.parameters import Slice

    Weights = Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class KVCache:
    """Keys and values of one stage's layers, ``[layers, B, length, kv heads of this rank, head_dim]``."""

    keys: torch.Tensor
    values: torch.Tensor


@dataclass(frozen=True)
class Step:
    """What attention needs to know of the tokens at hand.

    ``positions [B, T]`` count the tokens of a sequence. Either ``lengths`` says how long the sequences are that stand
    one after another in the one row, or ``mask [B, 1, T, K]`` which keys a query sees; ``start`` is where the tokens
    stand among the K keys, for a cache.
    """

    positions: torch.Tensor
    mask: torch.Tensor | None = None
    start: int = 0
    cache: KVCache | None = None
    lengths: tuple[int, ...] = ()


def whole_step(token_mask: torch.Tensor) -> Step:
    """Causal attention over whole sequences with ``token_mask [B, T]``; a masked query sees itself, to stay finite."""
    length = token_mask.shape[1]
    square = torch.ones(length, length, dtype=torch.bool, device=token_mask.device)
    mask = (square.tril() & token_mask[:, None, :]) | torch.eye(length, dtype=torch.bool, device=token_mask.device)
    return Step(positions_of(token_mask), mask[:, None])


def positions_of(token_mask: torch.Tensor) -> torch.Tensor:
    """Position of each token, ``[B, T]``: padding on the left does not count."""
    return (token_mask.long().cumsum(1) - 1).clamp(min=0)


def run_stage(
    weights: Weights, arch: Architecture, piece: Slice, tp: Group, x: torch.Tensor, step: Step, recompute: str = "none"
) -> torch.Tensor:
    """Tokens ``[B, T]`` (first stage) or hidden states ``[B, T, h]`` to hidden states, normed after the last stage.

    ``recompute``: whether the backward pass computes whole layers again (``full``), or their attention alone
    (``selective``), from what went into them.
    """
    if piece.is_first:
        x = embed(weights[EMBEDDING], x, tp)
    for i, layer in enumerate(piece.layers(arch)):
        block = partial(_layer, weights, f"model.layers.{layer}.", arch, tp, step, i, recompute)
        x = _again(block, x) if recompute == "full" else block(x)
    return rms_norm(x, weights[NORM], arch.norm_eps) if piece.is_last else x


def _layer(
    weights: Weights, at: str, arch: Architecture, tp: Group, step: Step, i: int, recompute: str, x: torch.Tensor
) -> torch.Tensor:
    normed = rms_norm(x, weights[f"{at}input_layernorm.weight"], arch.norm_eps)

    def attend(normed: torch.Tensor) -> torch.Tensor:
        return attention(weights, f"{at}self_attn.", arch, tp, normed, step, i)

    x = x + (_again(attend, normed) if recompute == "selective" else attend(normed))
    normed = rms_norm(x, weights[f"{at}post_attention_layernorm.weight"], arch.norm_eps)
    return x + feed_forward(weights, f"{at}mlp.", arch, tp, normed)


def _again(block: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    """``block(x)``, computed a second time in the backward pass."""
    out: torch.Tensor = checkpoint(block, x, use_reentrant=False)
    return out


def embed(table: torch.Tensor, tokens: torch.Tensor, tp: Group) -> torch.Tensor:
    """Rows of a table whose vocabulary is cut over ``tp``."""
    if tp.size == 1:
        return F.embedding(tokens, table)
    local = tokens - tp.index * table.shape[0]
    inside = (local >= 0) & (local < table.shape[0])
    rows = F.embedding(local.clamp(0, table.shape[0] - 1), table)
    return sum_out(rows * inside[..., None], tp)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Root-mean-square norm in fp32."""
    wide = x.float()
    return weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)).to(x.dtype)


def project(weights: Weights, name: str, arch: Architecture, x: torch.Tensor) -> torch.Tensor:
    """One rank's part of a projection, with what its adapter adds where it has one.

    Where the input is cut, both are shares of sums over ``tp``.
    """
    found = F.linear(x, weights[f"{name}.weight"], weights.get(f"{name}.bias"))
    down = weights.get(f"{name}.lora_A.weight")
    if down is None:
        return found
    return found + arch.adapter_scale * F.linear(F.linear(x, down), weights[f"{name}.lora_B.weight"])


def feed_forward(weights: Weights, at: str, arch: Architecture, tp: Group, x: torch.Tensor) -> torch.Tensor:
    """Gated SiLU."""
    x = copy_in(x, tp)
    gate = F.silu(project(weights, f"{at}gate_proj", arch, x))
    return sum_out(project(weights, f"{at}down_proj", arch, gate * project(weights, f"{at}up_proj", arch, x)), tp)


def attention(
    weights: Weights, at: str, arch: Architecture, tp: Group, x: torch.Tensor, step: Step, layer: int
) -> torch.Tensor:
    """Grouped-query attention on this rank's heads; ``layer`` counts inside the stage, for the cache."""
    x = copy_in(x, tp)
    q, k, v = (_heads(weights, at, name, arch, x) for name in "qkv")
    turn = rotation(step.positions, arch, x.dtype)
    q, k = rotate(q, turn), rotate(k, turn)
    if step.lengths:
        mixed = packed_attention(q[0], k[0], v[0], step.lengths)[None]
        return sum_out(project(weights, f"{at}o_proj", arch, mixed.flatten(2)), tp)
    if step.cache is not None:
        stop = step.start + x.shape[1]
        step.cache.keys[layer][:, step.start : stop] = k
        step.cache.values[layer][:, step.start : stop] = v
        k, v = step.cache.keys[layer][:, :stop], step.cache.values[layer][:, :stop]
    repeats = q.shape[2] // k.shape[2]
    k, v = k.repeat_interleave(repeats, dim=2), v.repeat_interleave(repeats, dim=2)
    mixed = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), step.mask)
    return sum_out(project(weights, f"{at}o_proj", arch, mixed.transpose(1, 2).flatten(2)), tp)


def _heads(weights: Weights, at: str, name: str, arch: Architecture, x: torch.Tensor) -> torch.Tensor:
    """Queries, keys or values of this rank, ``[B, T, heads, head_dim]``."""
    heads = project(weights, f"{at}{name}_proj", arch, x).unflatten(-1, (-1, arch.head_dim))
    norm = weights.get(f"{at}{name}_norm.weight")
    return heads if norm is None else rms_norm(heads, norm, arch.norm_eps)


def rotation(positions: torch.Tensor, arch: Architecture, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosine and sine of the rotary embedding, ``[B, T, 1, head_dim]``."""
    radians, factor = frequencies(arch, positions.device)
    angles = positions[..., None].float() * radians
    angles = torch.cat([angles, angles], dim=-1)[:, :, None]
    return (angles.cos() * factor).to(dtype), (angles.sin() * factor).to(dtype)


def rotate(x: torch.Tensor, turn: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Apply the rotary embedding: the two halves of a head are the planes' coordinates."""
    first, second = x.chunk(2, dim=-1)
    return x * turn[0] + torch.cat([-second, first], dim=-1) * turn[1]
