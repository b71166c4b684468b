"""Which published steps of training and of RL can be what they state; reasons start as those of ``gate``.

Degrees fit the model, weights the memory, and a step asks no more operations a second of its GPUs than they have.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.validation.gate import active_params, failed
from profiles.units import GIB

if TYPE_CHECKING:
    from profiles.hardware import DeviceSpec
    from profiles.models.shape import ModelShape
    from simulator.plan.plan import GenerationLayout, ParallelLayout

LEAST_FLOP_PER_PARAM = 4.0
"""Of a trained token: the forward pass and gradients of activations. Those of weights are adapters' alone, perhaps."""
LEAST_BYTES_PER_PARAM = 0.5
"""Of a weight in four bits, cut over all GPUs of a model."""


def check_degrees(shape: ModelShape, layout: ParallelLayout | GenerationLayout, gpus: int, spec: DeviceSpec) -> None:
    """Whether a model can lie as a row states; ``NotPredicted`` with the reason.

    ``gpus``: those over which its weights may be cut.
    """
    if shape.num_heads % layout.tp:
        raise failed(f"{layout.tp} ranks do not divide {shape.num_heads} heads")
    if shape.moe is not None and shape.moe.num_experts % layout.ep:
        raise failed(f"{layout.ep} groups do not divide {shape.moe.num_experts} experts")
    least = LEAST_BYTES_PER_PARAM * shape.num_params / gpus
    if least > spec.memory_bytes:
        raise failed(f"weights of {least / GIB:.0f} GiB a GPU exceed its {spec.memory_bytes / GIB:.0f} GiB")


def check_step(shape: ModelShape, spec: DeviceSpec, tokens: float, seconds: float | None, gpus: int) -> None:
    """Whether so many tokens can be trained on in the published time; ``NotPredicted`` with both numbers.

    At the device's highest rate in any format: which products are in which, few rows say.
    """
    if not seconds:
        return
    flop_per_s = LEAST_FLOP_PER_PARAM * active_params(shape) * tokens / seconds / gpus
    peak = max(spec.peak_flop_per_s.values())
    if flop_per_s > peak:
        raise failed(
            f"{tokens:,.0f} tokens in {seconds:.3g} s imply {flop_per_s / 1e12:,.0f} TFLOP/s a GPU of "
            f"{peak / 1e12:,.0f}"
        )
