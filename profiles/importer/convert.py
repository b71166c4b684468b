"""From the rows of a source table to the rows we keep: names, units, and what is left out.

Traps of the source that are handled here, and nowhere else:

* ``message_size`` of the communication tables counts elements (int8 at twice the count takes the time of half);
* latencies are milliseconds, except ``moe_a2a_perf``, which is microseconds;
* ``step`` of the decode tables is the context before the new token, so the kernel reads ``step + 1`` tokens;
* older tables have no ``window_size`` column: all their rows are full attention.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from profiles.units import ms_to_s, us_to_s

if TYPE_CHECKING:
    from collections.abc import Callable

DTYPES = {"bfloat16": "bf16", "fp8": "fp8", "fp8_block": "fp8_block"}
HEAD_DIMS = (64, 128, 192, 256)
DISTRIBUTIONS = ("power_law_1.2", "balanced")
_HALF_BYTES = 2


def _only(rows: pd.DataFrame, **allowed: tuple[object, ...]) -> pd.DataFrame:
    """Rows whose column is one of the allowed values; a column that an older table lacks does not filter."""
    keep = np.ones(len(rows), dtype=bool)
    for column, values in allowed.items():
        if column in rows:
            keep &= rows[column].isin(values).to_numpy()
    return rows[keep]


def gemm_rows(dtypes: tuple[str, ...]) -> Callable[[pd.DataFrame], pd.DataFrame]:
    """Make the conversion of a GEMM table that keeps only these source dtypes."""

    def convert(rows: pd.DataFrame) -> pd.DataFrame:
        r = _only(rows, gemm_dtype=dtypes)
        sizes = {"m": r.m, "n": r.n, "k": r.k}
        return pd.DataFrame(
            {"dtype": r.gemm_dtype.map(DTYPES), **sizes, "kernel": r.kernel_source, "latency_s": ms_to_s(1) * r.latency}
        )

    return convert


def prefill_rows(rows: pd.DataFrame) -> pd.DataFrame:
    """Convert a context attention table."""
    r = _only(rows, window_size=(0,), beam_width=(1,), head_dim=HEAD_DIMS, kv_cache_dtype=("bfloat16",))
    heads = {"head_dim": r.head_dim, "heads": r.num_heads, "kv_heads": r.num_key_value_heads}
    return pd.DataFrame({**heads, "batch": r.batch_size, "seq": r.isl, "latency_s": ms_to_s(1) * r.latency})


def decode_rows(rows: pd.DataFrame) -> pd.DataFrame:
    """Convert a generation attention table, BF16 and FP8 KV cache."""
    r = _only(rows, window_size=(0,), beam_width=(1,), head_dim=HEAD_DIMS, kv_cache_dtype=("bfloat16", "fp8"))
    heads = {"head_dim": r.head_dim, "heads": r.num_heads, "kv_heads": r.num_key_value_heads}
    sizes = {"batch": r.batch_size, "context": r.step + 1}
    dtype = r.kv_cache_dtype.map(DTYPES)
    return pd.DataFrame({"kv_dtype": dtype, **heads, **sizes, "latency_s": ms_to_s(1) * r.latency})


def mla_rows(size: str) -> Callable[[pd.DataFrame], pd.DataFrame]:
    """Make the conversion of an MLA table whose length column becomes ``seq`` or ``context``."""

    def convert(rows: pd.DataFrame) -> pd.DataFrame:
        r = _only(rows, mla_dtype=("bfloat16",), kv_cache_dtype=("bfloat16",), gemm_type=("bfloat16", "fp8_block"))
        # The bare kernel has no projections, hence no GEMM dtype.
        dtype = r.gemm_type.map(DTYPES) if "gemm_type" in r else pd.Series("bf16", index=r.index)
        length = r.isl if size == "seq" else r.step + 1
        keys = {"dtype": dtype, "heads": r.num_heads, "batch": r.batch_size}
        return pd.DataFrame({**keys, size: length, "latency_s": ms_to_s(1) * r.latency})

    return convert


def moe_rows(rows: pd.DataFrame) -> pd.DataFrame:
    """Convert a grouped expert table."""
    r = _only(rows, moe_dtype=tuple(DTYPES))
    # Keep the two distributions we use; a system that lacks "balanced" keeps its flattest power law instead.
    have = set(r.distribution)
    wanted = DISTRIBUTIONS if have.issuperset(DISTRIBUTIONS) else ("power_law_1.2", "power_law_1.01")
    r = _only(r, distribution=wanted)
    shape = {"hidden": r.hidden_size, "ffn": r.inter_size, "topk": r.topk, "experts": r.num_experts}
    layout = {"tp": r.moe_tp_size, "ep": r.moe_ep_size, "num_tokens": r.num_tokens}
    names = {"dtype": r.moe_dtype.map(DTYPES), "distribution": r.distribution}
    latency = {"kernel": r.kernel_source, "latency_s": ms_to_s(1) * r.latency}
    return pd.DataFrame({**names, **shape, **layout, **latency})


def collective_rows(rows: pd.DataFrame) -> pd.DataFrame:
    """Convert an NCCL table; elements become bytes.

    ``int8`` is not used by any price. It stays because it proves the unit: at equal bytes it equals ``fp16``.
    """
    element_bytes = {"half": 2, "int8": 1}
    r = _only(rows, nccl_dtype=tuple(element_bytes))
    names = {"dtype": r.nccl_dtype.replace({"half": "fp16"}), "kind": r.op_name.replace({"alltoall": "all_to_all"})}
    num_bytes = r.message_size * r.nccl_dtype.map(element_bytes)
    return pd.DataFrame({**names, "gpus": r.num_gpus, "num_bytes": num_bytes, "latency_s": ms_to_s(1) * r.latency})


def custom_all_reduce_rows(rows: pd.DataFrame) -> pd.DataFrame:
    """Convert vLLM's all-reduce table; elements become bytes."""
    r = _only(rows, allreduce_dtype=("bfloat16",), backend=("vllm_graph", "vllm_eager"))
    mode = r.backend.str.removeprefix("vllm_")
    num_bytes = r.message_size * _HALF_BYTES
    return pd.DataFrame({"mode": mode, "gpus": r.num_gpus, "num_bytes": num_bytes, "latency_s": ms_to_s(1) * r.latency})


def moe_all_to_all_rows(rows: pd.DataFrame) -> pd.DataFrame:
    """Dispatch plus combine of one layer; DeepEP's high-throughput mode for prefill, low-latency for decode."""
    phases = {"deepep_ht": "prefill", "deepep_ll": "decode"}
    r = _only(rows, comm_backend=tuple(phases), node_num=(1,))
    r = r.assign(stage=r.comm_backend.map(phases))
    keys = ["stage", "hidden_size", "topk", "num_experts", "ep_size", "num_tokens"]
    both = r.groupby([*keys, "phase"])["latency"].median().unstack("phase").dropna().reset_index()
    shape = {"phase": both.stage, "hidden": both.hidden_size, "topk": both.topk, "experts": both.num_experts}
    latency = us_to_s(1) * (both["dispatch"] + both["combine"])
    return pd.DataFrame({**shape, "ep": both.ep_size, "num_tokens": both.num_tokens, "latency_s": latency})
