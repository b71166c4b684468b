"""The transition's methods side by side, on the same processes in one run; and random models through random layouts.

    python -m benchmarks.transition --quick            # under a minute
    python -m benchmarks.transition --cases 500 --out benchmarks/results

Each row is one model in one pair of layouts. ``hybridflow``, ``hybridflow-v`` and ``ds-chat`` are those of Table 2 of
the HybridFlow paper, on buffers that training shards are views of; ``swap`` is Megatron-Core's ``swap_model_weights``
(its cached plan), which keeps a second copy. Bytes are counted at the collectives, peaks at the allocator. The methods
of Table 2 take turns; a time is the median over turns of the slowest rank between two barriers, beside its quartiles.
Everything runs on gloo over loopback, where bytes cost as much as on any link but starting a collective costs more than
on a GPU.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import sys
import time
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from statistics import mean, median, quantiles
from typing import TYPE_CHECKING, Any

from benchmarks.architectures import architecture
from benchmarks.rank_pool import run_on_ranks
from benchmarks.transition_cases import Case, InPlace, Outcome, random_case, run_case
from simulator.plan.groups import METHODS, Degrees, transition_shares

if TYPE_CHECKING:
    from collections.abc import Sequence

    from executor.weights.architecture import Architecture

NUM_RANKS = 4
PAPER_AVERAGE, PAPER_BEST = 0.552, 0.891
"""Reductions of transition time that section 8.4 of the paper reports, against all systems it compares with."""

LAYOUTS = [
    Degrees(1, 4, 1, 1, 1),
    Degrees(1, 4, 1, 1, 2),
    Degrees(1, 2, 2, 1, 1),
    Degrees(2, 2, 1, 1, 1),
    Degrees(2, 2, 1, 1, 2),
    Degrees(2, 2, 1, 2, 1),
    Degrees(4, 1, 1, 1, 1),
    Degrees(4, 1, 1, 2, 1),
    Degrees(2, 1, 2, 1, 1),
]
QUICK_LAYOUTS = [1, 2, 4, 8]
COLUMNS = (
    "model",
    "parameters",
    "layout",
    "method",
    "time_ms",
    "quartile_1_ms",
    "quartile_3_ms",
    "received_mb",
    "table_2_mb",
    "peak_mb",
    "redundant_mb",
)


def model(hidden: int, layers: int, vocab: int = 4096) -> Architecture:
    """A Llama with grouped queries of some width and depth."""
    return architecture(
        "llama",
        hidden=hidden,
        num_layers=layers,
        vocab=vocab,
        num_heads=hidden // 32,
        num_kv_heads=max(hidden // 64, 4),
        head_dim=32,
        ffn=hidden * 11 // 4 // 32 * 32,
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
            cases = {method: Case(MODELS[name], degrees, method=method) for method in METHODS}
            found = in_turns({method: InPlace(case, rank) for method, case in cases.items()}, repeats)
            if swap:  # afterwards: four methods of the largest model at once are too much for 24 GiB
                from benchmarks.transition_swap import Swap

                found |= in_turns({"swap": Swap(MODELS[name], degrees, rank)}, repeats)
            rows |= {(name, i, method): outcome for method, outcome in found.items()}
    return rows, {seed: run_case(random_case(seed, NUM_RANKS), rank) for seed in seeds}


def in_turns(made: dict[str, Any], repeats: int) -> dict[str, Outcome]:
    """Each of several transitions once, then all again: what slows one turn slows all of it."""
    for _ in range(repeats):
        for one in made.values():
            one.once()
    return {name: one.outcome() for name, one in made.items()}


def table(found: list[Any]) -> list[dict[str, Any]]:
    """One row per model, layout and method: the slowest rank's times, the fullest rank's bytes."""
    rows = []
    for key in found[0][0]:
        name, i, method = key
        outcomes = [rows_of_rank[key] for rows_of_rank, _ in found]
        x, size = LAYOUTS[i], num_parameters(MODELS[name]) * 4
        said = transition_shares(method, x).moved * size if method in METHODS else None
        turns_ms = [max(times) * 1e3 for times in zip(*(o.times_s for o in outcomes), strict=True)]
        first, _, third = quantiles(turns_ms, n=4, method="inclusive")
        if any(o.wrong for o in outcomes):
            raise AssertionError(f"{name} {x} {method}: wrong tensors {[o.wrong[:2] for o in outcomes]}")
        rows.append(
            {
                "model": name,
                "parameters": num_parameters(MODELS[name]),
                "layout": f"t{x.t} p{x.p} d{x.d} -> tg{x.tg} pg{x.pg}",
                "method": method,
                "time_ms": round(median(turns_ms), 2),
                "quartile_1_ms": round(first, 2),
                "quartile_3_ms": round(third, 2),
                "received_mb": round(max(o.received_bytes for o in outcomes) / 1e6, 3),
                "table_2_mb": "" if said is None else round(float(said) / 1e6, 3),
                "peak_mb": round(max(o.peak_bytes for o in outcomes) / 1e6, 3),
                "redundant_mb": round(max(o.redundant_bytes for o in outcomes) / 1e6, 3),
            }
        )
    return rows


@dataclass(frozen=True)
class Verdict:
    """The strided method against another where Table 2 says that it moves fewer bytes.

    ``time`` is ``faster`` or ``slower`` where the quartiles of the two do not meet, else ``level``.
    """

    model: str
    layout: str
    against: str
    fewer_bytes: bool
    time: str
    received_mb: tuple[float, float]
    time_ms: tuple[float, float]

    def __str__(self) -> str:
        bytes_ = "fewer bytes" if self.fewer_bytes else "NOT fewer bytes"
        (mine_mb, theirs_mb), (mine_ms, theirs_ms) = self.received_mb, self.time_ms
        return (
            f"{self.model:>4s} {self.layout:24s} against {self.against:12s}: {bytes_} ({mine_mb:,.1f} and "
            f"{theirs_mb:,.1f} MB), {self.time} ({mine_ms:,.1f} and {theirs_ms:,.1f} ms)"
        )


def verdicts(rows: list[dict[str, Any]]) -> list[Verdict]:
    """One for each model, layout and other method of Table 2 that the formula says moves more."""
    found = []
    for at in dict.fromkeys((row["model"], row["layout"]) for row in rows):
        by = {row["method"]: row for row in rows if (row["model"], row["layout"]) == at}
        ours = by["hybridflow"]
        for method in ("hybridflow-v", "ds-chat"):
            theirs = by[method]
            if float(theirs["table_2_mb"]) > float(ours["table_2_mb"]):
                bytes_ = ours["received_mb"], theirs["received_mb"]
                times = ours["time_ms"], theirs["time_ms"]
                found.append(Verdict(*at, method, bytes_[0] < bytes_[1], _faster(ours, theirs), bytes_, times))
    return found


def _faster(ours: dict[str, Any], theirs: dict[str, Any]) -> str:
    if ours["quartile_3_ms"] < theirs["quartile_1_ms"]:
        return "faster"
    return "slower" if theirs["quartile_3_ms"] < ours["quartile_1_ms"] else "level"


def reductions(rows: list[dict[str, Any]]) -> list[float]:
    """By how much the strided method takes less time than gathering over all ranks, for each model and layout."""
    time_ms = {(row["model"], row["layout"], row["method"]): row["time_ms"] for row in rows}
    places = dict.fromkeys((row["model"], row["layout"]) for row in rows)
    return [1.0 - time_ms[*at, "hybridflow"] / time_ms[*at, "ds-chat"] for at in places]


def tried(cases: list[dict[int, Outcome]]) -> dict[str, int]:
    """How the random models and layouts ended: ``moved`` whole and equal, ``refused`` with a reason, ``wrong``."""
    count = {"moved": 0, "refused": 0, "wrong": 0}
    for seed in cases[0]:
        outcomes = [of_rank[seed] for of_rank in cases]
        bad = any(o.wrong or sum(o.by_cause.values()) != o.received_bytes for o in outcomes)
        count["wrong" if bad else "refused" if outcomes[0].refused else "moved"] += 1
    return count


def show(rows: list[dict[str, Any]], judged: list[Verdict], random_cases: dict[str, int]) -> None:
    """Print everything."""
    widths = [max(len(str(row[c])) for row in [*rows, dict(zip(COLUMNS, COLUMNS, strict=True))]) for c in COLUMNS]
    for row in [dict(zip(COLUMNS, COLUMNS, strict=True)), *rows]:
        print("  ".join(str(row[c]).rjust(w) for c, w in zip(COLUMNS, widths, strict=True)))
    print("\nhybridflow, in every row where the formula says that it moves fewer bytes:")
    for one in judged:
        print(one)
    ways = {way: sum(one.time == way for one in judged) for way in ("faster", "level", "slower")}
    less = reductions(rows)
    print(
        f"fewer bytes in {sum(one.fewer_bytes for one in judged)} of {len(judged)} rows; "
        + ", ".join(f"{way} in {n}" for way, n in ways.items())
        + f"\ntransition time against gathering everything: {mean(less):.1%} less on average, {max(less):.1%} at best "
        f"(the paper, on GPUs and against all systems: {PAPER_AVERAGE:.1%} and {PAPER_BEST:.1%})"
    )
    print("random models and layouts: {moved} whole and equal, {refused} refused, {wrong} wrong".format(**random_cases))


# Long by its options and the figures that it prints.
def main(arguments: Sequence[str] | None = None) -> int:
    """Run, print, and write a file if a folder is given; 1 if the strided method is beaten or a tensor is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="the smallest model, four layouts, 20 random cases")
    parser.add_argument("--cases", type=int, help="random models and layouts to try")
    parser.add_argument("--out", type=Path, help="folder for a dated file")
    given = parser.parse_args(arguments)
    names = ["11M"] if given.quick else list(MODELS)
    layouts = QUICK_LAYOUTS if given.quick else list(range(len(LAYOUTS)))
    count = given.cases if given.cases is not None else 20 if given.quick else 500
    swap = importlib.util.find_spec("megatron") is not None
    started_s = time.perf_counter()
    load_before = os.getloadavg()[0]
    found = run_on_ranks(NUM_RANKS, measure, names, layouts, 7, list(range(count)), swap)
    rows = table(found)
    judged, random_cases = verdicts(rows), tried([cases for _, cases in found])
    show(rows, judged, random_cases)
    about = {
        "date": str(date.today()),
        "machine": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "load_before": load_before,
        "load_after": os.getloadavg()[0],
        "seconds": time.perf_counter() - started_s,
    }
    print(
        ", ".join(
            f"{name} {value:.1f}" if isinstance(value, float) else f"{name} {value}" for name, value in about.items()
        )
    )
    if given.out is not None:
        less = {"reductions": reductions(rows), "paper_average": PAPER_AVERAGE, "paper_best": PAPER_BEST}
        document = about | {"rows": rows, "verdicts": [asdict(one) for one in judged], "random_cases": random_cases}
        given.out.mkdir(parents=True, exist_ok=True)
        path = given.out / f"transition_{date.today()}.json"
        path.write_text(json.dumps(document | less, indent=1) + "\n")
    good = all(one.fewer_bytes and one.time != "slower" for one in judged) and not random_cases["wrong"]
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
