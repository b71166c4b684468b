"""Which tables we ship, which file of the source each comes from, and what its columns mean.

vLLM comes first, since its engine is the one that hybridmap plans for. One exception: vLLM's ``fp8_block`` GEMM
rows were timed without CUDA graphs and show a host floor of 60-300 us whatever the size; TensorRT-LLM timed the
same block-scaled GEMM on the device, so that dtype comes from there.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from profiles.importer import convert

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import pandas as pd

ALLOWED_FAMILIES = frozenset({"gemm", "attention", "mla", "mla_bmm", "moe", "comm"})

SLOWER_THAN_LARGER = 1.25


@dataclass(frozen=True)
class Part:
    """One source file of a table.

    ``convert`` turns the source rows (checked to hold ``needs``) into the columns of the table, with an optional
    ``kernel`` column; ``facts`` go to the sidecar as they are; with ``all_groups`` the newest version that has
    every GPU count is taken, not simply the newest.
    """

    family: str
    framework: str
    stem: str
    needs: tuple[str, ...]
    convert: Callable[[pd.DataFrame], pd.DataFrame]
    facts: Mapping[str, bool | str] = field(default_factory=dict)
    all_groups: bool = False


@dataclass(frozen=True)
class TableRule:
    """A table we ship: key and size columns with units, and where the rows come from.

    ``slots`` are put together; of the parts of one slot the first that the system has is taken.
    """

    name: str
    keys: Mapping[str, str]
    sizes: Mapping[str, str]
    slots: tuple[tuple[Part, ...], ...]
    kept: tuple[str, ...]


_ATTENTION = ("batch_size", "num_heads", "num_key_value_heads", "head_dim", "kv_cache_dtype", "latency")
_MLA = ("num_heads", "batch_size", "kv_cache_dtype", "latency")
_GEMM = ("gemm_dtype", "kernel_source", "m", "n", "k", "latency")
_MODULE = {"covers_projections": True}
_KERNEL = {"covers_projections": False}
_HEADS = {"head_dim": "elements", "heads": "query heads of one rank", "kv_heads": "KV heads of one rank"}
_EXPERTS = {"hidden": "elements", "topk": "experts per token", "experts": "experts of the layer"}

RULES = (
    TableRule(
        "gemm",
        {"dtype": "name"},
        {"m": "rows", "n": "elements", "k": "elements"},
        (
            (Part("gemm", "vllm", "gemm_perf", _GEMM, convert.gemm_rows(("bfloat16", "fp8"))),),
            (Part("gemm", "trtllm", "gemm_perf", _GEMM, convert.gemm_rows(("fp8_block",))),),
        ),
        ("dtypes bf16, fp8 and fp8_block; the fastest kernel source of a key, as the engine picks it",),
    ),
    TableRule(
        "attention_prefill",
        _HEADS,
        {"batch": "sequences", "seq": "tokens"},
        ((Part("attention", "vllm", "context_attention_perf", (*_ATTENTION, "isl"), convert.prefill_rows),),),
        ("window_size 0, beam 1, head_dim 64-256, BF16 KV cache",),
    ),
    TableRule(
        "attention_decode",
        {"kv_dtype": "name", **_HEADS},
        {"batch": "sequences", "context": "tokens read, the new one included"},
        ((Part("attention", "vllm", "generation_attention_perf", (*_ATTENTION, "step"), convert.decode_rows),),),
        ("window_size 0, beam 1, head_dim 64-256, BF16 and FP8 KV cache",),
    ),
    TableRule(
        "mla_prefill",
        {"dtype": "name", "heads": "query heads of one rank"},
        {"batch": "sequences", "seq": "tokens"},
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
    ),
    TableRule(
        "mla_decode",
        {"dtype": "name", "heads": "query heads of one rank"},
        {"batch": "sequences", "context": "tokens read, the new one included"},
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
        (
            (
                Part(
                    "moe",
                    "vllm",
                    "moe_perf",
                    (
                        "moe_dtype",
                        "num_tokens",
                        "hidden_size",
                        "inter_size",
                        "topk",
                        "num_experts",
                        "moe_tp_size",
                        "moe_ep_size",
                        "distribution",
                        "kernel_source",
                        "latency",
                    ),
                    convert.moe_rows,
                ),
            ),
        ),
        (
            "dtypes bf16, fp8 and fp8_block; the fastest kernel source of a key, as the engine picks it",
            "routing power_law_1.2 and balanced (power_law_1.01 where there is no balanced)",
        ),
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
        (
            (
                Part(
                    "comm",
                    "vllm",
                    "custom_allreduce_perf",
                    ("allreduce_dtype", "num_gpus", "message_size", "backend", "latency"),
                    convert.custom_all_reduce_rows,
                ),
            ),
        ),
        ("vLLM's kernel, captured in a CUDA graph and eager; elements turned into bytes",),
    ),
    TableRule(
        "moe_all_to_all",
        {"phase": "name", **_EXPERTS, "ep": "ranks of one node"},
        {"num_tokens": "tokens of one rank"},
        (
            (
                Part(
                    "comm",
                    "vllm",
                    "moe_a2a_perf",
                    (
                        "comm_backend",
                        "phase",
                        "ep_size",
                        "node_num",
                        "hidden_size",
                        "topk",
                        "num_experts",
                        "num_tokens",
                        "latency",
                    ),
                    convert.moe_all_to_all_rows,
                ),
            ),
        ),
        ("DeepEP, dispatch + combine: high-throughput mode as prefill, low-latency mode as decode; one node",),
    ),
)
