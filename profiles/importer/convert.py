"""From the rows of a source table to the rows we keep: names, units, and what is left out.

Traps of the source that are handled here, and nowhere else:

* ``message_size`` of the communication tables counts elements (int8 at twice the count takes the time of half);
* latencies are milliseconds, except ``moe_a2a_perf``, which is microseconds;
* ``step`` of the decode tables is the context before the new token, so the kernel reads ``step + 1`` tokens;
* older tables have no ``window_size`` column: all their rows are full attention;
* an FP8 GEMM of TensorRT-LLM and vLLM is timed with the quantisation of its activations, which engines fuse into the
  norm before it (``less_quantisation``);
* some tables hold kernels that their engine does not choose on that device (``_of_default_kernel``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from profiles.units import ms_to_s, us_to_s

if TYPE_CHECKING:
    from collections.abc import Callable

DTYPES = {
    "bfloat16": "bf16",
    "fp8": "fp8",
    "fp8_block": "fp8_block",
    "nvfp4": "nvfp4",
    "w4a16_mxfp4": "mxfp4",
    "w4a8_mxfp4_mxfp8": "mxfp4_mxfp8",
    "int4_wo": "int4",
}
HEAD_DIMS = (64, 128, 192, 256, 512)
WINDOWS = (128, 1024, 8192)
DISTRIBUTIONS = ("power_law_1.2", "balanced")
_HALF_BYTES = 2
_WIDE_RANKS = 8


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
    """Convert a context attention table, BF16 KV cache."""
    r = _only(rows, window_size=(0,), beam_width=(1,), head_dim=HEAD_DIMS, kv_cache_dtype=("bfloat16",))
    heads = {"head_dim": r.head_dim, "heads": r.num_heads, "kv_heads": r.num_key_value_heads}
    return pd.DataFrame({**heads, "batch": r.batch_size, "seq": r.isl, "latency_s": ms_to_s(1) * r.latency})


def attention_rows(
    size: str, windows: tuple[int, ...] = (0,), kv_dtypes: tuple[str, ...] = ("bfloat16", "fp8")
) -> Callable[[pd.DataFrame], pd.DataFrame]:
    """Make the conversion of an attention table of BF16 and FP8 KV caches.

    Parameters
    ----------
    size
        ``seq`` of whole sequences, or ``context`` of one new token each.
    windows
        Windows to keep, tokens; 0 is full attention. Other than full, the window becomes a column.
    kv_dtypes
        Formats of the cache to keep. An FP8 cache is attended to in FP8 where the engine was measured so.
    """

    def convert(rows: pd.DataFrame) -> pd.DataFrame:
        r = _only(rows, window_size=windows, beam_width=(1,), head_dim=HEAD_DIMS, kv_cache_dtype=kv_dtypes)
        if windows != (0,) and "window_size" not in r:
            return pd.DataFrame()
        r = _of_default_kernel(_of_one_query_format(r))
        keys = {"kv_dtype": r.kv_cache_dtype.map(DTYPES)}
        if windows != (0,):
            keys["window"] = r.window_size
        keys |= {"head_dim": r.head_dim, "heads": r.num_heads, "kv_heads": r.num_key_value_heads}
        length = r.isl if size == "seq" else r.step + 1
        latency = {"kernel": r.kernel_source, "latency_s": ms_to_s(1) * r.latency}
        return pd.DataFrame({**keys, "batch": r.batch_size, size: length, **latency})

    return convert


def _of_one_query_format(r: pd.DataFrame) -> pd.DataFrame:
    """Queries of the cache's format where that was measured, else BF16 queries."""
    fp8_queries = (r.attn_dtype == "fp8") & (r.kv_cache_dtype == "fp8")
    if not fp8_queries.any():
        return r[r.attn_dtype == "bfloat16"]
    return r[fp8_queries | ((r.attn_dtype == "bfloat16") & (r.kv_cache_dtype == "bfloat16"))]


def _of_default_kernel(r: pd.DataFrame) -> pd.DataFrame:
    """SGLang on Blackwell: its TensorRT-LLM kernel; for the wide heads of hybrid models, Triton."""
    kernels = set(r.kernel_source)
    if "trtllm_mha" not in kernels:
        return r
    triton_heads = set(r[r.kernel_source == "triton"].head_dim)
    wanted = r.head_dim.isin(triton_heads).map({True: "triton", False: "trtllm_mha"})
    return r[r.kernel_source == wanted]


