"""Whether a profile may be believed: what it lacks, and what shows that the machine did other work meanwhile.

No threshold here is a time. What is looked at does not depend on how fast a machine is: how far repeats of one
measurement lie apart, how much of a core the measuring process had, whether more bytes took less time, whether a rate
is one that any machine has, and whether the fitted costs predict the calls that they were not fitted on.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from hybridmap.profiling.messages import bound_by_latency
from hybridmap.profiling.rates import bandwidth_bound, host_rate, memory_rate, wire_rate

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from hybridmap.profiling.engine_files import EngineFits
    from hybridmap.profiling.engine_fit import Fit

    Row = Mapping[str, Any]
    Rows = Mapping[str, Sequence[Row]]

SPREAD = 0.2
"""A table is disturbed where the median of half of its rows is not known to within this share of itself."""
IS_UNIT = "core_pace"
"""Table that is no price: times of calls are counted in it, and how far its repeats lie apart changes none of them."""
CORE_SHARE = 0.9
"""A process that computes on one core has all of it on an idle machine; less in a quarter of the rows is disturbed."""
FASTER = 2.0
"""More bytes do not take less time; so many times less is no noise of a quiet machine."""
FIT_ERROR = 0.2
"""Of calls left out of the fit: beyond it a prediction from these constants says little."""
LEAST_RATES = {
    "GEMM": (1e9, "FLOP/s"),
    "memory": (5e8, "B/s"),
    "host copies": (5e8, "B/s"),
    "collectives": (1e7, "B/s"),
}
"""Below what any machine has that torch runs on, by far: one core of a small board does ten times as much."""
PRICED = frozenset({"element_wise", "host_to_device", "all_reduce", "all_gather", "reduce_scatter", "all_to_all"})
"""Operations that prices look up by bytes."""
PER_PASS = {
    "training": (
        "forward_s_per_layer",
        "forward_s_per_layer_sequence",
        "forward_s_per_pass",
        "backward_s_per_layer",
        "backward_s_per_layer_sequence",
        "backward_s_per_pass",
        "call_s",
    ),
    "generation": ("launch_s_per_layer", "prefill_launch_s_per_layer", "host_s_per_step", "call_s"),
}
"""Host costs of which a part may be fitted to 0, its lower bound, but not all: every pass runs Python."""


@dataclass(frozen=True)
class Wanted:
    """What a whole profile of the machine has beside one rank's operators and calls.

    ``ray``: runs behind a controller; ``ranks``: two ranks and their collectives; ``neighbours``: pools of one host.
    """

    ray: bool = True
    ranks: bool = True
    neighbours: bool = True


def doubts(rows: Rows, fits: EngineFits | None, wanted: Wanted) -> tuple[str, ...]:
    """What is missing (``incomplete: ...``), what is not to be believed (``disturbed: ...``); nothing if all is well.

    Parameters
    ----------
    rows
        Journal rows by table, failed ones among them.
    fits
        Host costs fitted on them, if there were any calls.
    wanted
        What a whole profile of the machine has.
    """
    good = {table: [row for row in found if not row["error"]] for table, found in rows.items()}
    missing = [f"incomplete: {text}" for text in (*_missing(rows, good, wanted), *_unbound(good))]
    spoiled = [*_slow(good), *_spread(good), *_shared(good), *_reversed(good), *_unfitted(fits)]
    return (*missing, *(f"disturbed: {text}" for text in spoiled))


def _missing(rows: Rows, good: Rows, wanted: Wanted) -> Iterator[str]:
    """Tables, and the parts of a table that stand for something of their own, without a row."""
    tables = [
        "gemm",
        "attention_prefill",
        "attention_decode",
        "attention_training",
        "memory_ops",
        "copy",
        "engine_step",
    ]
    tables += ["collective"] * wanted.ranks + ["parallel_step"] * (wanted.ranks and wanted.ray)
    tables += ["neighbour_step"] * wanted.neighbours
    for table in tables:
        if not good.get(table):
            yield f"table {table} has no row{_reason(rows.get(table, ()))}"
    for launcher in ("local", *(("ray",) if wanted.ray else ())):
        mine = [row for row in rows.get("dispatch", ()) if row["launcher"] == launcher]
        if all(row["error"] or row["ranks"] != 1 for row in mine):
            yield f"table dispatch has no row of launcher {launcher}{_reason(mine)}"


def _reason(rows: Sequence[Row]) -> str:
    return next((f": {row['error']}" for row in rows if row["error"]), "")


def _unbound(good: Rows) -> Iterator[str]:
    """Operations of which all sizes are bound by what a call costs: larger ones would be priced by that."""
    for _, name, rows in _operations(good, PRICED):
        if not bandwidth_bound(rows):
            large, small = (pick(rows, key=lambda row: row["num_bytes"]) for pick in (max, min))
            yield (
                f"{name} has no size that is bound by bandwidth: {large['num_bytes']:,} bytes take "
                f"{large['latency_s'] / small['latency_s']:.1f} times as long as {small['num_bytes']:,}"
            )


def _operations(good: Rows, names: Collection[str] | None = None) -> Iterator[tuple[str, str, list[Row]]]:
    """Rows that differ in bytes alone, with table and name; of ``names`` only, if these are given."""
    for table, keys in (("memory_ops", ("op",)), ("copy", ("kind",)), ("collective", ("kind", "gpus"))):
        for key in dict.fromkeys(tuple(row[name] for name in keys) for row in good.get(table, ())):
            if names is None or key[0] in names:
                mine = [row for row in good[table] if tuple(row[name] for name in keys) == key]
                yield table, f"{' of '.join(map(str, key))}{' ranks' * (len(key) > 1)} in table {table}", mine


def _slow(good: Rows) -> Iterator[str]:
    """Rates below what any machine has."""
    gemm = max((2.0 * r["m"] * r["n"] * r["k"] / r["latency_s"] for r in good.get("gemm", ())), default=None)
    rates = {
        "GEMM": gemm,
        "memory": memory_rate(good.get("memory_ops", ())),
        "host copies": host_rate(good.get("copy", ())),
        "collectives": wire_rate(good.get("collective", ())),
    }
    for name, rate in rates.items():
        least, unit = LEAST_RATES[name]
        if rate is not None and rate < least:
            yield f"{name} at {rate:,.0f} {unit}; no machine is below {least:,.0f}"


def disturbed_rows(good: Rows) -> Iterator[tuple[str, Row]]:
    """Rows behind the doubts of spread, of shared cores and of more bytes in less time, each with its table."""
    apart, starved = {table for table, _ in _spread_tables(good)}, any(True for _ in _shared(good))
    for table, rows in good.items():
        for row in rows:
            if (table in apart and lies_apart(row)) or (starved and was_starved(row)):
                yield table, row
    for table, _, rows in _operations(good):
        if pair := _turned(rows):
            yield table, pair[0]


def lies_apart(row: Row) -> bool:
    """Whether the median of the row's repeats is not known well enough."""
    width = half_width(row)
    return width is not None and width > SPREAD


