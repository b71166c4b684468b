"""Which tables we ship, which file of the source each comes from, and what its columns mean.

The common tables are vLLM's newest: the trainer's kernels are the same, and so are those of engines without tables of
their own. vLLM's ``fp8_block`` GEMM rows were timed without CUDA graphs and show a host floor of 60 to 900 us whatever
the size; TensorRT-LLM timed the same block-scaled GEMM on the device, so that dtype comes from there. Each GEMM row is
held against those of the other engines: see ``import_tables.SLOWER_THAN_PEERS``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from profiles.importer import convert

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import pandas as pd

ALLOWED_FAMILIES = frozenset(
    {"gemm", "quantize", "attention", "mla", "moe", "comm", "linear_attention", "sparse_attention"}
)

ADDITIONS = {
    ("trtllm", "moe_perf"): ("1.3.0rc23",),
    ("trtllm", "dsa_context_module_perf"): ("1.3.0rc23",),
    ("trtllm", "dsa_generation_module_perf"): ("1.3.0rc23",),
}
"""Releases whose table holds the few shapes of one new model; the release before it has all the others."""

SLOWER_THAN_LARGER = 1.25


@dataclass(frozen=True)
class Part:
    """One source file of a table.

    ``convert`` turns the source rows (checked to hold ``needs``) into the columns of the table, with an optional
    ``kernel`` column; ``facts`` go to the sidecar as they are; with ``all_groups`` the newest version that has
    every GPU count is taken, not simply the newest. ``less`` names tables of quantisation that FP8 rows hold too, and
    ``releases`` the older releases whose own table is kept beside the newest, since it differs.
    """

    family: str
    framework: str
    stem: str
    needs: tuple[str, ...]
    convert: Callable[[pd.DataFrame], pd.DataFrame]
    facts: Mapping[str, bool | str] = field(default_factory=dict)
    all_groups: bool = False
    less: tuple[str, ...] = ()
    releases: tuple[str, ...] = ()


Slots = tuple[tuple[Part, ...], ...]


@dataclass(frozen=True)
class TableRule:
    """A table we ship: key and size columns with units, and where the rows come from.

    ``slots`` are put together; of the parts of one slot the first that the system has is taken. Rows are held against
    those of ``peers``. ``engines`` are the slots of which every engine gets a table of its own, by its name with us.
    """

    name: str
    keys: Mapping[str, str]
    sizes: Mapping[str, str]
    slots: Slots
    kept: tuple[str, ...]
    peers: tuple[Part, ...] = ()
    engine_keys: Mapping[str, str] = field(default_factory=dict)
    engines: Mapping[str, Slots] = field(default_factory=dict)
    engine_kept: tuple[str, ...] = ()


_ATTENTION = ("batch_size", "num_heads", "num_key_value_heads", "head_dim", "kv_cache_dtype", "latency")
_PREFILL, _DECODE = (*_ATTENTION, "isl"), (*_ATTENTION, "step")
_MLA = ("num_heads", "batch_size", "kv_cache_dtype", "latency")
_GEMM = ("gemm_dtype", "kernel_source", "m", "n", "k", "latency")
_MOE = (
    *("moe_dtype", "num_tokens", "hidden_size", "inter_size", "topk", "num_experts"),
    *("moe_tp_size", "moe_ep_size", "distribution", "kernel_source", "latency"),
)
_REDUCE = ("allreduce_dtype", "num_gpus", "message_size", "latency")
_LINEAR = ("phase", "kernel_source", "batch_size", "seq_len", "num_k_heads", "num_v_heads", "latency")
_SPARSE = ("architecture", "op_name", "num_heads", "batch_size", "kv_cache_dtype", "gemm_type", "step", "latency")
_EXCHANGE = (
    *("comm_backend", "phase", "ep_size", "node_num", "hidden_size", "topk", "num_experts", "num_tokens", "latency"),
)
_WIDE = ("node_num", "hidden_size", "num_token", "num_topk", "num_experts")
_MODULE = {"covers_projections": True}
_KERNEL = {"covers_projections": False}
_KV = {"kv_dtype": "name"}
_HEADS = {"head_dim": "elements", "heads": "query heads of one rank", "kv_heads": "KV heads of one rank"}
_MLA_KEYS = {"dtype": "name", "heads": "query heads of one rank"}
_LINEAR_KEYS = {"k_heads": "key heads of one rank", "v_heads": "value heads of one rank"}
_SPARSE_KEYS = {"kind": "name", "indexer": "name", **_KV, **_MLA_KEYS}
_EXPERTS = {"hidden": "elements", "topk": "experts per token", "experts": "experts of the layer"}
_SEQUENCES = {"batch": "sequences", "seq": "tokens"}
_CONTEXT = {"batch": "sequences", "context": "tokens read, the new one included"}
_FP4 = ("bfloat16", "fp8", "nvfp4")
_QUANTISED = ("computescale_perf", "scale_matrix_perf")
_NO_LANES = "of several kernels of a key the fastest, as the engine picks it"
_LANES = "SGLang's default kernel by device and head width; elsewhere the fastest of a key"


def _attention(stem: str, size: str, needs: tuple[str, ...], windows: tuple[int, ...]) -> Mapping[str, Slots]:
    """The attention tables of the engines, whose common one is vLLM's with a BF16 cache."""
    rows = convert.attention_rows(size, windows)
    of_cache = rows if windows != (0,) else convert.attention_rows(size, windows, ("fp8",))
    vllm: dict[str, Slots] = (
        {"vllm": ((Part("attention", "vllm", stem, needs, of_cache),),)} if size == "seq" and windows == (0,) else {}
    )
    others = {"sglang": "sglang", "tensorrt-llm": "trtllm"}
    return vllm | {name: ((Part("attention", source, stem, needs, rows),),) for name, source in others.items()}


