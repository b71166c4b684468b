"""Tables of what mixes tokens: attention, whole and windowed, latent and sparse attention, gated delta nets.

Each operator has a table for prompts and one for decode steps, alike but for the column of lengths.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from profiles.importer import convert
from profiles.importer.rules import CONTEXT, KV_DTYPE, SEQUENCES, Part, TableRule, of_others, one

if TYPE_CHECKING:
    from collections.abc import Mapping

    from profiles.importer.rules import Slots


@dataclass(frozen=True)
class _Phase:
    """Prompts or decode steps: our name, the source's in names of files, lengths in ours and the source's columns."""

    name: str
    source: str
    size: str
    length: str
    sizes: Mapping[str, str]

    @property
    def whole(self) -> bool:
        """Whether it is the pass over prompts."""
        return self.name == "prefill"


PREFILL = _Phase("prefill", "context", "seq", "isl", SEQUENCES)
DECODE = _Phase("decode", "generation", "context", "step", CONTEXT)

_HEADS = {"head_dim": "elements", "heads": "query heads of one rank", "kv_heads": "KV heads of one rank"}
_MLA_KEYS = {"dtype": "name", "heads": "query heads of one rank"}
_ATTENTION = ("batch_size", "num_heads", "num_key_value_heads", "head_dim", "kv_cache_dtype", "latency")
_MLA = ("num_heads", "batch_size", "kv_cache_dtype", "latency")
_LINEAR = ("phase", "kernel_source", "batch_size", "seq_len", "num_k_heads", "num_v_heads", "latency")
_SPARSE = ("architecture", "op_name", "num_heads", "batch_size", "kv_cache_dtype", "gemm_type", "step", "latency")
_MODULE, _KERNEL = {"covers_projections": True}, {"covers_projections": False}
_LANES = "SGLang's default kernel by device and head width; elsewhere the fastest of a key"


def mixer_rules() -> tuple[TableRule, ...]:
    """Every table of a mixer, in the order in which they are imported."""
    phases = (PREFILL, DECODE)
    return (
        *(_attention(phase) for phase in phases),
        *(_windowed(phase) for phase in phases),
        *(_latent(phase) for phase in phases),
    )


def linear_and_sparse_rules() -> tuple[TableRule, ...]:
    """Tables of mixers that few models have."""
    phases = (PREFILL, DECODE)
    return (*(_linear(phase) for phase in phases), *(_sparse(phase) for phase in phases))


def _attention(phase: _Phase) -> TableRule:
    """VLLM's with a BF16 cache (decode steps with an FP8 one, too) is common to all."""
    stem, needs = f"{phase.source}_attention_perf", (*_ATTENTION, phase.length)
    plain = convert.attention_rows(phase.size, (0,))
    of_prompts: dict[str, Slots] = {}
    common = convert.attention_rows("context")
    if phase.whole:
        common = convert.prefill_rows
        of_prompts["vllm"] = one(Part("attention", "vllm", stem, needs, convert.attention_rows("seq", (0,), ("fp8",))))
    caches = "BF16 KV cache" if phase.whole else "BF16 and FP8 KV cache"
    kept = "full attention, head_dim 64-512; FP8 queries beside an FP8 cache where measured"
    return TableRule(
        f"attention_{phase.name}",
        _HEADS if phase.whole else {**KV_DTYPE, **_HEADS},
        phase.sizes,
        one(Part("attention", "vllm", stem, needs, common)),
        (f"window_size 0, beam 1, head_dim 64-512, {caches}",),
        engine_keys={**KV_DTYPE, **_HEADS} if phase.whole else {},
        engines=of_prompts | of_others("attention", stem, needs, plain),
        engine_kept=(kept if phase.whole else f"full attention, head_dim 64-512, {caches}", _LANES),
    )


def _windowed(phase: _Phase) -> TableRule:
    stem, needs = f"{phase.source}_attention_perf", (*_ATTENTION, phase.length)
    rows, kept = convert.attention_rows(phase.size, convert.WINDOWS), "windows of 128, 1,024 and 8,192 tokens"
    return TableRule(
        f"attention_{phase.name}_window",
        {**KV_DTYPE, "window": "tokens", **_HEADS},
        phase.sizes,
        one(Part("attention", "vllm", stem, needs, rows)),
        (kept,),
        engines=of_others("attention", stem, needs, rows),
        engine_kept=(kept, _LANES),
    )


def _latent(phase: _Phase) -> TableRule:
    """Modules with their projections where they were measured, else the bare kernel."""
    module, kernel = f"mla_{phase.source}_module_perf", f"{phase.source}_mla_perf"
    short, long = (*_MLA, phase.length), (*_MLA, "gemm_type", phase.length)
    bf16 = convert.mla_rows(phase.size)
    fp8, both = (convert.mla_rows(phase.size, dtypes, keyed=True) for dtypes in (("fp8",), ("bfloat16", "fp8")))
    kept = "dtype is the one of the projections"
    return TableRule(
        f"mla_{phase.name}",
        _MLA_KEYS,
        phase.sizes,
        one(
            Part("mla", "vllm", module, long, bf16, _MODULE),
            Part("mla", "trtllm", kernel, short, bf16, _KERNEL),
        ),
        (f"DeepSeek-V3 shape, BF16 KV cache; {kept}",),
        engine_keys={**KV_DTYPE, **_MLA_KEYS},
        engines={
            "vllm": one(Part("mla", "vllm", module, long, fp8, _MODULE)),
            "sglang": one(Part("mla", "sglang", kernel, short, both, _KERNEL)),
            "tensorrt-llm": one(
                Part("mla", "trtllm", module, long, both, _MODULE),
                Part("mla", "trtllm", kernel, short, both, _KERNEL),
            ),
        },
        engine_kept=(f"DeepSeek-V3 shape; {kept}",),
    )


def _linear(phase: _Phase) -> TableRule:
    rows = convert.linear_rows(phase.source)
    kept = ("gated delta net: convolution and recurrence of one layer; heads of 128",)
    return TableRule(
        f"linear_{phase.name}",
        {"k_heads": "key heads of one rank", "v_heads": "value heads of one rank"},
        SEQUENCES if phase.whole else {"batch": "sequences"},
        one(*(Part("linear_attention", name, "gdn_perf", _LINEAR, rows) for name in ("vllm", "sglang"))),
        kept,
        engines=of_others("linear_attention", "gdn_perf", _LINEAR, rows),
        engine_kept=kept,
    )


def _sparse(phase: _Phase) -> TableRule:
    stem, rows = f"dsa_{phase.source}_module_perf", convert.sparse_rows(phase.size)
    of_what = "prompts without a prefix" if phase.whole else "one token a sequence"
    kept = (f"DeepSeek-V3.2 and GLM-5: indexer, projections and attention of {of_what}",)
    return TableRule(
        f"sparse_{phase.name}",
        {"kind": "name", "indexer": "name", **KV_DTYPE, **_MLA_KEYS},
        phase.sizes,
        one(Part("sparse_attention", "vllm", stem, _SPARSE, rows, _MODULE)),
        kept,
        engines=of_others("sparse_attention", stem, _SPARSE, rows),
        engine_kept=kept,
    )
