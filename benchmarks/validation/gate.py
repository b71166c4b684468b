"""Which published rows can be what they state: a row that fails has a reason that starts with ``gate:``.

A row passes if its degrees fit its GPUs and its model, its weights fit the memory, and the rate that it publishes asks
no more operations and no more bytes of its GPUs than they have. A decode step that reads its weights faster than the
memory can give them drew several tokens at once: speculation that the row does not state. Rows that repeat another in
everything but their name are left out, and so are those that several others of their configuration contradict.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pandas as pd

from benchmarks.validation.names import NotPredicted, number, text_of
from benchmarks.validation.report import REPEATS
from profiles.errors import NoBasisError
from profiles.units import DTYPE_BYTES, GIB

if TYPE_CHECKING:
    from collections.abc import Mapping

    from profiles.hardware import DeviceSpec
    from profiles.models.shape import ModelShape
    from simulator.plan.plan import GenerationLayout
    from simulator.serving.run import Load

GATE = "gate:"
"""What the reason of a row starts with that fails."""

_NAMES = ("id", "source", "source_ref", "measured_date", "config_basis", "notes")
"""Columns that do not make two rows different measurements."""


def duplicates(table: pd.DataFrame) -> dict[str, str]:
    """Rows that repeat an earlier one in configuration and in every published number.

    Parameters
    ----------
    table
        A published table, with unique ids.

    Returns
    -------
    dict[str, str]
        Id of the repeated row to the reason, which names the row that is kept.
    """
    columns = [column for column in table.columns if column not in _NAMES]
    kept: dict[tuple[str, ...], str] = {}
    found = {}
    for cells in table.to_dict(orient="records"):
        key = tuple(_compared(column, cells[column]) for column in columns)
        if key in kept:
            found[text_of(cells["id"])] = f"{REPEATS}{kept[key]} in every number"
        else:
            kept[key] = text_of(cells["id"])
    return found


MORE_REQUESTS, FASTER = 2.0, 1.25
"""A row with twice as many requests in flight whose tokens come a quarter faster contradicts one, and so does one with
n times as many whose tokens take n times as long and a quarter more: nothing in a step grows faster than its requests.
Repeats differ by 15 % on different days."""

_MEASURED = ("ttft_ms", "tpot_ms", "throughput_tokens_per_s", "tokens_per_s_per_gpu")
_OF_LOAD = ("concurrency", "num_requests", "max_batch", "backend_version", "row_kind", "time_stat")


def contradicted(table: pd.DataFrame) -> dict[str, str]:
    """Rows that others of their layout contradict.

    Tokens come no faster with more requests in flight, nor slower than in proportion. Of such rows the one with most
    against it is left out, as long as that are two or more: of a single pair nobody knows which row is wrong.

    Parameters
    ----------
    table
        A published inference table, with unique ids.

    Returns
    -------
    dict[str, str]
        Id of the row to the reason, which names a row against it.
    """
    if not {"concurrency", "tpot_ms"} <= set(table.columns):
        return {}
    numbers = table[["concurrency", "tpot_ms"]].apply(pd.to_numeric, errors="coerce")
    loops = table.assign(**numbers)[numbers.notna().all(axis=1)]
    columns = [column for column in table.columns if column not in (*_NAMES, *_MEASURED, *_OF_LOAD)]
    found = {}
    for _, rows in loops.groupby(columns, dropna=False):
        against = _against(list(zip(rows["id"], rows["concurrency"], rows["tpot_ms"], strict=True)))
        while against and max(len(others) for others in against.values()) > 1:
            worst = max(against, key=lambda name: (len(against[name]), sum(against[name].values())))
            found[worst] = f"{GATE} {next(iter(against[worst]))} and others with its layout contradict it: {_ORDER}"
            del against[worst]
            for others in against.values():
                others.pop(worst, None)
    return found


_ORDER = "tokens come no faster with more requests in flight, nor slower than in proportion"


def _against(rows: list[tuple[str, float, float]]) -> dict[str, dict[str, float]]:
    """For each row the rows that contradict it, and by what factor."""
    against: dict[str, dict[str, float]] = {name: {} for name, _, _ in rows}
    for few, concurrency, slow in rows:
        for many, more, fast in rows:
            if more < MORE_REQUESTS * concurrency:
                continue
            wrong = max(slow / fast, fast / slow * concurrency / more)
            if wrong > FASTER:
                against[few][many] = against[many][few] = wrong
    return against


def _compared(column: str, cell: Any) -> str:
    """A cell as it is compared: of a measured number four digits, since one copy of it may have more of them."""
    value = number(cell) if column.endswith(("_ms", "_s", "_per_gpu")) else None
    return text_of(cell) if value is None else f"{value:.4g}"


def check_generation(
    cells: Mapping[str, Any],
    shape: ModelShape,
    spec: DeviceSpec,
    layout: GenerationLayout,
    precision: str,
    weights_bytes: float,
    given: float = 1.0,
) -> None:
    """Whether an inference row can be what it states.

    Parameters
    ----------
    cells, shape, spec, layout, precision
        The row; its model, device and layout; number format of its weights.
    weights_bytes
        Of one GPU.
    given
        Tokens that a step gives each sequence, as the row's drafts say.

    Raises
    ------
    NotPredicted
        With the reason, and its numbers.
    """
    gpus, experts = layout.tp * layout.pp, shape.moe.num_experts if shape.moe else layout.ep
    stated = number(cells.get("num_gpus"))
    if stated is not None and stated != gpus:
        raise failed(
            f"{stated:g} GPUs are not the engine's {gpus} (tp {layout.tp} x pp {layout.pp}): several engines, or "
            "prefill and decode on engines of their own"
        )
    ranks = layout.tp // layout.attention_dp
    if shape.num_heads % ranks:
        raise failed(f"{ranks} ranks do not divide {shape.num_heads} heads")
    if experts % layout.ep:
        raise failed(f"{layout.ep} groups do not divide {experts} experts")
    if weights_bytes > spec.memory_bytes:
        raise failed(f"weights of {weights_bytes / GIB:.0f} GiB a GPU exceed its {spec.memory_bytes / GIB:.0f} GiB")
    _check_rates(cells, shape, spec, gpus, precision, weights_bytes * gpus / given)


def _check_rates(
    cells: Mapping[str, Any], shape: ModelShape, spec: DeviceSpec, gpus: int, precision: str, weights: float
) -> None:
    """Operations a second of all GPUs, and bytes of ``weights`` a second, which are read for each token of a sequence.

    Of a rate that no latency stands beside: its operations and, one after another with them, its reads of the cache.
    """
    running = number(cells.get("concurrency")) or number(cells.get("max_batch")) or 1.0
    step_s = (number(cells.get("tpot_ms")) or 0.0) / 1e3
    rates = [number(cells.get("throughput_tokens_per_s")), gpus * (number(cells.get("tokens_per_s_per_gpu")) or 0.0)]
    rates += [running / step_s if step_s else 0.0]
    fastest = max(rate or 0.0 for rate in rates)
    flop_per_s, peak = 2.0 * active_params(shape) * fastest, gpus * _peak(spec, precision)
    if flop_per_s > peak:
        raise failed(f"{fastest:,.0f} tokens/s imply {flop_per_s / 1e12:,.0f} TFLOP/s of {peak / 1e12:,.0f}")
    bandwidth = gpus * spec.memory_bytes_per_s
    read = fastest * _least_cache_read(cells, shape, spec)
    if not step_s and flop_per_s / peak + read / bandwidth > 1.0:
        raise failed(
            f"{fastest:,.0f} tokens/s imply {read / 1e12:,.1f} TB/s of cache beside {flop_per_s / 1e12:,.0f} TFLOP/s, "
            f"of {bandwidth / 1e12:,.1f} and {peak / 1e12:,.0f}: more than all of the time"
        )
    if step_s and weights * touched_share(shape) / step_s > bandwidth:
        raise failed(
            f"a step of {step_s * 1e3:.2f} ms would read weights at over {bandwidth / 1e12:,.1f} TB/s: it drew several "
            "tokens (speculation that the row does not state)"
        )


def _least_cache_read(cells: Mapping[str, Any], shape: ModelShape, spec: DeviceSpec) -> float:
    """Bytes of the cache that a generated token reads at least: of whole layers, in the narrowest format of the device.

    A sequence that ends at its stated length reads its prompt and half of its response on the mean. Latent and sparse
    caches and those with windows count as nothing.
    """
    prompt, response = (number(cells.get(name)) or 0.0 for name in ("input_len", "output_len"))
    if shape.mla is not None or shape.sparse is not None:
        return 0.0
    element = 1.0 if "fp8" in spec.peak_flop_per_s else DTYPE_BYTES["bf16"]
    return (prompt + response / 2.0) * 2.0 * shape.kv_width * shape.num_full_layers * element


def check_running(cells: Mapping[str, Any], load: Load, room: int) -> None:
    """Whether a closed loop ran the requests that it states, by Little's law on its own latencies.

    Parameters
    ----------
    cells, load
        The row, and its load.
    room
        Requests that the engine's cache holds: what does not fit waits, and the row may say so.

    Raises
    ------
    NotPredicted
        Fewer than half of the stated requests were past their first token at once, though the cache holds as many.
    """
    ttft, tpot = number(cells.get("ttft_ms")), number(cells.get("tpot_ms"))
    held = min(load.concurrency, room)
    if not ttft or not tpot or load.output_tokens < load.input_tokens / 8:
        return
    decoding_ms = (load.output_tokens - 1) * tpot
    running = load.concurrency * decoding_ms / (ttft + decoding_ms)
    if running < held / 2:
        raise failed(
            f"its own latencies say that {running:.0f} of {load.concurrency} requests ran at once, though the cache "
            f"holds {held}: a limit that the row does not state"
        )


def active_params(shape: ModelShape) -> float:
    """Parameters that one token is multiplied with."""
    if shape.moe is None:
        return float(shape.num_params)
    idle = (shape.moe.num_experts - shape.moe.experts_per_token) * shape.expert_params * shape.num_moe_layers
    return float(shape.num_params - idle)


def touched_share(shape: ModelShape) -> float:
    """Least share of the weights that a step reads: of the experts those of one token; how many more, no row says."""
    return (active_params(shape) - shape.embedding_params) / shape.num_params


def _peak(spec: DeviceSpec, precision: str) -> float:
    """The highest rate of the device at a format or a narrower one: weights of four bits may compute in any."""
    try:
        return spec.peak(precision)
    except NoBasisError:
        return max(spec.peak_flop_per_s.values()) * 2.0 / max(DTYPE_BYTES.get(precision, 1.0), 0.5)


def failed(reason: str) -> NotPredicted:
    """What a check raises."""
    return NotPredicted(f"{GATE} {reason}")
