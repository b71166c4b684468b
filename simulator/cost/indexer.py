"""Sparse attention: an indexer scores every cached token, and attention reads the ones that it picks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from profiles.records import Basis, Priced

if TYPE_CHECKING:
    from profiles.models.layers import SparseShape
    from profiles.records import Floats
    from simulator.facts import Facts

INDEX_KERNELS = 4
"""Kernels of an indexer: quantisation of its query and key, scores, choice of the highest."""

SCORE_BYTES = 12.0
"""A score in fp32: written once, read twice to find the highest."""


QUERIES_OF_TILE = 128
"""Queries of a prompt that share one read of a key in kernels that score tiles and keep a block's highest alone."""


def index_scores(facts: Facts, sparse: SparseShape, pairs: Floats, prompt: bool = False) -> Priced:
    """One layer's indexer over pairs of a query and a cached token.

    Parameters
    ----------
    sparse
        Sizes of the indexer.
    pairs
        Of a query and a cached token, any shape.
    prompt
        Queries are those of whole prompts.

    Returns
    -------
    Priced
        Seconds, the shape of ``pairs``.

    Notes
    -----
    Each pair takes ``index_heads`` products of ``index_head_dim`` elements in FP8, a read of the key and its score: a
    roofline, nothing was measured on it alone. Where blocks are picked, each head leaves a score of each, keys are in
    16 bits, and the queries of a prompt share their reads.
    """
    spec = facts.device.spec
    dtype = "fp8" if "fp8" in spec.peak_flop_per_s else "bf16"
    flop = 2.0 * sparse.index_heads * sparse.index_head_dim * pairs
    products = Priced.of(flop / spec.peak(dtype), Basis.ANALYTIC)
    pair_bytes = sparse.index_head_dim + SCORE_BYTES
    if sparse.block > 1:
        read = 2.0 * sparse.index_head_dim / (QUERIES_OF_TILE if prompt else 1)
        pair_bytes = read + SCORE_BYTES * sparse.index_heads / sparse.block
    return products + facts.device.memory_bound(pair_bytes * pairs, INDEX_KERNELS)


def prompt_ratio(facts: Facts, sparse: SparseShape) -> float:
    """What the engine's kernels take for prompts over the rule, where blocks are picked.

    Parameters
    ----------
    facts, sparse
        What is known of job, device and engines; sizes of the indexer.

    Returns
    -------
    float
        1 where single tokens are picked, whose modules have tables.
    """
    if sparse.block == 1:
        return 1.0
    engine = facts.generation
    fp4 = "nvfp4" in facts.device.spec.peak_flop_per_s
    return engine.picked_prompt_ratio_with_fp4 if fp4 else engine.picked_prompt_ratio


def as_shorter_prompts(prompts: Floats, length: Floats, topk: int) -> tuple[Floats, Floats]:
    """Prompts of which each token reads at most ``topk``, as more and shorter ones that read all of theirs.

    Parameters
    ----------
    prompts, length
        Prompts, and tokens of each; shapes broadcast.
    topk
        Tokens that a token reads at most.

    Returns
    -------
    tuple[Floats, Floats]
        Shorter prompts of as many tokens in all, whose tokens read as many on the mean; their length.
    """
    most = np.minimum(float(topk), length)
    read = 2.0 * (most * most / 2.0 + (length - most) * most) / np.maximum(length, 1.0)
    return np.asarray(prompts * length / np.maximum(read, 1.0)), np.asarray(read)