def mla_rows(
    size: str, kv_dtypes: tuple[str, ...] = ("bfloat16",), keyed: bool = False
) -> Callable[[pd.DataFrame], pd.DataFrame]:
    """Make the conversion of an MLA table whose length column becomes ``seq`` or ``context``.

    Parameters
    ----------
    size
        Name of the length column.
    kv_dtypes
        Formats of the latent cache to keep.
    keyed
        Whether that format becomes a column.
    """

    def convert(rows: pd.DataFrame) -> pd.DataFrame:
        r = _only(rows, mla_dtype=("bfloat16",), kv_cache_dtype=kv_dtypes, gemm_type=("bfloat16", "fp8_block"))
        # The bare kernel has no projections, hence no GEMM dtype.
        dtype = r.gemm_type.map(DTYPES) if "gemm_type" in r else pd.Series("bf16", index=r.index)
        length = r.isl if size == "seq" else r.step + 1
        keys = {"kv_dtype": r.kv_cache_dtype.map(DTYPES)} if keyed else {}
        keys |= {"dtype": dtype, "heads": r.num_heads, "batch": r.batch_size}
        return pd.DataFrame({**keys, size: length, "latency_s": ms_to_s(1) * r.latency})

    return convert


def skewed_moe_rows(rows: pd.DataFrame) -> pd.DataFrame:
    """Convert a grouped expert table, of the routing that prices are looked up at alone."""
    return moe_rows(_only(rows, distribution=DISTRIBUTIONS[:1]))


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


def linear_rows(phase: str) -> Callable[[pd.DataFrame], pd.DataFrame]:
    """Make the conversion of a gated delta net table: convolution and recurrence of one layer, added.

    Parameters
    ----------
    phase
        ``context`` for whole sequences, ``generation`` for one new token of each.
    """

    def convert(rows: pd.DataFrame) -> pd.DataFrame:
        r = rows[rows.phase == phase]
        keys = ["num_k_heads", "num_v_heads", "batch_size", "seq_len"]
        both = r.groupby([*keys, "kernel_source"])["latency"].median().unstack("kernel_source").dropna().reset_index()
        kernels = [name for name in both if name not in keys]
        heads = {"k_heads": both.num_k_heads, "v_heads": both.num_v_heads, "batch": both.batch_size}
        sizes = {"seq": both.seq_len} if phase == "context" else {}
        return pd.DataFrame({**heads, **sizes, "latency_s": ms_to_s(1) * both[kernels].sum(axis=1)})

    return convert


def sparse_rows(size: str) -> Callable[[pd.DataFrame], pd.DataFrame]:
    """Make the conversion of a table of sparse latent attention modules, projections and indexer included.

    Parameters
    ----------
    size
        ``seq`` of whole sequences without a prefix, or ``context`` of one new token each.
    """
    kinds = {"DeepseekV32ForCausalLM": "deepseek_v32", "GlmMoeDsaForCausalLM": "glm_moe_dsa"}

    def convert(rows: pd.DataFrame) -> pd.DataFrame:
        r = _only(rows, architecture=tuple(kinds), gemm_type=("bfloat16", "fp8_block"))
        r = r[r.step == 0] if size == "seq" else r
        indexer = r.op_name.str.endswith("skip_indexer").map({True: "shared", False: "full"})
        names = {"kind": r.architecture.map(kinds), "indexer": indexer, "kv_dtype": r.kv_cache_dtype.map(DTYPES)}
        length = r.isl if size == "seq" else r.step + 1
        keys = {**names, "dtype": r.gemm_type.map(DTYPES), "heads": r.num_heads, "batch": r.batch_size}
        return pd.DataFrame({**keys, size: length, "latency_s": ms_to_s(1) * r.latency})

    return convert


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
    """Convert the table of an engine's own all-reduce; elements become bytes. TensorRT-LLM's is captured in a graph."""
    r = _only(rows, allreduce_dtype=("bfloat16",))
    mode = r.backend.str.split("_").str[-1] if "backend" in r else pd.Series("graph", index=r.index)
    r, mode = r[mode.isin(("graph", "eager"))], mode[mode.isin(("graph", "eager"))]
    num_bytes = r.message_size * _HALF_BYTES
    return pd.DataFrame({"mode": mode, "gpus": r.num_gpus, "num_bytes": num_bytes, "latency_s": ms_to_s(1) * r.latency})


