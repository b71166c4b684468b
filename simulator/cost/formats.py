"""Number format of each kind of weight in an engine: one precision is asked for, checkpoints hold more than one.

Embedding, head, router and norms are never quantised. And the formats under which tables hold what an engine runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from profiles.units import DTYPE_BYTES
from simulator.cost import parameters

if TYPE_CHECKING:
    from profiles.models.shape import ModelShape
    from simulator.facts import Facts
    from simulator.plan.layouts import GenerationLayouts

PLAIN = ("bf16", "fp16", "fp32")
QUANTIZED_ACTIVATIONS = ("fp8", "fp8_block", "nvfp4", "mxfp4_mxfp8")
"""Formats whose products take quantised activations, too."""

_FOUR_BITS = ("nvfp4", "mxfp4", "mxfp4_mxfp8", "int4")
_SAME = {"fp8": ("fp8", "fp8_block"), "fp8_block": ("fp8", "fp8_block")}


def is_quantized(dtype: str) -> bool:
    """Whether the operands of a product in this format are quantised before it.

    Parameters
    ----------
    dtype
        Number format of the product.

    Returns
    -------
    bool
        So it is for eight and four bits, unless weights alone are narrow.
    """
    return dtype in QUANTIZED_ACTIVATIONS


@dataclass(frozen=True)
class Formats:
    """Formats of the projections of attention and linear mixers, dense MLPs, shared experts and routed experts."""

    attention: str
    dense_mlp: str
    shared_experts: str
    experts: str


def formats_of(shape: ModelShape, precision: str) -> Formats:
    """Formats of a model that an engine loads at a precision.

    Parameters
    ----------
    shape
        The model; its checkpoint's own formats decide where it is quantised to this precision.
    precision
        Asked for.

    Returns
    -------
    Formats
        The checkpoint's. Where nobody describes it, four bits hold the experts alone, if there are any (as gpt-oss,
        Kimi-K2 and DeepSeek's NVFP4 checkpoints do), and other formats hold everything.
    """
    own = shape.weights
    if own is not None and precision not in PLAIN:
        main = own.experts if shape.moe is not None else own.dense_mlp
        if main in _SAME.get(precision, (precision,)):
            return Formats(own.attention, own.dense_mlp, own.shared_experts, own.experts)
    if precision in _FOUR_BITS and shape.moe is not None:
        return Formats("bf16", "bf16", "bf16", precision)
    return Formats(precision, precision, precision, precision)


def expert_kernels(facts: Facts, dtype: str) -> str:
    """Number format under which tables hold the kernels that run an engine's routed experts.

    Parameters
    ----------
    dtype
        Number format of the experts' weights.

    Returns
    -------
    str
        The same, or MXFP4 with MXFP8 activations where engine and device have it.
    """
    narrow = dtype == "mxfp4" and facts.generation.mxfp8_activations and facts.device.has_experts("mxfp4_mxfp8")
    return "mxfp4_mxfp8" if narrow else dtype


def mla_dtype(facts: Facts, attention: str) -> str:
    """Format under which tables hold MLA whose projections are in ``attention``: they were measured in bf16 and blocks.

    Parameters
    ----------
    attention
        Number format of the projections.

    Returns
    -------
    str
        ``fp8_block`` for either FP8, else the plain format.
    """
    return "fp8_block" if attention.startswith("fp8") and facts.device.spec.computes("fp8") else facts.plain_dtype


def kv_dtype(facts: Facts, precision: str) -> str:
    """Number format of the cache: FP8 where the checkpoint's scales cover it and the engine follows them.

    Parameters
    ----------
    precision
        Number format of the weights.

    Returns
    -------
    str
        ``fp8``, or the plain format.
    """
    narrow = precision in facts.generation.fp8_cache_with and facts.device.spec.computes("fp8")
    return "fp8" if narrow else facts.plain_dtype


def weight_bytes(shape: ModelShape, layouts: GenerationLayouts, precision: str) -> float:
    """Weights of one GPU of the first layout; attention is copied, the experts are not.

    Parameters
    ----------
    layouts, precision
        Layouts, of which the first counts; number format asked for.

    Returns
    -------
    float
        Bytes.
    """
    formats = formats_of(shape, precision)
    tp, pp, ranks = float(layouts.tp[0]), float(layouts.pp[0]), float(layouts.attention_ranks[0])
    ends = (shape.embedding_params + shape.head_params) / ranks / pp
    routed = shape.moe.num_experts * shape.expert_params * shape.num_moe_layers / tp / pp if shape.moe else 0.0
    shared = shape.shared_expert_params * shape.num_moe_layers / ranks / pp
    dense = shape.dense_params / ranks / pp
    rest = float(parameters.generation_params(shape, layouts)[0]) - ends - routed - shared - dense
    parts = (
        (ends, "bf16"),
        (routed, formats.experts),
        (shared, formats.shared_experts),
        (dense, formats.dense_mlp),
        (rest, formats.attention),
    )
    return float(sum(params * DTYPE_BYTES[dtype] for params, dtype in parts))
