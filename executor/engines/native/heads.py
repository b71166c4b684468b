"""What is read off the last stage: log-probs and entropy over a cut vocabulary, values, and the next token.

Sampling draws one number per (seed, sample, position) and inverts the cumulative distribution, so the tokens do not
depend on how rows are spread over ranks or batched.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
import torch.nn.functional as F

from executor.collectives import Group, copy_in, sum_out

if TYPE_CHECKING:
    from executor.rl.sampling import Sampling

_GOLDEN, _MIX_1, _MIX_2 = (x - (1 << 64) for x in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))
"""Constants of the splitmix64 generator (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014), as
the signed integers that torch has; sums and products are modulo 2^64 in both."""


def local_logits(head: torch.Tensor, hidden: torch.Tensor, tp: Group) -> torch.Tensor:
    """Logits ``[..., V / t]`` of this rank's part of the vocabulary, in fp32."""
    return F.linear(copy_in(hidden, tp), head).float()


def at_temperature(logits: torch.Tensor, temperature: float) -> torch.Tensor:
    """``logits / temperature``; the same tensor at 1, since a copy over the vocabulary is the largest of a pass."""
    return logits if temperature == 1.0 else logits / temperature


def log_probs_and_entropy(
    logits: torch.Tensor, targets: torch.Tensor, tp: Group, temperature: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-prob of ``targets [...]`` and entropy ``[...]``, from this rank's part of the logits ``[..., V / t]``.

    Both are of the distribution that tokens are drawn from at ``temperature``.
    """
    logits = at_temperature(logits, temperature)
    highest = tp.all_reduce(logits.detach().amax(-1), op=dist.ReduceOp.MAX)
    shifted = logits - highest[..., None]
    weights = shifted.exp()
    total = sum_out(weights.sum(-1), tp)
    local = targets - tp.index * logits.shape[-1]
    inside = (local >= 0) & (local < logits.shape[-1])
    picked = shifted.gather(-1, local.clamp(0, logits.shape[-1] - 1)[..., None])[..., 0]
    chosen = sum_out(picked * inside, tp)
    mean_logit = sum_out((weights * shifted).sum(-1), tp) / total
    return chosen - total.log(), total.log() - mean_logit


def next_tokens(logits: torch.Tensor, uniform: torch.Tensor, sampling: Sampling) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens ``[B]`` and their log-probs ``[B]`` from whole logits ``[B, V]`` and ``uniform [B]`` in [0, 1)."""
    warm = at_temperature(logits, sampling.temperature)
    log_probs = (likeliest(warm, sampling) if sampling.cuts else warm).log_softmax(-1)
    if sampling.greedy:
        tokens = logits.argmax(-1)
    else:
        cumulative = log_probs.double().exp().cumsum(-1)
        target = uniform.to(cumulative) * cumulative[:, -1]
        tokens = torch.searchsorted(cumulative, target[:, None], right=True)[:, 0].clamp(max=logits.shape[-1] - 1)
    return tokens, log_probs.gather(-1, tokens[:, None])[:, 0]


def likeliest(logits: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    """``logits [B, V]`` with minus infinity for tokens that ``top_k`` and then ``top_p`` leave out.

    The token that passes ``top_p`` is kept, and so are those as likely as the last of ``top_k``, as vLLM has both.
    """
    if 0 < sampling.top_k < logits.shape[-1]:
        least = logits.topk(sampling.top_k, dim=-1).values[:, -1:]
        logits = logits.masked_fill(logits < least, float("-inf"))
    if sampling.top_p < 1.0:
        ordered, places = logits.sort(dim=-1, descending=True)
        shares = ordered.softmax(-1)
        before = shares.cumsum(-1) - shares
        left_out = torch.zeros_like(before, dtype=torch.bool).scatter(-1, places, before >= sampling.top_p)
        logits = logits.masked_fill(left_out, float("-inf"))
    return logits


def uniforms(seed: int, uids: torch.Tensor, num: int) -> torch.Tensor:
    """``num`` numbers in [0, 1) for each sample, ``[B, num]`` fp64 where ``uids`` are.

    A function of (seed, uid, position) alone.
    """
    start = torch.full((), seed, dtype=torch.int64, device=uids.device) * _MIX_1 + _GOLDEN
    stream = _mixed(uids + start)
    place = torch.arange(1, num + 1, device=uids.device) * _GOLDEN
    return _shifted(_mixed(stream[:, None] + place), 11).double() * 2.0**-53


def _mixed(x: torch.Tensor) -> torch.Tensor:
    x = (x ^ _shifted(x, 30)) * _MIX_1
    x = (x ^ _shifted(x, 27)) * _MIX_2
    return x ^ _shifted(x, 31)


def _shifted(x: torch.Tensor, num: int) -> torch.Tensor:
    """``x`` without its last ``num`` bits, zeros coming in."""
    return (x >> num) & ((1 << (64 - num)) - 1)