def moe_all_to_all_rows(rows: pd.DataFrame) -> pd.DataFrame:
    """Dispatch plus combine of one layer; DeepEP's high-throughput mode for prefill, low-latency for decode."""
    phases = {"deepep_ht": "prefill", "deepep_ll": "decode"}
    phases |= {f"trtllm_{name}": phase for name, phase in phases.items()}
    r = _only(rows, comm_backend=tuple(phases), node_num=(1,), comm_dtype=("default", "bfloat16"))
    r = r.assign(stage=r.comm_backend.map(phases))
    keys = ["stage", "hidden_size", "topk", "num_experts", "ep_size", "num_tokens"]
    both = r.groupby([*keys, "phase"])["latency"].median().unstack("phase").dropna().reset_index()
    shape = {"phase": both.stage, "hidden": both.hidden_size, "topk": both.topk, "experts": both.num_experts}
    latency = us_to_s(1) * (both["dispatch"] + both["combine"])
    return pd.DataFrame({**shape, "ep": both.ep_size, "num_tokens": both.num_tokens, "latency_s": latency})


def wide_all_to_all_rows(phase: str) -> Callable[[pd.DataFrame], pd.DataFrame]:
    """Make the conversion of SGLang's DeepEP tables: 8 ranks of a node, and of the streaming mode 20 SMs.

    Parameters
    ----------
    phase
        ``prefill`` (the mode called normal) or ``decode`` (low latency).
    """

    def convert(rows: pd.DataFrame) -> pd.DataFrame:
        r = _only(rows, node_num=(1,), dispatch_sms=(20,), combine_sms=(20,))
        if phase == "prefill":
            latency = r.dispatch_transmit_us + r.dispatch_notify_us + r.combine_transmit_us + r.combine_notify_us
        else:
            latency = r.dispatch_avg_t_us + r.combine_avg_t_us
        shape = {"hidden": r.hidden_size, "topk": r.num_topk, "experts": r.num_experts}
        sizes = {"ep": _WIDE_RANKS, "num_tokens": r.num_token}
        return pd.DataFrame({"phase": phase, **shape, **sizes, "latency_s": us_to_s(1) * latency}, index=r.index)

    return convert


def less_quantisation(rows: pd.DataFrame, tables: list[pd.DataFrame]) -> pd.DataFrame:
    """FP8 GEMM rows without the quantisation of their activations, which another table of the engine holds.

    Parameters
    ----------
    rows
        Converted GEMM rows.
    tables
        Source tables of ``m``, ``k`` and milliseconds, to be taken off one after another; interpolated in ln m and
        ln k.

    Returns
    -------
    DataFrame
        The same rows; no row falls below half of what was measured.
    """
    fp8 = (rows["dtype"] == "fp8").to_numpy()
    tables = [table for table in tables if len(table)]
    if not tables or not fp8.any():
        return rows
    off = sum(_quantisation_s(table, rows[fp8]) for table in tables)
    latency = rows["latency_s"].to_numpy().copy()
    latency[fp8] = np.maximum(latency[fp8] - off, 0.5 * latency[fp8])
    return rows.assign(latency_s=latency)


def _quantisation_s(table: pd.DataFrame, rows: pd.DataFrame) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    grid = table.groupby(["m", "k"])["latency"].median().unstack("k").interpolate().ffill().bfill()
    m, k = np.log(grid.index.to_numpy(float)), np.log(grid.columns.to_numpy(float))
    asked = np.log(rows["m"].to_numpy(float)), np.log(rows["k"].to_numpy(float))
    along_k = np.stack([np.interp(asked[1], k, row) for row in ms_to_s(1) * grid.to_numpy()])  # [m, rows]
    high = np.clip(np.searchsorted(m, asked[0]), 1, len(m) - 1)
    weight = np.clip((asked[0] - m[high - 1]) / (m[high] - m[high - 1]), 0.0, 1.0)
    each = np.arange(len(rows))
    return np.asarray(along_k[high - 1, each] * (1 - weight) + along_k[high, each] * weight, dtype=np.float64)
