"""The transition's methods side by side, on the same processes in one run; and random models through random layouts.

    python -m benchmarks.transition --quick            # under a minute
    python -m benchmarks.transition --cases 500 --out benchmarks/results

Each row is one model in one pair of layouts. ``hybridflow``, ``hybridflow-v`` and ``ds-chat`` are those of Table 2 of
the HybridFlow paper, on buffers that training shards are views of; ``swap`` is Megatron-Core's ``swap_model_weights``
(its cached plan), which keeps a second copy. Bytes are counted at the collectives, peaks at the allocator, times are
the best of some repeats between two barriers. Everything runs on gloo over loopback, where bytes cost as much as on any
link but starting a collective costs more than on a GPU.
"""

from __future__ import annotations

import argparse
import csv
import importlib.util
import os
import platform
import sys
import time
from datetime import date
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any

from benchmarks.rank_pool import run_on_ranks
from benchmarks.transition_cases import Case, Outcome, random_case, run_case, run_in_place
from executor.transition.architecture import Architecture
from simulator.groups import METHODS, Degrees, transition_shares

if TYPE_CHECKING:
    from collections.abc import Sequence

NUM_RANKS = 4
PAPER_AVERAGE, PAPER_BEST = 0.552, 0.891
"""Reductions of transition time that section 8.4 of the paper reports, against all systems it compares with."""

LAYOUTS = [
    Degrees(1, 4, 1, 1, 1), Degrees(1, 4, 1, 1, 2), Degrees(1, 2, 2, 1, 1), Degrees(2, 2, 1, 1, 1),
    Degrees(2, 2, 1, 1, 2), Degrees(2, 2, 1, 2, 1), Degrees(4, 1, 1, 1, 1), Degrees(4, 1, 1, 2, 1),
    Degrees(2, 1, 2, 1, 1),
]  # fmt: skip
QUICK_LAYOUTS = [1, 2, 4, 8]
COLUMNS = ("model", "parameters", "layout", "method", "time_ms", "received_mb", "table_2_mb", "peak_mb", "redundant_mb")


def model(hidden: int, layers: int, vocab: int = 4096) -> Architecture:
    """A Llama with grouped queries of some width and depth."""
    return Architecture(
        "llama", hidden, layers, vocab, hidden // 32, max(hidden // 64, 4), 32, hidden * 11 // 4 // 32 * 32
    )


MODELS = {"11M": model(256, 12), "51M": model(512, 16), "197M": model(1024, 16)}


def num_parameters(arch: Architecture) -> int:
    """Elements of the checkpoint."""
    total = 0
    for tensor in arch.tensors().values():
        size = 1
        for n in tensor.shape:
            size *= n
        total += size
    return total


def measure(
    rank: int, names: Sequence[str], layouts: Sequence[int], repeats: int, seeds: Sequence[int], swap: bool
) -> tuple[Any, Any]:
    """On one rank: every model, layout and method; then the random cases."""
    rows: dict[tuple[str, int, str], Outcome] = {}
    for name in names:
        for i in layouts:
            degrees = LAYOUTS[i]
            for method in METHODS:
                case = Case(MODELS[name], degrees, method=method)
                rows[name, i, method] = run_in_place(case, rank, repeats=repeats)
            if swap:
                from benchmarks.transition_swap import run_swap

                rows[name, i, "swap"] = run_swap(MODELS[name], degrees, rank, repeats)
    return rows, {seed: run_case(random_case(seed, NUM_RANKS), rank) for seed in seeds}


