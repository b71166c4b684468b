"""Scoring of a trained role in a layout of its own: what the copy of its weights takes to gather, and to hold.

The copy is gathered for a call and let go of after it. Each rank receives the whole model tensor by tensor from the
replica that it trains in, and keeps its share (``executor/engines/native/resharding.py``), so the volume is that
of HybridFlow-V in Table 2 of the paper, whatever the copy's layout.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from profiles.records import Floats, Priced, where
from simulator.cost import comms, memory, parameters
from simulator.cost.handover import export_time

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from profiles.models.shape import Head, ModelShape
    from simulator.facts import Facts
    from simulator.plan.layouts import Layouts

_DEGREES = ("dp", "tp", "pp", "cp", "ep")


def apart(training: Layouts, scoring: Layouts) -> NDArray[np.bool_]:
    """Whether each pair needs a copy: other degrees, or parameters that only training shards (ZeRO 3).

    Parameters
    ----------
    training, scoring
        Pairs of layouts, ``[C]``.

    Returns
    -------
    NDArray[np.bool_]
        Booleans, ``[C]``.
    """
    alike = (training.zero_stage == 3) == (scoring.zero_stage == 3)
    for name in _DEGREES:
        alike = alike & (getattr(training, name) == getattr(scoring, name))
    return np.asarray(~alike, dtype=np.bool_)


def gather_time(facts: Facts, shape: ModelShape, training: Layouts, scoring: Layouts) -> Priced:
    """Time to gather each copy; zero where the two layouts are one.

    An all-gather of the whole model over the GPUs that hold it once (expert-parallel ranks among them, all
    data-parallel ones under ZeRO 3), and the engine's host time for each tensor.

    Parameters
    ----------
    training, scoring
        Pairs of layouts, ``[C]``.

    Returns
    -------
    Priced
        Seconds, ``[C]``.

    Notes
    -----
    Source: volume of HybridFlow-V in Table 2; no published row has such a copy.
    """
    needed, nothing = apart(training, scoring), Priced.zero((len(training),))
    if not np.any(needed):
        return nothing
    sharded = np.where(training.zero_stage == 3, training.dp * training.cp, 1)
    ranks = training.pp * np.maximum(training.tp, training.ep) * sharded
    moved = comms.strided(facts, "all_gather", shape.num_params * facts.activation_bytes, ranks, np.ones_like(ranks))
    return where(needed, moved + export_time(facts, shape), nothing)


def copy_bytes(
    facts: Facts, shape: ModelShape, head: Head, copy: Layouts, working: dict[str, Floats]
) -> dict[str, Floats]:
    """Bytes per GPU of copies in these layouts, and of what gathering adds.

    While a tensor is gathered its parts and the whole lie beside each other, so the largest one counts twice.

    Parameters
    ----------
    copy
        Layouts of the copies, ``[C]``.
    working
        Bytes by class of the pass itself, ``[C]`` each.

    Returns
    -------
    dict[str, Floats]
        Bytes by class, ``[C]`` each.
    """
    weights = parameters.params_per_gpu(shape, head, copy.tp, copy.pp, copy.ep) * facts.activation_bytes
    largest = shape.hidden * max(shape.vocab, shape.ffn, shape.q_width) * facts.activation_bytes
    return {"scoring weights": weights, "gather buffer": np.maximum(2.0 * largest - memory.total(working), 0.0)}