def was_starved(row: Row) -> bool:
    """Whether the row was measured by a process that computed and did not have its core."""
    return row.get("cpu_share") is not None and row["cpu_share"] < CORE_SHARE


def _spread_tables(good: Rows) -> Iterator[tuple[str, float]]:
    for table, rows in good.items():
        widths = [found for row in rows if (found := half_width(row)) is not None]
        width = float(np.median(widths)) if widths else 0.0
        if width > SPREAD and table != IS_UNIT:
            yield table, width


def _spread(good: Rows) -> Iterator[str]:
    for table, width in _spread_tables(good):
        known = f"{100 * width:.0f} %, not to {100 * SPREAD:.0f} %"
        yield f"repeats of table {table} lie apart: its medians are known to +- {known}"


def half_width(row: Row) -> float | None:
    """Half the 95 % interval of a row's median over the median, where it has one."""
    return None if row.get("high_s") is None else float((row["high_s"] - row["low_s"]) / 2.0 / row["latency_s"])


def _shared(good: Rows) -> Iterator[str]:
    """Processes that computed without a pause and did not have their core."""
    shares = [row["cpu_share"] for rows in good.values() for row in rows if row.get("cpu_share") is not None]
    if shares and (share := float(np.quantile(shares, 0.25))) < CORE_SHARE:
        yield f"other work had the cores: a quarter of the rows was measured with {100 * share:.0f} % of a core or less"


def _reversed(good: Rows) -> Iterator[str]:
    """One line for each operation of which more bytes took far less time."""
    for _, name, rows in _operations(good):
        if pair := _turned(rows):
            small, large = pair
            times = small["latency_s"] / large["latency_s"]
            yield f"{name}: {small['num_bytes']:,} bytes took {times:.1f} times as long as {large['num_bytes']:,}"


def _turned(rows: Sequence[Row]) -> tuple[Row, Row] | None:
    """The first size that took far longer than the next larger one, and that one.

    Messages between ranks that are too small for their bytes to count may do so: ``messages`` says why.
    """
    ordered = sorted(rows, key=lambda row: row["num_bytes"])
    for small, large in itertools.pairwise(ordered):
        waits_for_ranks = "gpus" in large and bound_by_latency(large, rows, FASTER)
        if small["latency_s"] > FASTER * large["latency_s"] and not waits_for_ranks:
            return small, large
    return None


def _unfitted(fits: EngineFits | None) -> Iterator[str]:
    for kind in ("training", "generation") if fits is not None else ():
        fit: Fit = getattr(fits, kind)
        if fit.rows and not any(fit.constants[name] for name in PER_PASS[kind]):
            yield f"host costs of {kind} are all fitted to 0, and every pass runs Python"
        worst = max(fit.left_out, key=lambda call: fit.left_out[call], default=None)
        if worst is not None and fit.left_out[worst] > FIT_ERROR:
            error = f"{100 * fit.left_out[worst]:.0f} %"
            yield f"host costs of {kind} predict {worst} to {error} only, where it was left out"