def table(found: list[Any]) -> list[dict[str, Any]]:
    """One row per model, layout and method: the slowest rank's time, the fullest rank's bytes."""
    rows = []
    for key in found[0][0]:
        name, i, method = key
        outcomes = [rows_of_rank[key] for rows_of_rank, _ in found]
        x, size = LAYOUTS[i], num_parameters(MODELS[name]) * 4
        said = transition_shares(method, x).moved * size if method in METHODS else None
        if any(o.wrong for o in outcomes):
            raise AssertionError(f"{name} {x} {method}: wrong tensors {[o.wrong[:2] for o in outcomes]}")
        rows.append(
            {
                "model": name, "parameters": num_parameters(MODELS[name]),
                "layout": f"t{x.t} p{x.p} d{x.d} -> tg{x.tg} pg{x.pg}", "method": method,
                "time_ms": round(max(o.seconds for o in outcomes) * 1e3, 2),
                "received_mb": round(max(o.received_bytes for o in outcomes) / 1e6, 3),
                "table_2_mb": "" if said is None else round(float(said) / 1e6, 3),
                "peak_mb": round(max(o.peak_bytes for o in outcomes) / 1e6, 3),
                "redundant_mb": round(max(o.redundant_bytes for o in outcomes) / 1e6, 3),
            }
        )  # fmt: skip
    return rows


def verdict(rows: list[dict[str, Any]]) -> tuple[list[str], list[float]]:
    """Where the strided method was not the best although it should be, and its reductions against ``ds-chat``."""
    failures, reductions = [], []
    for at in dict.fromkeys((row["model"], row["layout"]) for row in rows):
        by = {row["method"]: row for row in rows if (row["model"], row["layout"]) == at}
        ours = by["hybridflow"]
        reductions.append(1.0 - ours["time_ms"] / by["ds-chat"]["time_ms"])
        for method in ("hybridflow-v", "ds-chat"):
            theirs = by[method]
            if float(theirs["table_2_mb"]) > float(ours["table_2_mb"]):
                for what in ("received_mb", "time_ms"):
                    if ours[what] > theirs[what]:
                        failures.append(f"{at}: {what} {ours[what]} against {theirs[what]} of {method}")
    return failures, reductions


def report(rows: list[dict[str, Any]], cases: list[Any], seconds: float) -> bool:
    """Print everything; whether all that must hold holds."""
    widths = [max(len(str(row[c])) for row in [*rows, dict(zip(COLUMNS, COLUMNS, strict=True))]) for c in COLUMNS]
    for row in [dict(zip(COLUMNS, COLUMNS, strict=True)), *rows]:
        print("  ".join(str(row[c]).rjust(w) for c, w in zip(COLUMNS, widths, strict=True)))
    failures, reductions = verdict(rows)
    print(
        f"\ntransition time against gathering everything: {mean(reductions):.1%} less on average, "
        f"{max(reductions):.1%} at best (the paper, on GPUs and against all systems: {PAPER_AVERAGE:.1%} and "
        f"{PAPER_BEST:.1%})"
    )
    for failure in failures:
        print(f"not the best: {failure}")
    moved = refused = wrong = 0
    for seed in cases[0]:
        outcomes = [of_rank[seed] for of_rank in cases]
        refused += bool(outcomes[0].refused)
        moved += not outcomes[0].refused
        wrong += any(o.wrong or sum(o.by_cause.values()) != o.received_bytes for o in outcomes)
    print(f"random models and layouts: {moved} arrived whole and equal, {refused} refused with a reason, {wrong} wrong")
    print(f"{seconds:.0f} s on {os.cpu_count()} cores, {platform.processor() or platform.machine()}")
    return not failures and not wrong


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, print, and write a CSV if a folder is given; 1 if something that must hold does not."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="the smallest model, four layouts, 20 random cases")
    parser.add_argument("--cases", type=int, help="random models and layouts to try")
    parser.add_argument("--out", type=Path, help="folder for a dated CSV")
    given = parser.parse_args(arguments)
    names = ["11M"] if given.quick else list(MODELS)
    layouts = QUICK_LAYOUTS if given.quick else list(range(len(LAYOUTS)))
    count = given.cases if given.cases is not None else 20 if given.quick else 500
    swap = importlib.util.find_spec("megatron") is not None
    started_s = time.perf_counter()
    found = run_on_ranks(NUM_RANKS, measure, names, layouts, 7, list(range(count)), swap)
    rows = table(found)
    good = report(rows, [cases for _, cases in found], time.perf_counter() - started_s)
    if given.out is not None:
        with (given.out / f"transition_{date.today()}.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS)
            writer.writeheader()
            writer.writerows(rows)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
