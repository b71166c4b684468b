"""Predict published tables and report the errors.

    python -m benchmarks.validation --rl FILE.csv --training FILE.csv --generation FILE.csv --paper DIR --out DIR

Any subset of the inputs, several files per option. Exit code 0: every row was predicted or has its reason; 1: a row
failed in a way that nobody expected (everything is written all the same); 2: the input cannot be used.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.validation.calibrate import with_intervals
from benchmarks.validation.committed import write_committed
from benchmarks.validation.intervals import inside_intervals
from benchmarks.validation.markdown import summary_text
from benchmarks.validation.plots import write_plots
from benchmarks.validation.predict import predicted_paper, predicted_tables
from benchmarks.validation.report import frame_of, summary
from benchmarks.validation.tables import KINDS
from profiles.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pandas as pd

    from benchmarks.validation.rows import Row


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    options = _parser().parse_args(arguments)
    try:
        _check(options)
        frame = with_intervals(frame_of(_rows(options)))
        _write_all(frame, options)
    except (InputError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    found = summary(frame)
    print(_closing(found, options.out))
    return 1 if found["internal_errors"] else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.validation", description=__doc__.splitlines()[0])
    for kind in KINDS:
        parser.add_argument(f"--{kind}", type=Path, nargs="+", action="extend", default=[], metavar="FILE.csv")
    parser.add_argument("--paper", type=Path, metavar="DIR", help="folder with the paper's figures")
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder for rows.csv, summary.* and parity.*")
    parser.add_argument("--docs", type=Path, metavar="FILE.md", help="write the accuracy report, and its PNG beside it")
    parser.add_argument("--committed", type=Path, metavar="FILE.csv", help="write the errors that the tests hold")
    parser.add_argument("--calibrate", action="store_true", help="write the intervals that the residuals give")
    return parser


def _check(options: argparse.Namespace) -> None:
    files = [file for kind in KINDS for file in getattr(options, kind)]
    if not files and options.paper is None:
        raise InputError(f"nothing to predict: give {', '.join(f'--{kind}' for kind in KINDS)} or --paper")
    if not (options.out or options.docs or options.committed or options.calibrate):
        raise InputError("nowhere to write to: give --out DIR")
    for file in files:
        if not file.is_file():
            raise InputError(f"{file}: there is no such file")
    if options.paper is not None and not options.paper.is_dir():
        raise InputError(f"{options.paper}: there is no such folder")
    if options.out is not None and options.out.exists() and not options.out.is_dir():
        raise InputError(f"{options.out}: is a file, --out needs a folder")


def _rows(options: argparse.Namespace) -> list[Row]:
    rows = predicted_paper(options.paper) if options.paper is not None else []
    for kind in KINDS:
        files = getattr(options, kind)
        rows += predicted_tables(kind, files) if files else []
    return rows


def _write_all(frame: pd.DataFrame, options: argparse.Namespace) -> None:
    """Everything that was asked for, each folder complete before it is moved to its place."""
    if options.calibrate or options.docs is not None:
        from benchmarks.validation.ablation import PUBLISHED
        from benchmarks.validation.leave_out import fit_errors, left_out, refitted

        found = fit_errors(frame, PUBLISHED)
        frame = left_out(frame, PUBLISHED, found)
    if options.calibrate:
        from benchmarks.validation.calibrate import write_calibration

        write_calibration(frame)
        frame = with_intervals(frame)
    if options.out is not None:
        write_report(frame, options.out)
    if options.docs is not None:
        from benchmarks.validation.accuracy import write_accuracy

        write_accuracy(frame, options.docs, refitted(found))
    if options.committed is not None:
        write_committed(frame, options.committed)


def write_report(frame: pd.DataFrame, out: Path) -> None:
    """Write the files of a report into ``out``; nothing of them is there before all are complete."""
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out, prefix=".writing-") as name:
        folder = Path(name)
        frame.to_csv(folder / "rows.csv", index=False)
        found = {**summary(frame), "intervals": inside_intervals(frame)}
        text = json.dumps(found, indent=1, allow_nan=False) + "\n"
        (folder / "summary.json").write_text(text, encoding="utf-8")
        (folder / "summary.md").write_text(summary_text(frame), encoding="utf-8")
        for problem in write_plots(frame, folder):
            print(f"warning: {problem}", file=sys.stderr)
        for file in sorted(folder.iterdir()):
            os.replace(file, out / file.name)


def _closing(found: dict[str, object], out: Path | None) -> str:
    where = f"; see {out / 'summary.md'}" if out else ""
    return (
        f"{found['published_rows']:,} rows, {found['rows']:,} quantities: {found['predicted']:,} predicted, "
        f"{found['unpredicted']:,} with a reason, {found['internal_errors']:,} internal errors{where}"
    )


if __name__ == "__main__":
    sys.exit(main())
