"""Feed changed files and command lines to every parser, and count what becomes of them.

    python -m benchmarks.fuzz [--count 100000] [--seed 0] [--target NAME ...] [--commands 500] [--out DIR] [--note TEXT]

An input is accepted, refused with one message, or a find: an error that no one meant, or more than 5 seconds. Finds are
written below ``--finds`` as they are; a test reads everything in ``tests/fuzz_cases`` again. Exit 1 if there is a find.
Half of the files are jobs that make sense (``benchmarks.fuzz.grown``); the other readers share the rest evenly.
"""

from __future__ import annotations

import argparse
import csv
import datetime
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.fuzz.campaign import COMMANDS, Tally, campaign
from benchmarks.fuzz.targets import TARGETS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

GROWN = "grown-job"
"""The target whose inputs reach what lies behind the readers."""

KINDS = ("accepted", "refused", "crash", "slow")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; returns the exit status."""
    options = _options().parse_args(arguments)
    names = options.target or list(TARGETS)
    counts = shares(options.count, names)
    if options.commands and not options.target:
        counts[COMMANDS] = options.commands
    tallies: dict[str, Tally] = {}
    for name, count in counts.items():
        tallies[name] = _timed(name, count, options.seed)
        _keep(tallies[name], options.finds)
        if options.out is not None:
            _write(options.out, tallies, options.seed, options.note)  # hours of work may be cut short
    finds = sum(len(tally.finds) for tally in tallies.values())
    total = sum(sum(tally.counts.values()) for tally in tallies.values())
    print(f"{total:,} inputs, {finds} different finds")
    return 1 if finds else 0


def shares(count: int, names: Sequence[str]) -> dict[str, int]:
    """How many files each target gets: ``grown-job`` half of them, where there are others."""
    others = [name for name in names if name != GROWN]
    grown = (count // 2 if others else count) if GROWN in names else 0
    return {name: grown if name == GROWN else -(-(count - grown) // len(others)) for name in names}


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fuzz", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--count", type=int, default=100_000, help="files, over all targets together")
    parser.add_argument("--commands", type=int, default=500, help="command lines, beside the files")
    parser.add_argument("--seed", type=int, default=0, help="the same seed gives the same inputs")
    parser.add_argument("--target", action="append", choices=[*TARGETS, COMMANDS], help="only these; may be repeated")
    parser.add_argument("--finds", type=Path, default=Path("fuzz-finds"), help="folder for inputs that broke something")
    parser.add_argument("--out", type=Path, help="folder for a dated CSV file of the counts")
    parser.add_argument("--note", default="", help="what the CSV file says of the machine")
    return parser


def _keep(tally: Tally, folder: Path) -> None:
    """Write every different find as it was, with what happened beside it."""
    for i, find in enumerate(tally.finds.values()):
        here = folder / f"{find.target}-{i}"
        here.mkdir(parents=True, exist_ok=True)
        (here / ("words.txt" if find.target == COMMANDS else TARGETS[find.target].file_name)).write_bytes(find.data)
        happened = f"{find.outcome.kind} {find.outcome.where}, {find.outcome.seconds:.1f} s, number {find.index}"
        (here / "about.txt").write_text(f"{happened}\n\n{find.outcome.detail}\n", errors="backslashreplace")
        print(f"  {here}: {happened}")


def _timed(name: str, count: int, seed: int) -> Tally:
    began = time.monotonic()
    tally = campaign(name, range(count), seed)
    counts = ", ".join(f"{tally.counts[kind]:,} {kind}" for kind in KINDS)
    took = time.monotonic() - began
    print(f"{name:<14} {count:>7,}: {counts}; {took:.0f} s, slowest {tally.slowest_s:.2f} s", flush=True)
    return tally


def _write(folder: Path, tallies: Mapping[str, Tally], seed: int, note: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"fuzz_{datetime.datetime.now(datetime.UTC).date()}.csv"
    with path.open("w", newline="") as file:
        file.write(f"# python -m benchmarks.fuzz, seed {seed}; {note}\n")
        table = csv.writer(file, lineterminator="\n")
        table.writerow(("target", *KINDS, "different_finds", "slowest_s"))
        for name, tally in tallies.items():
            counts = [tally.counts[kind] for kind in KINDS]
            table.writerow((name, *counts, len(tally.finds), f"{tally.slowest_s:.2f}"))


if __name__ == "__main__":
    sys.exit(main())
