"""Which tables we ship, which file of the source each comes from, and what its columns mean.

The common tables are vLLM's newest: the trainer's kernels are the same, and so are those of engines without tables of
their own. vLLM's ``fp8_block`` GEMM rows were timed without CUDA graphs and show a host floor of 60 to 900 us whatever
the size; TensorRT-LLM timed the same block-scaled GEMM on the device, so that dtype comes from there. Each GEMM row is
held against those of the other engines: see ``import_tables.SLOWER_THAN_PEERS``.
"""

from __future__ import annotations

from profiles.importer import convert
from profiles.importer.mixer_tables import linear_and_sparse_rules, mixer_rules
from profiles.importer.rules import ONE_OF_A_KEY, Part, TableRule

ALLOWED_FAMILIES = frozenset(
    {"gemm", "quantize", "attention", "mla", "moe", "comm", "linear_attention", "sparse_attention"}
)

ADDITIONS = {
    ("trtllm", "moe_perf"): ("1.3.0rc23",),
    ("trtllm", "dsa_context_module_perf"): ("1.3.0rc23",),
    ("trtllm", "dsa_generation_module_perf"): ("1.3.0rc23",),
}
"""Releases whose table holds the few shapes of one new model; the release before it has all the others."""

_GEMM = ("gemm_dtype", "kernel_source", "m", "n", "k", "latency")
_MOE = (
    *("moe_dtype", "num_tokens", "hidden_size", "inter_size", "topk", "num_experts"),
    *("moe_tp_size", "moe_ep_size", "distribution", "kernel_source", "latency"),
)
_REDUCE = ("allreduce_dtype", "num_gpus", "message_size", "latency")
_EXCHANGE = (
    *("comm_backend", "phase", "ep_size", "node_num", "hidden_size", "topk", "num_experts", "num_tokens", "latency"),
)
_WIDE = ("node_num", "hidden_size", "num_token", "num_topk", "num_experts")
_EXPERTS = {"hidden": "elements", "topk": "experts per token", "experts": "experts of the layer"}
_FP4 = ("bfloat16", "fp8", "nvfp4")
_QUANTISED = ("computescale_perf", "scale_matrix_perf")

RULES = (
    TableRule(
        "gemm",
        {"dtype": "name"},
        {"m": "rows", "n": "elements", "k": "elements"},
        (
            (Part("gemm", "vllm", "gemm_perf", _GEMM, convert.gemm_rows(_FP4), less=("scale_matrix_perf",)),),
            (Part("gemm", "trtllm", "gemm_perf", _GEMM, convert.gemm_rows(("fp8_block",))),),
        ),
        (f"dtypes bf16, fp8, fp8_block, nvfp4; {ONE_OF_A_KEY}", "FP8 without the quantisation of activations"),
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
        engine_kept=(ONE_OF_A_KEY, "FP8 of TensorRT-LLM without the quantisation of activations"),
    ),
    *mixer_rules(),
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
            f"dtypes bf16, fp8, fp8_block, nvfp4, mxfp4 (BF16 or MXFP8 activations) and int4; {ONE_OF_A_KEY}",
            "routing power_law_1.2 and balanced (power_law_1.01 where there is no balanced)",
        ),
        engines={
            "vllm": ((Part("moe", "vllm", "moe_perf", _MOE, convert.skewed_moe_rows, releases=("0.19.0",)),),),
            "sglang": ((Part("moe", "sglang", "moe_perf", _MOE, convert.skewed_moe_rows, releases=("0.5.10",)),),),
            "tensorrt-llm": (
                (Part("moe", "trtllm", "moe_perf", _MOE, convert.skewed_moe_rows, releases=("1.3.0rc10",)),),
            ),
        },
        engine_kept=(ONE_OF_A_KEY, "routing power_law_1.2"),
    ),
    *linear_and_sparse_rules(),
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