def _latent(size: str, context: str) -> Mapping[str, Slots]:
    """The MLA tables of the engines: modules where they were measured, else the bare kernel."""
    both = ("bfloat16", "fp8")
    module, kernel = f"mla_{context}_module_perf", f"{context}_mla_perf"
    length = "isl" if size == "seq" else "step"
    needs = (*_MLA, "gemm_type", length)
    rows, fp8 = convert.mla_rows(size, both, keyed=True), convert.mla_rows(size, ("fp8",), keyed=True)
    return {
        "vllm": ((Part("mla", "vllm", module, needs, fp8, _MODULE),),),
        "sglang": ((Part("mla", "sglang", kernel, (*_MLA, length), rows, _KERNEL),),),
        "tensorrt-llm": (
            (
                Part("mla", "trtllm", module, needs, rows, _MODULE),
                Part("mla", "trtllm", kernel, (*_MLA, length), rows, _KERNEL),
            ),
        ),
    }


def _both(
    family: str, stem: str, needs: tuple[str, ...], rows: Callable[[pd.DataFrame], pd.DataFrame]
) -> Mapping[str, Slots]:
    """The same conversion for SGLang's and TensorRT-LLM's table."""
    names = {"sglang": "sglang", "tensorrt-llm": "trtllm"}
    return {name: ((Part(family, source, stem, needs, rows),),) for name, source in names.items()}


