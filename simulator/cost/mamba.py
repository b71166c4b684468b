"""Mamba-2 mixers by roofline: state-space duality in chunks, convolution, gated norm; one step of decode.

No table holds these kernels whole (what tables call Mamba-2 is its convolution), so bytes and FLOPs are counted and
stated shares of the device's rates are assumed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from profiles.records import Basis, Priced, longer

if TYPE_CHECKING:
    from profiles.models.layers import LinearShape
    from profiles.records import Floats, Ints
    from simulator.facts import Facts

CHUNK = 128
"""Tokens of a chunk, Megatron-Core's default; mamba-ssm takes 256."""
MATRIX_SHARE = 0.25
"""Share of the sustained matrix rate that Triton's products of a chunk reach, assumed: small tiles, masks between."""
KERNELS = 8
"""Convolution, cumulative decay, states of chunks, their passing on, products of groups, scan, gated norm, split."""

STEP_KERNELS = 4
"""Update of the convolution, rates of decay, update of the state with its output, gated norm."""


def mixer_forward(facts: Facts, linear: LinearShape, tokens: Floats, tp: Ints) -> Priced:
    """One Mamba-2 mixer without its projections, forward.

    Parameters
    ----------
    linear
        Sizes of the mixer.
    tokens
        Of the rank's micro-batch, ``[C]``.
    tp
        Tensor-parallel degree, which heads and groups are cut by, ``[C]``.

    Returns
    -------
    Priced
        Seconds, ``[C]``.

    Notes
    -----
    Source: Mamba-2 (Dao and Gu 2024), section 6: a chunk of Q tokens takes ``2 Q P + 4 N P`` FLOPs a token and head and
    ``2 Q N`` a token and group, for heads of P and states of N. Bytes a token: the convolution reads and writes its
    width, the scan reads it, writes its output and passes a state of each chunk four times in FP32, the gated norm
    reads twice and writes once. Nothing was measured on it: expect tens of percent of this part.
    """
    t = np.asarray(tp, dtype=np.float64)
    heads, groups = linear.v_heads / t, np.maximum(linear.k_heads / t, 1.0)
    flop = (
        heads * (2.0 * CHUNK * linear.v_dim + 4.0 * linear.k_dim * linear.v_dim) + groups * 2.0 * CHUNK * linear.k_dim
    )
    states = 4.0 * 4.0 * heads * linear.k_dim * linear.v_dim / CHUNK
    num_bytes = facts.activation_bytes * (3.0 * linear.conv_width + 4.0 * linear.value_width) / t + states
    rate = facts.device.spec.sustained(facts.plain_dtype) * MATRIX_SHARE
    products = Priced.of(tokens * flop / rate, Basis.ASSUMED)
    return longer(products, facts.device.memory_bound(tokens * num_bytes, KERNELS)).at_best(Basis.ASSUMED)


def mixer_step(facts: Facts, linear: LinearShape, sequences: Floats, tp: Ints) -> Priced:
    """One Mamba-2 mixer without its projections for one new token of each sequence, whatever its context.

    Parameters
    ----------
    linear
        Sizes of the mixer.
    sequences
        Of one attention copy, ``[C, S]``.
    tp
        GPUs that heads and groups are cut by; shapes broadcast.

    Returns
    -------
    Priced
        Seconds, the shape of ``sequences``.

    Notes
    -----
    Source: the recurrence ``h = a h + b x`` (Dao and Gu 2024, section 3) reads and writes the state and the past of the
    convolution once; what enters and leaves is counted as in a pass over a prompt. Nothing was measured on it.
    """
    t = np.asarray(tp, dtype=np.float64)
    kept = linear.state_elements * linear.state_element_bytes + linear.conv_elements * facts.activation_bytes
    inputs = facts.activation_bytes * (linear.conv_width + 4.0 * linear.value_width)
    return facts.device.memory_bound(sequences * (2.0 * kept + inputs) / t, STEP_KERNELS).at_best(Basis.ASSUMED)
