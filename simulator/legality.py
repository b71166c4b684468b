"""In which degrees an engine can run a model: the one place, asked by the search for what it lists and by the checker.

Each function says what is wrong, or ``None``. What memory holds, what pools have and what is worth trying is decided
elsewhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from profiles.engine_facts import TrainingEngine
    from profiles.models.shape import ModelShape


def tensor_fault(shape: ModelShape, tp: int) -> str | None:
    """Why the layers of a model cannot be cut ``tp`` ways: heads and widths have to divide."""
    return None if shape.max_tensor_parallel_ok(tp) else _uncut(shape, tp)


def stages_fault(layers: int, pp: int) -> str | None:
    """Why ``layers`` cannot be put on ``pp`` pipeline stages, fullest first: none of them may be empty."""
    if pp > layers:
        return f"{pp} pipeline stages for {layers} layers"
    if layers <= (pp - 1) * -(-layers // pp):
        return f"{pp} stages leave the last one without any of {layers} layers"
    return None


def chunks_fault(layers: int, pp: int, vpp: int, rank_samples: int, micro_batch: int) -> str | None:
    """Why ``pp`` stages cannot interleave ``vpp`` model chunks each.

    Chunks are equal, and micro-batches come in whole rounds of the pipeline (as Megatron-Core asks).
    """
    if vpp == 1:
        return None
    chunks = f"{pp} stages x {vpp} chunks for {layers} layers"
    if pp == 1 or layers % (pp * vpp):
        return f"{chunks}; interleaving needs stages, two or more, and chunks of equal length"
    if rank_samples % micro_batch or rank_samples // micro_batch % pp:
        batches = f"{rank_samples} samples of a rank in micro-batches of {micro_batch}"
        return f"{chunks}; {batches} are no whole rounds of {pp}, which interleaving needs"
    return None


def budget_fault(vpp: int, trainer: TrainingEngine, packed_tokens: int | None) -> str | None:
    """Why a trainer cannot fill micro-batches up to a budget of tokens."""
    if not trainer.token_micro_batches:
        return f"{trainer.name} counts the samples of a micro-batch, not their tokens; give micro_batch a number"
    if packed_tokens is not None:
        return f"sequences are packed to {packed_tokens:,} tokens, so a micro-batch is a number of packs"
    if vpp > 1:
        return f"{vpp} chunks per stage need a number of micro-batches that is known, which a budget of tokens has not"
    return None


def experts_fault(shape: ModelShape, ep: int, ranks: int) -> str | None:
    """Why a trainer cannot spread whole experts ``ep`` ways over the ``ranks`` of a pipeline stage."""
    if ep == 1:
        return None
    if shape.moe is None:
        return f"{shape.name} is dense: it has no experts to spread {ep} ways"
    if shape.moe.num_experts % ep:
        return f"expert parallel {ep} does not divide {shape.moe.num_experts} experts"
    return f"expert parallel {ep} does not divide the {ranks} ranks of a stage" if ranks % ep else None


def samples_fault(ranks: int, samples: int, what: str) -> str | None:
    """Why ``samples`` cannot be dealt to ``ranks``: each needs one."""
    return f"{ranks} {what} for {samples} samples" if ranks > samples else None


def engine_fault(shape: ModelShape, tp: int, pp: int, ep: int = 1, attention_dp: int = 1) -> str | None:
    """Why an engine cannot run a model on stages of ``tp`` GPUs.

    In a stage a mixture's experts may lie whole in ``ep`` groups, each cut over the GPUs of its group, and its
    attention may run as ``attention_dp`` copies, each cut over GPUs of its own, with the dense layers; a dense model's
    copies would be replicas.
    """
    fault = stages_fault(shape.num_layers, pp) or _overlay_fault(shape, tp, ep, attention_dp)
    return fault or _cut_fault(shape, tp, tp // ep, tp // attention_dp)


def _overlay_fault(shape: ModelShape, tp: int, ep: int, attention_dp: int) -> str | None:
    if shape.moe is None and ep > 1:
        return f"{shape.name} is dense: it has no experts to spread {ep} ways"
    if shape.moe is None and attention_dp > 1:
        return (
            f"{shape.name} is dense: its attention runs as {attention_dp} copies only beside experts; "
            "take as many replicas (dp)"
        )
    if tp % ep:
        return f"experts spread {ep} ways over {tp} GPUs do not divide"
    if shape.moe is not None and shape.moe.num_experts % ep:
        return f"{shape.moe.num_experts} experts spread {ep} ways do not divide"
    return f"{attention_dp} copies of the attention on {tp} GPUs do not divide" if tp % attention_dp else None


def _cut_fault(shape: ModelShape, tp: int, expert_ranks: int, attention_ranks: int) -> str | None:
    """Experts are cut in their group, what all tokens share over the stage, the rest in an attention copy."""
    if not shape.attention_splits(attention_ranks):
        return _uncut(shape, attention_ranks)
    if not shape.experts_split(expert_ranks, tp):
        return _uncut(shape, expert_ranks)
    return None


def _uncut(shape: ModelShape, ranks: int) -> str:
    return f"{shape.name} ({shape.num_heads} heads, {shape.num_kv_heads} KV heads) cannot be split {ranks} ways"
