"""New weights for a generation pool of its own: a broadcast in buckets, and what the engine's hand-over takes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from profiles.records import Basis, Floats, Priced
from profiles.units import DTYPE_BYTES
from simulator.cost import comms, engine_memory
from simulator.cost.call_cost import Cost
from simulator.cost.handover import conversion_time, num_tensors, quantisation_time, sent_bytes_per_param

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from profiles.models.shape import ModelShape
    from profiles.records import Ints
    from simulator.facts import Facts
    from simulator.plan.layouts import GenerationLayouts


CHANGED_SHARE = 0.02
"""Of the bf16 weights that a step of reinforcement learning changes by a bit or more: 1 to 3 %, verl 0.9.1's
``delta_sync/sparse_gather.py``."""
CHANGED_BYTES = 4.0 + 2.0
"""Of a changed weight on its way: its place in the tensor and its value, as verl's ``delta_sync/encode.py`` packs."""
CHANGES_S_PER_TENSOR = 0.2e-3
"""Host time to find one tensor's changes and to write them into the engine's own: some 25 operators of PyTorch at 8 us,
counted in verl's ``hf_delta_export`` and its loader of patches. A tensor without changes is looked through as well."""


def weight_sync_cost(
    facts: Facts,
    shape: ModelShape,
    trainer_gpus: ArrayLike,
    generation: GenerationLayouts,
    precision: str,
    receiver: Facts | None = None,
) -> Cost:
    """Time to bring new weights from a trainer pool to a dedicated generation pool.

    A bucketed broadcast: the trainer sends the model once through its own NICs, each NVLink domain of the receiving
    pool takes it in once through its NICs while it hands the buckets on inside, and the slower side paces. Pools that
    share one domain use NVLink; GPUs of another type share none. On top come the engine's own terms, as in the
    transition, and where it hands tensors over one by one from a single rank, the host time of that: per byte, growing
    by a share with each doubling of the domains that the tree of receivers reaches. Where only changes are sent, see
    ``_changes``.

    Parameters
    ----------
    trainer_gpus
        GPUs of the trainer's pool, ``[C]``.
    generation
        Engine layouts, ``[C]``.
    receiver
        The job seen from the generation pool's GPUs, where those are of another type.

    Returns
    -------
    Cost
        Seconds, ``[C]``.

    Notes
    -----
    Analytic but for the engine's terms, which are fitted on OpenRLHF's bars of Fig 14 (18 % off on the mean with them,
    30 to 50 % without one).
    """
    senders, there = np.asarray(trainer_gpus, dtype=np.float64), receiver or facts
    whole = shape.num_params * sent_bytes_per_param(precision)
    shard = engine_memory.generation_weight_bytes(shape, generation, sent_bytes_per_param(precision))
    moved = _moved(facts, there, senders, generation.num_gpus, whole, shard)
    engine = facts.generation
    fixed = engine.priced(transition_fixed_s=1.0) + facts.training.priced(send_fixed_s=1.0)
    if facts.implementation.weight_sync == "changes":
        return _changes(facts, shape, whole / senders, shard, moved) + Cost.of_compute(fixed + Priced.zero(moved.shape))
    named = facts.training.priced(send_s_per_tensor=num_tensors(shape), send_s_per_byte=whole)
    named = named + quantisation_time(there, shape, precision)
    domains = np.maximum((senders + generation.num_gpus) / facts.group.nvlink_domain_gpus, 1.0)
    tree = whole * (1.0 + engine.sync_growth_per_doubling * np.log2(domains))
    handed = engine.priced(sync_s_per_byte=tree).at_best(engine.basis("sync_growth_per_doubling"))
    return Cost.serial(fixed + conversion_time(facts, shard) + handed + named, moved)


def _changes(facts: Facts, shape: ModelShape, own: Floats, shard: Floats, moved: Priced) -> Cost:
    """Time to send what a step has changed, beside the fixed part.

    Each rank of the trainer holds the last sent weights of its shard (``own`` bytes) in pinned host memory, brings them
    in, compares, and writes the new ones out; every tensor is looked through. Only places and values of changes are
    gathered, sent and written, each some bytes more than the weight alone.
    """
    share = CHANGED_SHARE * CHANGED_BYTES / DTYPE_BYTES["bf16"]
    looked = facts.device.host_copy(own) * 2.0 + Priced.of(CHANGES_S_PER_TENSOR * num_tensors(shape), Basis.ANALYTIC)
    sent = facts.training.priced(send_s_per_byte=DTYPE_BYTES["bf16"] * shape.num_params)
    kept = (conversion_time(facts, shard) + sent) * share
    return Cost.serial(looked + kept.at_best(Basis.ASSUMED), (moved * share).at_best(Basis.ASSUMED))


def _moved(facts: Facts, there: Facts, senders: Floats, receivers: Ints, whole: float, shard: Floats) -> Priced:
    """Time of the bytes: out of the trainer's domains, into the engines' and around inside, ``[C]``."""
    domain = facts.group.nvlink_domain_gpus
    out = comms.domain_bandwidth(facts) * np.minimum(senders / domain, 1.0)
    into = comms.domain_bandwidth(there) * np.minimum(receivers / there.group.nvlink_domain_gpus, 1.0)
    across = whole / np.minimum(out, into) + facts.device.spec.inter_node_latency_s
    inside = shard / there.device.spec.nvlink_bytes_per_s
    near = (senders + receivers <= domain) & (there.group.device == facts.group.device)
    bases = np.where(near, Basis.ANALYTIC, comms.network_basis(facts))
    return Priced.of(np.where(near, inside, np.maximum(across, inside)), bases)
