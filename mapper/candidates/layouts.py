"""Every parallel layout that a role may take on a pool of a given size."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import numpy as np

from mapper.search_options import USUAL
from simulator import legality
from simulator.plan.layouts import GenerationLayouts, Layouts

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from mapper.search_options import SearchOptions
    from profiles.models.shape import ModelShape
    from profiles.records import Ints
    from simulator.facts import Facts

MICRO_BATCHES = (1, 2, 4, 8, 16, 32)
BUDGETS = (1, 2, 4, 8)
"""Budgets of tokens of a micro-batch, in the longest samples: what lengths that vary are dealt to evenly."""
LONG_CONTEXT_TOKENS = 16384
"""From this length on, context parallelism is in the space; below it tensor parallelism splits the same activations
for less traffic."""

CONTEXT_DEGREES = (1, 2, 4, 8, 16)
ENGINE_STAGES = (1, 2, 4, 8, 16)
EVERY = 128
"""Up to this many data-parallel ranks every number is listed."""

WAVES = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 16, 20, 24, 32, 48, 64, 96, 128)
"""In how many waves a replica may work off its responses: each gives one number of sequences in flight, and so one
KV budget."""


def degrees(
    facts: Facts, shape: ModelShape, most_gpus: int, *samples: int, options: SearchOptions = USUAL
) -> list[tuple[int, int, int, int, int]]:
    """``(dp, tp, pp, cp, ep)`` of every way worth trying to spread ``shape`` over at most ``most_gpus`` GPUs.

    Tensor parallelism divides the node and, unless ``options`` allows more, stays in the NVLink domain; no
    pipeline stage is empty, no data-parallel rank idle. ``samples`` are those of each of the role's calls:
    data-parallel degrees are those of ``loads`` for any of them, numbers of stages those of ``stage_counts``. What lies
    between has the slowest rank or stage of the next one below and takes more GPUs.
    """
    out = []
    experts = functools.cache(functools.partial(_expert_degrees, shape))
    long = facts.workload.padded_length >= LONG_CONTEXT_TOKENS
    for tp in tensor_degrees(facts, shape, most_gpus, options):
        for pp in stage_counts(shape.num_layers):
            for cp in CONTEXT_DEGREES if long else (1,):
                most = most_gpus // (tp * pp * cp)
                at_most = {dp for s in samples for dp in loads(s, min(most, *samples))}
                for dp in sorted(at_most):
                    out += [(dp, tp, pp, cp, ep) for ep in experts(dp * cp * tp)]
    return out


def loads(samples: int, most: int) -> list[int]:
    """Numbers of ranks up to ``most`` that ``samples`` are worth dealing over, ascending.

    Every number up to ``EVERY``. Above it, for every load of the fullest rank the fewest ranks that have it, and the
    most: between them nothing gets faster and each rank's share of sharded states shrinks (``relaxation`` bounds what
    that is worth). Powers of two too, which expert parallelism needs.
    """
    most = min(samples, most)
    if most < 1:
        return []
    out, ranks = {*_powers_of_two(most), *range(1, min(most, EVERY) + 1)}, 1
    while ranks <= most:
        load = -(-samples // ranks)
        last = most if load == 1 else min((samples - 1) // (load - 1), most)
        of_eight = {-(-ranks // 8) * 8, last // 8 * 8}  # engines of up to eight times a replica's GPUs divide these
        out |= {ranks, last} | {n for n in of_eight if ranks <= n <= last}
        ranks = last + 1
    return sorted(out)


def stage_counts(layers: int) -> list[int]:
    """Numbers of pipeline stages worth trying: the fewest for every size of the fullest stage, none of them empty."""
    fewest: dict[int, int] = {}
    for stages in range(1, layers + 1):
        if not legality.stages_fault(layers, stages):
            fewest.setdefault(-(-layers // stages), stages)
    return sorted(fewest.values())


def tensor_degrees(facts: Facts, shape: ModelShape, most_gpus: int, options: SearchOptions = USUAL) -> list[int]:
    """Tensor-parallel degrees that the model's heads, the pool and the domain allow; ``options`` may allow more."""
    in_domain = engine_widths(facts, most_gpus, options)
    return [t for t in in_domain if not legality.tensor_fault(shape, t)]


