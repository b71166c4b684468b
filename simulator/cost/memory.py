"""Memory of one GPU, by class: what a role keeps all the time, and what each call needs on top while it runs.

Roles that share a GPU keep their resident parts side by side; only one call runs at a time, so the pool's peak is
the sum of the resident parts plus the largest transient part plus the reserve.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from simulator.cost.activations import batch_tokens, bytes_of_whole_layer, in_flight, saved_bytes_per_token
from simulator.cost.micro_batches import num_micro_batches
from simulator.cost.parameters import adapter_params, params_per_gpu
from simulator.cost.token_quantiles import RARE, TYPICAL

if TYPE_CHECKING:
    from profiles.models.shape import Head, ModelShape
    from profiles.records import Floats
    from simulator.facts import Facts
    from simulator.plan.layouts import Layouts

LOGIT_BYTES = {"parallel": 10.0, "unfused": 16.0, "in-place": 2.0, "fused": 0.0, "fp32": 0.0}
"""Per logit alive at the loss, by loss head. Parallel: bf16 logits (2), fp32 copy (4) that the softmax reuses, fp32
gradient (4). Unfused: log-softmax keeps its own fp32 output (4), and the bf16 gradient (2) lives beside the fp32 one.
In-place: bf16 logits, which the gradient overwrites. The others work in chunks and keep none."""


def resident_bytes(facts: Facts, shape: ModelShape, head: Head, layouts: Layouts, trained: bool) -> dict[str, Floats]:
    """Parameters, gradients and optimizer states that a role keeps on each GPU.

    ZeRO stage 1 shards the optimizer over the data-parallel ranks, 2 the gradients, 3 the parameters too.

    Parameters
    ----------
    trained
        Whether the role has gradients and an optimizer.

    Returns
    -------
    dict[str, Floats]
        Bytes by class, ``[C]`` each.

    Notes
    -----
    Source: ZeRO (Rajbhandari et al. 2020), with the bytes per parameter that the engine states (18 for Megatron's bf16
    with fp32 gradients and states); allocator fragments are in the engine's reserve.
    """
    params = params_per_gpu(shape, head, layouts.tp, layouts.pp, layouts.ep)
    ranks = layouts.dp * layouts.cp
    shard = [np.where(layouts.zero_stage >= stage, ranks, 1) for stage in (1, 2, 3)]
    at_rest = facts.training.param_bytes if trained else facts.activation_bytes
    out = {"parameters": params * at_rest / shard[2]}
    if trained:
        built, fused = facts.implementation, facts.training.fused_projections
        learned = params
        if built.lora_rank:
            learned = adapter_params(shape, built, fused, layouts) * built.lora_adapters
            out["parameters"] = out["parameters"] + learned * at_rest / shard[2]
        out["gradients"] = learned * facts.training.grad_bytes_per_param / shard[1]
        out["optimizer"] = learned * facts.training.optimizer_bytes_per_param / shard[0]
    return out


def training_bytes(
    facts: Facts, shape: ModelShape, layouts: Layouts, logits: bool, level: float = TYPICAL
) -> dict[str, Floats]:
    """Activations and logits alive at the peak of a training step.

    That is on the first pipeline stage, which holds up to ``pp`` micro-batches, or on the last one, which has the
    logits; eager trainers keep these until a backward pass has ended.

    Parameters
    ----------
    logits
        Whether the loss needs logits of the vocabulary.
    level
        Share of the micro-batches that need no more; ``token_quantiles.ALWAYS`` for all at full length.

    Returns
    -------
    dict[str, Floats]
        Bytes by class, ``[C]`` each.

    Notes
    -----
    Source: Korthikanti et al. 2022, 1F1B of Narayanan et al. 2021. Published peaks are 8 % off on the
    mean, 58 % at worst (docs/accuracy.md).
    """
    samples = np.ceil(facts.workload.minibatch_samples / layouts.dp)
    tokens = batch_tokens(facts, layouts, samples, 1.0, level)
    num_micro = num_micro_batches(facts.workload, layouts, samples)
    saved = saved_bytes_per_token(facts, shape, layouts) * np.ceil(shape.num_layers / layouts.pp)
    first, last = (
        saved * batch_tokens(facts, layouts, samples, np.minimum(n, num_micro), level) for n in in_flight(layouts)
    )
    whole = bytes_of_whole_layer(facts, shape, layouts) * tokens
    # The one layer that is being recomputed, and its activations' gradients.
    working = np.where(layouts.recompute == 2, 2.0 * whole, 0.0)
    at_loss = np.zeros(len(layouts))
    if logits:
        at_loss = tokens * shape.vocab / layouts.tp * LOGIT_BYTES[facts.implementation.loss_head]
    ends_here = last + at_loss >= first  # of a pipeline; without stages it is always so
    out = {
        "activations": np.where(ends_here, last, first) + working,
        "logits": np.where(ends_here, at_loss, 0.0),
    }
    if np.any(layouts.zero_stage == 3):
        alive = _alive_params(shape, layouts)
        frozen = facts.implementation.lora_rank > 0
        one = facts.activation_bytes
        gathered = alive * (one + (0.0 if frozen else one + facts.training.grad_reduce_bytes_per_param))
        out["gathered parameters"] = np.where(layouts.zero_stage == 3, gathered, 0.0)
    return _as_measured(facts, out)


def planned_bytes(facts: Facts, shape: ModelShape, layouts: Layouts, logits: bool, training: bool) -> Floats:
    """What a search finds room for: what typical micro-batches need, and what rare ones need beyond the headroom.

    Parameters
    ----------
    facts, shape, layouts, logits
        As in ``training_bytes``.
    training
        Whether it is a training step, or a forward pass.

    Returns
    -------
    Floats
        Bytes, ``[C]``.
    """
    need_of = training_bytes if training else inference_bytes
    return beyond_headroom(facts, *(total(need_of(facts, shape, layouts, logits, at)) for at in (TYPICAL, RARE)))


def beyond_headroom(facts: Facts, typical: Floats, rare: Floats) -> Floats:
    """The need of typical micro-batches, or that of rare ones less the headroom, whichever is more.

    Parameters
    ----------
    typical, rare
        Bytes, ``[C]`` each.

    Returns
    -------
    Floats
        Bytes, ``[C]``.
    """
    headroom = facts.memory_capacity_bytes - facts.memory_usable_bytes
    return np.asarray(np.maximum(typical, rare - headroom), dtype=np.float64)


def inference_bytes(
    facts: Facts, shape: ModelShape, layouts: Layouts, logits: bool, level: float = TYPICAL
) -> dict[str, Floats]:
    """Working memory of a forward pass: one layer's activations or, for log-probs, the logits behind the last one.

    No gradient is kept, so a layer's activations are gone when the logits are made of two rows of the hidden width.
    Logits are bf16 with as much again twice: a softmax and its product, for the entropy, or an fp32 copy.

    Parameters
    ----------
    logits
        Whether log-probs are asked for.
    level
        As in ``training_bytes``.

    Returns
    -------
    dict[str, Floats]
        Bytes by class, ``[C]`` each.
    """
    samples = np.ceil(facts.workload.num_samples / layouts.dp)
    tokens = batch_tokens(facts, layouts, samples, 1.0, level)
    layer = bytes_of_whole_layer(facts, shape, layouts) * tokens
    kept = float(logits and LOGIT_BYTES[facts.implementation.loss_head] > 0)
    at_head = tokens * shape.vocab / layouts.tp * (2.0 + 4.0) * kept
    hidden = np.minimum(2.0 * tokens * shape.hidden * facts.activation_bytes, layer)
    ends_here = hidden + at_head > layer
    out = {"activations": np.where(ends_here, hidden, layer), "logits": np.where(ends_here, at_head, 0.0)}
    if np.any(layouts.zero_stage == 3):
        gathered = _alive_params(shape, layouts) * facts.activation_bytes
        out["gathered parameters"] = np.where(layouts.zero_stage == 3, gathered, 0.0)
    return _as_measured(facts, out)


def _as_measured(facts: Facts, needs: dict[str, Floats]) -> dict[str, Floats]:
    """What passes need, times the factor that the peak of a calibrated run gives."""
    factor = facts.calibration.memory
    return needs if factor == 1.0 else {name: size * factor for name, size in needs.items()}


def total(classes: dict[str, Floats]) -> Floats:
    """Sum over the classes.

    Parameters
    ----------
    classes
        Bytes by class, ``[C]`` each.

    Returns
    -------
    Floats
        Bytes, ``[C]``.
    """
    return np.asarray(sum(classes.values()), dtype=np.float64)


def _alive_params(shape: ModelShape, layouts: Layouts) -> Floats:
    """Parameters that ZeRO 3 has gathered at once: two layers, and both ends of the model, which are one unit."""
    ends = shape.num_params - shape.layer_params
    return np.asarray((2 * shape.layer_params / shape.num_layers + ends) / layouts.tp, dtype=np.float64)
