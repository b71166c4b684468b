"""Generation with a KV cache: prefill, then one token a step, over the tensor and pipeline ranks of a replica."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from executor.engines.native.decoder import KVCache, Step, positions_of, run_stage, whole_step
from executor.engines.native.heads import local_logits, next_tokens, uniforms
from executor.engines.rotary import require_length
from profiles.errors import InputError

if TYPE_CHECKING:
    from tensordict import TensorDict

    from executor.engines.model_spec import ModelSpec
    from executor.engines.native.replica import Replica
    from executor.rl.sampling import Sampling
    from executor.weights.architecture import Architecture
    from executor.weights.parameters import Slice

LOOK_EVERY = 16
"""Tokens between two looks whether all sequences have ended: each look waits for the device."""


def blank_cache(replica: Replica, num_rows: int, length: int) -> KVCache:
    """An empty cache for the layers and heads of this rank."""
    some = next(iter(replica.weights.values()))
    arch = replica.arch
    layers, heads = len(replica.piece.layers(arch)), arch.num_kv_heads // replica.tp.size
    shape = (layers, num_rows, length, heads, arch.head_dim)
    return KVCache(*(torch.zeros(shape, dtype=some.dtype, device=some.device) for _ in range(2)))


def kv_bytes_per_sequence(arch: Architecture, piece: Slice, length: int, itemsize: int) -> int:
    """Bytes of one sequence's keys and values on one rank."""
    heads = arch.num_kv_heads // piece.t
    return 2 * len(piece.layers(arch)) * length * heads * arch.head_dim * itemsize


def generate_waves(replica: Replica, batch: TensorDict, sampling: Sampling, spec: ModelSpec) -> TensorDict:
    """Responses to ``prompts``, as many at once as the plan allows and the KV budget holds; see ``Generator``."""
    from tensordict import TensorDict

    parts = []
    with torch.no_grad():
        for rows in batch.split(wave_of(replica, batch, sampling, spec)):
            prompts, mask = rows["prompts"].to(spec.device), rows["prompt_mask"].to(spec.device)
            parts.append(generate(replica, prompts, mask, rows["uid"].to(spec.device), sampling))
    names = ("responses", "response_mask", "log_probs")
    columns = {name: torch.cat([part[i] for part in parts]).cpu() for i, name in enumerate(names)}
    return TensorDict(columns, batch_size=batch.batch_size)


def wave_of(replica: Replica, batch: TensorDict, sampling: Sampling, spec: ModelSpec) -> int:
    """Sequences that generate at once."""
    length = batch["prompts"].shape[1] + sampling.max_tokens
    require_length(replica.arch, length)
    some = next(iter(replica.weights.values()))
    size = kv_bytes_per_sequence(replica.arch, replica.piece, length, some.element_size())
    if spec.kv_cache_bytes and spec.kv_cache_bytes < size:
        raise InputError(
            f"a KV budget of {spec.kv_cache_bytes:,} bytes does not hold one sequence of {length} tokens "
            f"({size:,} bytes)"
        )
    return min(spec.max_num_seqs, spec.kv_cache_bytes // size or spec.max_num_seqs)


def generate(
    replica: Replica, prompts: torch.Tensor, prompt_mask: torch.Tensor, uids: torch.Tensor, sampling: Sampling
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Responses ``[B, R]``, their mask ``[B, R]`` and log-probs ``[B, R]``, equal on all ranks of the replica."""
    num_rows, width = prompts.shape
    length = width + sampling.max_tokens
    seen = torch.zeros(num_rows, length, dtype=torch.bool, device=prompts.device)
    seen[:, :width] = prompt_mask
    tokens = torch.zeros(num_rows, sampling.max_tokens, dtype=torch.int64, device=prompts.device)
    mask = torch.zeros_like(tokens, dtype=torch.bool)
    log_probs = torch.zeros(num_rows, sampling.max_tokens, device=prompts.device)
    chance = uniforms(sampling.seed, uids, sampling.max_tokens)
    cache = blank_cache(replica, num_rows, length)
    running = torch.ones(num_rows, dtype=torch.bool, device=prompts.device)
    step = _prefill(prompt_mask, cache)
    entering = prompts
    for i in range(sampling.max_tokens):
        chosen, chosen_log_probs = _one_step(replica, entering, step, chance[:, i], sampling)
        mask[:, i] = running
        tokens[:, i] = torch.where(running, chosen, 0)
        log_probs[:, i] = torch.where(running, chosen_log_probs, 0.0)
        seen[:, width + i] = running
        if sampling.end_tokens:
            for end in sampling.end_tokens:
                running = running & (chosen != end)
            if i % LOOK_EVERY == LOOK_EVERY - 1 and not running.any():
                break
        entering, step = tokens[:, i : i + 1], _decode(seen[:, : width + i + 1], cache)
    return tokens, mask, log_probs


def _prefill(prompt_mask: torch.Tensor, cache: KVCache) -> Step:
    whole = whole_step(prompt_mask)
    return Step(whole.positions, whole.mask, 0, cache)


def _decode(seen: torch.Tensor, cache: KVCache) -> Step:
    """The newest token of each row sees every unmasked token, and itself even where its row has ended."""
    mask = seen.clone()
    mask[:, -1] = True
    return Step(positions_of(seen)[:, -1:], mask[:, None, None], seen.shape[1] - 1, cache)


def _one_step(
    replica: Replica, tokens: torch.Tensor, step: Step, chance: torch.Tensor, sampling: Sampling
) -> tuple[torch.Tensor, torch.Tensor]:
    """Run the stages on ``tokens [B, T]``; the last one draws the next token and tells the others."""
    piece, pp = replica.piece, replica.pp
    x = tokens
    if not piece.is_first:
        some = next(iter(replica.weights.values()))
        x = torch.empty(*tokens.shape, replica.arch.hidden, dtype=some.dtype, device=tokens.device)
        pp.receive(x, piece.stage - 1)
    hidden = run_stage(replica.weights, replica.arch, piece, replica.tp, x, step)
    chosen = torch.zeros(tokens.shape[0], dtype=torch.int64, device=tokens.device)
    log_probs = torch.zeros(tokens.shape[0], device=tokens.device)
    if piece.is_last:
        logits = local_logits(replica.head, hidden[:, -1], replica.tp)
        whole = torch.cat(replica.tp.all_gather(logits), dim=-1)
        chosen, log_probs = next_tokens(whole, chance, sampling)
    else:
        pp.send(hidden, piece.stage + 1)
    return pp.broadcast(chosen, pp.size - 1), pp.broadcast(log_probs.float().contiguous(), pp.size - 1)