def engine_widths(facts: Facts, most_gpus: int, options: SearchOptions = USUAL) -> list[int]:
    """GPUs of an engine's stage, or of a tensor-parallel group, that the pool, the node and the domain allow."""
    group = facts.group
    limit = most_gpus if options.tensor_parallel_across_nodes else min(most_gpus, group.nvlink_domain_gpus)
    return [t for t in _powers_of_two(limit) if group.gpus_per_node % t == 0 or t % group.gpus_per_node == 0]


def cross(
    spread: Sequence[tuple[int, int, int, int, int]],
    zero_stages: Iterable[int],
    recompute: Iterable[int],
    per_rank: Ints,
    interleaved_layers: int = 0,
    budgets: Sequence[int] = (),
) -> tuple[Layouts, Ints]:
    """Every spread x ZeRO stage x micro-batch x recompute level, and the position of each one's spread.

    ``per_rank`` are the samples of a data-parallel rank, by spread: larger micro-batches change nothing. With
    ``interleaved_layers`` of a model, every number of chunks per stage too. Micro-batches are counted in samples, and
    in tokens for each of ``budgets``.
    """
    most = np.asarray(per_rank, dtype=np.int64)
    if not interleaved_layers:  # of more samples there are no more sizes
        most = np.minimum(most, max(MICRO_BATCHES[-1], 2 ** len(budgets)))
    asked = [(x[2], n, interleaved_layers, tuple(budgets)) for x, n in zip(spread, most.tolist(), strict=True)]
    parts = [_crossed(_sizes_of_micro_batch(*one), tuple(zero_stages), tuple(recompute)) for one in asked]
    owner = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    given = np.asarray(spread, dtype=np.int64).reshape(-1, 5)[owner]
    columns = np.concatenate([np.zeros((0, 5), dtype=np.int64), *parts])
    return Layouts(*np.ascontiguousarray(np.concatenate([given, columns], axis=1).T)), owner


@functools.lru_cache(maxsize=4096)
def _sizes_of_micro_batch(
    stages: int, samples: int, interleaved_layers: int, budgets: tuple[int, ...]
) -> tuple[tuple[int, int, int], ...]:
    """``(samples, chunks, tokens)`` of the micro-batches of a rank that has so many samples."""
    sizes = [(b, 1, 0) for b in MICRO_BATCHES if b < 2 * samples]
    if interleaved_layers:
        sizes += [(b, v, 0) for b, _, _ in sizes for v in chunks(interleaved_layers, stages, samples, b)]
    sizes += [(1, 1, tokens) for tokens in budgets[: samples.bit_length()]]  # twice the longest for two samples
    return tuple(sizes)


@functools.lru_cache(maxsize=4096)
def _crossed(sizes: tuple[tuple[int, int, int], ...], zero_stages: tuple[int, ...], recompute: tuple[int, ...]) -> Ints:
    """``(ZeRO stage, micro-batch, recompute level, chunks, tokens)`` of every combination, ``[C, 5]``."""
    rows = [(zero, b, level, v, tokens) for zero in zero_stages for level in recompute for b, v, tokens in sizes]
    return np.asarray(rows, dtype=np.int64).reshape(-1, 5)


def token_budgets(facts: Facts, pinned: tuple[int, ...]) -> tuple[int, ...]:
    """Budgets worth trying, ascending: those of a pin alone, and none where all lengths are equal."""
    if pinned or facts.workload.response.kind == "fixed":
        return tuple(sorted(pinned))
    budgets = tuple(n * facts.workload.padded_length for n in BUDGETS)
    return () if legality.budget_fault(1, facts.training, facts.implementation.packed_tokens) else budgets