RULES = (
    TableRule(
        "gemm",
        {"dtype": "name"},
        {"m": "rows", "n": "elements", "k": "elements"},
        (
            (Part("gemm", "vllm", "gemm_perf", _GEMM, convert.gemm_rows(_FP4), less=("scale_matrix_perf",)),),
            (Part("gemm", "trtllm", "gemm_perf", _GEMM, convert.gemm_rows(("fp8_block",))),),
        ),
        (f"dtypes bf16, fp8, fp8_block, nvfp4; {_NO_LANES}", "FP8 without the quantisation of activations"),
        peers=(
            Part("gemm", "sglang", "gemm_perf", _GEMM, convert.gemm_rows((*_FP4, "fp8_block"))),
            Part("gemm", "trtllm", "gemm_perf", _GEMM, convert.gemm_rows((*_FP4, "fp8_block")), less=_QUANTISED),
        ),
        engines={
            "sglang": ((Part("gemm", "sglang", "gemm_perf", _GEMM, convert.gemm_rows((*_FP4, "fp8_block"))),),),
            "tensorrt-llm": (
                (Part("gemm", "trtllm", "gemm_perf", _GEMM, convert.gemm_rows((*_FP4, "fp8_block")), less=_QUANTISED),),
            ),
        },
        engine_kept=(_NO_LANES, "FP8 of TensorRT-LLM without the quantisation of activations"),
    ),
    TableRule(
        "attention_prefill",
        _HEADS,
        _SEQUENCES,
        ((Part("attention", "vllm", "context_attention_perf", _PREFILL, convert.prefill_rows),),),
        ("window_size 0, beam 1, head_dim 64-256, BF16 KV cache",),
        engine_keys={**_KV, **_HEADS},
        engines=_attention("context_attention_perf", "seq", _PREFILL, (0,)),
        engine_kept=("full attention, head_dim 64-256; FP8 queries beside an FP8 cache where measured", _LANES),
    ),
    TableRule(
        "attention_decode",
        {**_KV, **_HEADS},
        _CONTEXT,
        ((Part("attention", "vllm", "generation_attention_perf", _DECODE, convert.attention_rows("context")),),),
        ("window_size 0, beam 1, head_dim 64-256, BF16 and FP8 KV cache",),
        engines=_attention("generation_attention_perf", "context", _DECODE, (0,)),
        engine_kept=("full attention, head_dim 64-256, BF16 and FP8 KV cache", _LANES),
    ),
    TableRule(
        "attention_prefill_window",
        {**_KV, "window": "tokens", **_HEADS},
        _SEQUENCES,
        (
            (
                Part(
                    "attention",
                    "vllm",
                    "context_attention_perf",
                    _PREFILL,
                    convert.attention_rows("seq", convert.WINDOWS),
                ),
            ),
        ),
        ("windows of 128, 1,024 and 8,192 tokens",),
        engines=_attention("context_attention_perf", "seq", _PREFILL, convert.WINDOWS),
        engine_kept=("windows of 128, 1,024 and 8,192 tokens", _LANES),
    ),
    TableRule(
        "attention_decode_window",
        {**_KV, "window": "tokens", **_HEADS},
        _CONTEXT,
        (
            (
                Part(
                    "attention",
                    "vllm",
                    "generation_attention_perf",
                    _DECODE,
                    convert.attention_rows("context", convert.WINDOWS),
                ),
            ),
        ),
        ("windows of 128, 1,024 and 8,192 tokens",),
        engines=_attention("generation_attention_perf", "context", _DECODE, convert.WINDOWS),
        engine_kept=("windows of 128, 1,024 and 8,192 tokens", _LANES),
    ),
    TableRule(
        "mla_prefill",
        _MLA_KEYS,
        _SEQUENCES,
        (
            (
                Part(
                    "mla",
                    "vllm",
                    "mla_context_module_perf",
                    (*_MLA, "gemm_type", "isl"),
                    convert.mla_rows("seq"),
                    _MODULE,
                ),
                Part("mla", "trtllm", "context_mla_perf", (*_MLA, "isl"), convert.mla_rows("seq"), _KERNEL),
            ),
        ),
        ("DeepSeek-V3 shape, BF16 KV cache; dtype is the one of the projections",),
        engine_keys={**_KV, **_MLA_KEYS},
        engines=_latent("seq", "context"),
        engine_kept=("DeepSeek-V3 shape; dtype is the one of the projections",),
    ),
    TableRule(
        "mla_decode",
        _MLA_KEYS,
        _CONTEXT,
        (
            (
                Part(
                    "mla",
                    "vllm",
                    "mla_generation_module_perf",
                    (*_MLA, "gemm_type", "step"),
                    convert.mla_rows("context"),
                    _MODULE,
                ),
                Part("mla", "trtllm", "generation_mla_perf", (*_MLA, "step"), convert.mla_rows("context"), _KERNEL),
            ),
        ),
        ("DeepSeek-V3 shape, BF16 KV cache; dtype is the one of the projections",),
        engine_keys={**_KV, **_MLA_KEYS},
        engines=_latent("context", "generation"),
        engine_kept=("DeepSeek-V3 shape; dtype is the one of the projections",),
    ),
    TableRule(
        "moe",
        {
            "dtype": "name",
            "distribution": "name",
            **{"hidden": "elements", "ffn": "elements of one expert, unsharded"},
            **{"topk": "experts per token", "experts": "experts of the layer", "tp": "ranks", "ep": "ranks"},
        },
        {"num_tokens": "tokens of the whole EP group, before the split over experts"},
        ((Part("moe", "vllm", "moe_perf", _MOE, convert.moe_rows),),),
        (
            f"dtypes bf16, fp8, fp8_block, nvfp4, mxfp4 (BF16 or MXFP8 activations) and int4; {_NO_LANES}",
            "routing power_law_1.2 and balanced (power_law_1.01 where there is no balanced)",
        ),
        engines={
            "vllm": ((Part("moe", "vllm", "moe_perf", _MOE, convert.skewed_moe_rows, releases=("0.19.0",)),),),
            "sglang": ((Part("moe", "sglang", "moe_perf", _MOE, convert.skewed_moe_rows, releases=("0.5.10",)),),),
            "tensorrt-llm": (
                (Part("moe", "trtllm", "moe_perf", _MOE, convert.skewed_moe_rows, releases=("1.3.0rc10",)),),
            ),
        },
        engine_kept=(_NO_LANES, "routing power_law_1.2"),
    ),
    TableRule(
        "linear_prefill",
        _LINEAR_KEYS,
        _SEQUENCES,
        (
            (
                Part("linear_attention", "vllm", "gdn_perf", _LINEAR, convert.linear_rows("context")),
                Part("linear_attention", "sglang", "gdn_perf", _LINEAR, convert.linear_rows("context")),
            ),
        ),
        ("gated delta net: convolution and recurrence of one layer; heads of 128",),
        engines=_both("linear_attention", "gdn_perf", _LINEAR, convert.linear_rows("context")),
        engine_kept=("gated delta net: convolution and recurrence of one layer; heads of 128",),
    ),
    TableRule(
        "linear_decode",
        _LINEAR_KEYS,
        {"batch": "sequences"},
        (
            (
                Part("linear_attention", "vllm", "gdn_perf", _LINEAR, convert.linear_rows("generation")),
                Part("linear_attention", "sglang", "gdn_perf", _LINEAR, convert.linear_rows("generation")),
            ),
        ),
        ("gated delta net: convolution and recurrence of one layer; heads of 128",),
        engines=_both("linear_attention", "gdn_perf", _LINEAR, convert.linear_rows("generation")),
        engine_kept=("gated delta net: convolution and recurrence of one layer; heads of 128",),
    ),
    TableRule(
        "sparse_prefill",
        _SPARSE_KEYS,
        _SEQUENCES,
        ((Part("sparse_attention", "vllm", "dsa_context_module_perf", _SPARSE, convert.sparse_rows("seq"), _MODULE),),),
        ("DeepSeek-V3.2 and GLM-5: indexer, projections and attention of prompts without a prefix",),
        engines=_both("sparse_attention", "dsa_context_module_perf", _SPARSE, convert.sparse_rows("seq")),
        engine_kept=("DeepSeek-V3.2 and GLM-5: indexer, projections and attention of prompts without a prefix",),
    ),
    TableRule(
        "sparse_decode",
        _SPARSE_KEYS,
        _CONTEXT,
        (
            (
                Part(
                    "sparse_attention",
                    "vllm",
                    "dsa_generation_module_perf",
                    _SPARSE,
                    convert.sparse_rows("context"),
                    _MODULE,
                ),
            ),
        ),
        ("DeepSeek-V3.2 and GLM-5: indexer, projections and attention of one token a sequence",),
        engines=_both("sparse_attention", "dsa_generation_module_perf", _SPARSE, convert.sparse_rows("context")),
        engine_kept=("DeepSeek-V3.2 and GLM-5: indexer, projections and attention of one token a sequence",),
    ),
    TableRule(
        "collective",
        {"dtype": "name", "kind": "name", "gpus": "GPUs of one NVLink domain"},
        {"num_bytes": "bytes: gathered tensor, or send buffer of one rank for all_to_all"},
        (
            (
                Part(
                    "comm",
                    "nccl",
                    "nccl_perf",
                    ("nccl_dtype", "num_gpus", "message_size", "op_name", "latency"),
                    convert.collective_rows,
                    all_groups=True,
                ),
            ),
        ),
        ("elements turned into bytes; int8 only as the proof of that unit",),
    ),
    TableRule(
        "custom_all_reduce",
        {"mode": "name", "gpus": "GPUs of one NVLink domain"},
        {"num_bytes": "bytes"},
        ((Part("comm", "vllm", "custom_allreduce_perf", (*_REDUCE, "backend"), convert.custom_all_reduce_rows),),),
        ("vLLM's kernel, captured in a CUDA graph and eager; elements turned into bytes",),
        engines={
            name: (
                (Part("comm", source, "custom_allreduce_perf", _REDUCE, convert.custom_all_reduce_rows, releases=old),),
            )
            for name, source, old in (
                ("vllm", "vllm", ("0.14.0",)),
                ("sglang", "sglang", ("0.5.9",)),
                ("tensorrt-llm", "trtllm", ("1.2.0rc5",)),
            )
        },
        engine_kept=("captured in a CUDA graph, and eager where measured; elements turned into bytes",),
    ),
    TableRule(
        "moe_all_to_all",
        {"phase": "name", **_EXPERTS, "ep": "ranks of one node"},
        {"num_tokens": "tokens of one rank"},
        ((Part("comm", "vllm", "moe_a2a_perf", _EXCHANGE, convert.moe_all_to_all_rows),),),
        ("DeepEP, dispatch + combine: high-throughput mode as prefill, low-latency mode as decode; one node",),
        engines={
            "tensorrt-llm": ((Part("comm", "trtllm", "moe_a2a_perf", _EXCHANGE, convert.moe_all_to_all_rows),),),
            "sglang": (
                (Part("comm", "sglang", "wideep_deepep_normal_perf", _WIDE, convert.wide_all_to_all_rows("prefill")),),
                (Part("comm", "sglang", "wideep_deepep_ll_perf", _WIDE, convert.wide_all_to_all_rows("decode")),),
            ),
        },
        engine_kept=("DeepEP, dispatch + combine, BF16; one node",),
    ),
)