def chunks(layers: int, stages: int, samples: int, micro_batch: int) -> list[int]:
    """Numbers of model chunks per stage, two or more, that interleaved 1F1B can run."""
    numbers = range(2, layers // stages + 1)
    return [v for v in numbers if not legality.chunks_fault(layers, stages, v, samples, micro_batch)]


def generation_layouts(
    facts: Facts, shape: ModelShape, num_gpus: int, options: SearchOptions = USUAL, last_gpus: int = 0
) -> GenerationLayouts:
    """Every engine layout on ``num_gpus`` GPUs with every distinct number of sequences in flight.

    Of mixtures every legal spread of experts and attention copies, where the engine has these.
    Where those stand for all numbers of GPUs up to ``last_gpus`` too: behind them, for every load of a replica that
    one of these has, the layout with the fewest replicas, whatever number of GPUs that takes.
    """
    rows, more, samples = [], [], facts.workload.num_samples
    slots = int(facts.generation.max_num_seqs)
    for tp, pp, *spread in _engine_degrees(facts, shape, max(num_gpus, last_gpus), options):
        dp, rest = divmod(num_gpus, tp * pp)
        if not rest and dp >= 1 and not legality.samples_fault(dp, samples, "replicas"):
            rows += [(dp, tp, pp, b, *spread) for b in _sequences(slots, -(-samples // dp))]
        most = min(last_gpus // (tp * pp), samples)
        if last_gpus > num_gpus and most > 0:
            loads_between = range(-(-samples // most), -(-samples // max(min(dp, samples), 1)) + 1)
            more += [(-(-samples // n), tp, pp, b, *spread) for n in loads_between for b in _sequences(slots, n)]
    return GenerationLayouts(*np.asarray(rows + more, dtype=np.int64).reshape(-1, 6).T)


def _engine_degrees(
    facts: Facts, shape: ModelShape, most_gpus: int, options: SearchOptions
) -> list[tuple[int, int, int, int]]:
    """``(tp, pp, ep, attention_dp)`` of the engines worth trying."""
    stages = [n for n in ENGINE_STAGES if n <= shape.num_layers]
    spread = shape.moe is not None and facts.generation.mixture_parallel
    return [
        (tp, pp, ep, copies)
        for tp in engine_widths(facts, most_gpus, options)
        for pp in stages
        for ep in (_powers_of_two(tp) if spread else (1,))
        for copies in (_powers_of_two(tp) if spread else (1,))
        if not legality.engine_fault(shape, tp, pp, ep, copies)
    ]


@functools.lru_cache(maxsize=4096)
def _sequences(most: int, load: int) -> tuple[int, ...]:
    """Numbers of sequences in flight, ``most`` at most, worth trying for a replica that works off ``load``."""
    slots = {min(-(-load // waves), most) for waves in WAVES}
    fewest = min(slots)  # more waves than WAVES lists: a replica may always hold fewer at once, down to one
    return tuple(sorted(slots | {fewest >> i for i in range(1, fewest.bit_length())}))


def generator_gpus(facts: Facts, shape: ModelShape, sizes: Sequence[int], options: SearchOptions = USUAL) -> list[int]:
    """Numbers of GPUs worth giving to engines on a pool of their own: replicas are those of ``loads``."""
    most, samples = sizes[-1], facts.workload.num_samples
    used = {
        dp * tp * pp
        for tp, pp, _, _ in _engine_degrees(facts, shape, most, options)
        for dp in loads(samples, most // (tp * pp))
    }
    return sorted(used)


def _expert_degrees(shape: ModelShape, ranks: int) -> list[int]:
    """Expert-parallel degrees that divide the experts and the ranks they overlay."""
    most = min(ranks, shape.moe.num_experts) if shape.moe else 1
    return [e for e in _powers_of_two(most) if not legality.experts_fault(shape, e, ranks)]


def _powers_of_two(limit: int) -> list[int]:
    return [2**i for i in range(max(limit, 1).bit_length()) if 2**i <= limit]
