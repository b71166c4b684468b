"""What each fitted constant is worth: the errors of its rows with the constant, and with the term left out.

    python -m benchmarks.validation.ablation --out benchmarks/validation/ablation.csv

Each constant of ``fit_rows.yaml`` in turn takes its ``neutral`` value, in memory only, and the rows that it was fitted
on are predicted again, with the rows of the same tables that nothing was fitted on: those of the same system family
(``other``) and those of other systems (``rest``). The errors of the latter two are over the rows that the change moves.
"""

from __future__ import annotations

import argparse
import datetime
import re
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from benchmarks.validation.fit import FitConstant, fit_constants
from benchmarks.validation.overrides import Value, current_value, overridden
from benchmarks.validation.predict import predicted_paper, predicted_tables
from benchmarks.validation.report import frame_of
from profiles.atomic_write import write_atomically
from profiles.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.validation.rows import Row
    from benchmarks.validation.tables import TableKind

FILE = Path(__file__).parent / "ablation.csv"
PUBLISHED = Path(__file__).parents[1] / "published"
COMMAND = "python -m benchmarks.validation.ablation --out benchmarks/validation/ablation.csv"
MOVED = 1e-4
"""Change of the relative error from which on a prediction counts as moved."""

_TABLES: dict[TableKind, str] = {"rl": "rl_steps.csv", "training": "training.csv", "generation": "generation.csv"}
_KEY = ["table", "figure", "id", "quantity"]
_ERRORS = ("mean_with", "mean_without", "worst_with", "worst_without")
_MEDIANS = ("median_with", "median_without")
COLUMNS = (
    "constant",
    "file",
    "value",
    "neutral",
    "rows",
    "moved",
    *_ERRORS,
    "lost",
    *(f"{group}_{name}" for group in ("other", "rest") for name in ("rows", "moved", *_ERRORS, *_MEDIANS)),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.validation.ablation", description=__doc__.split(":")[0])
    parser.add_argument("--out", type=Path, default=FILE, metavar="FILE.csv")
    parser.add_argument("--published", type=Path, default=PUBLISHED, metavar="DIR", help="folder of published tables")
    options = parser.parse_args(arguments)
    try:
        write_ablation(ablated(options.published), options.out)
    except (InputError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def ablated(folder: Path) -> pd.DataFrame:
    """One record of ``COLUMNS`` per fitted constant, from the published tables of a folder."""
    frame = predicted(folder)
    records = []
    for constant in fit_constants():
        print(f"{constant.constant} ({constant.file})", file=sys.stderr, flush=True)
        records.append(effect(constant, frame, folder))
    return pd.DataFrame(records, columns=list(COLUMNS))


def effect(constant: FitConstant, frame: pd.DataFrame, folder: Path) -> dict[str, Any]:
    """Errors of a constant's rows, with it (``frame``) and without it (predicted here)."""
    kept, lost = _compared(constant, frame, folder)
    own = kept[kept["group"] == "own"]
    record = {
        "constant": constant.constant,
        "file": constant.file,
        "value": text_of_value(current_value(constant)),
        "neutral": text_of_value(constant.neutral),
        **{"rows": len(own), "moved": int(own["moved"].sum()), "lost": lost},
        **_errors(own, _ERRORS),
    }
    for name in ("other", "rest"):
        part = kept[kept["group"] == name]
        errors = _errors(part[part["moved"]], (*_ERRORS, *_MEDIANS))
        values = {"rows": len(part), "moved": int(part["moved"].sum()), **errors}
        record |= {f"{name}_{key}": value for key, value in values.items()}
    return record


def _compared(constant: FitConstant, frame: pd.DataFrame, folder: Path) -> tuple[pd.DataFrame, int]:
    """The constant's rows that have an error with it and without it, and how many have none without it."""
    group = groups(frame, constant)
    wanted = frame.assign(group=group)[(group != "") & frame["relative_error"].notna()]
    with overridden({constant: constant.neutral}):
        found = predicted(folder, wanted)[[*_KEY, "relative_error"]]
    both = wanted.merge(found, on=_KEY, how="left", suffixes=("", "_without"), validate="one_to_one")
    kept = both[both["relative_error_without"].notna()]
    moved = (kept["relative_error"] - kept["relative_error_without"]).abs() > MOVED
    return kept.assign(moved=moved), len(both) - len(kept)


def groups(frame: pd.DataFrame, constant: FitConstant) -> pd.Series:
    """What each row of a report is to a constant.

    ``own`` where it was fitted on it; in the same tables, of rows that nothing was fitted on, ``other`` in the same
    system family and ``rest`` elsewhere; otherwise empty. Other quantities of an own row are no test of it.
    """
    own = fitted_rows(frame, constant)
    families = frame["system"].map(family)
    unseen = frame["table"].isin(frame.loc[own, "table"]) & ~frame["fit"] & ~frame["id"].isin(frame.loc[own, "id"])
    group = pd.Series("", frame.index).mask(unseen, "rest").mask(unseen & families.isin(families[own]), "other")
    return group.mask(own, "own")


def fitted_rows(frame: pd.DataFrame, constant: FitConstant) -> pd.Series:
    """Which rows of a report the constant was fitted on."""
    covered = [constant.covers(t, f, i.split("#")[0], q) for t, f, i, q in frame[_KEY].to_numpy()]
    return pd.Series(covered, frame.index, dtype=bool)


def family(system: str) -> str:
    """The first word of a system's name: one family for Megatron-LM and Megatron-Bridge."""
    found = re.match(r"[a-z]+", system.lower())
    return found[0] if found else system


def predicted(folder: Path, wanted: pd.DataFrame | None = None) -> pd.DataFrame:
    """The report of a folder of published tables; with ``wanted`` little more than those rows of it."""
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as name:
        part = Path(name)
        for file in sorted(folder.glob("*.csv")):
            _copy(file, part / file.name, wanted)
        if any(part.glob("paper_*.csv")):
            rows += predicted_paper(part)
        for kind, table in _TABLES.items():
            if (part / table).is_file():
                rows += predicted_tables(kind, [part / table])
    return frame_of(rows)


def text_of_value(value: Value) -> str:
    """A value as it stands in the table."""
    return " ".join(map(str, value)) if isinstance(value, tuple) else f"{value:.6g}"


def write_ablation(frame: pd.DataFrame, path: Path) -> None:
    """Write the table under a comment with date and command; it is there complete or not at all."""
    text = f"# {datetime.datetime.now(tz=datetime.UTC).date()}: {COMMAND}\n" + frame.to_csv(index=False)
    write_atomically(path, text)


def read_ablation(path: Path = FILE) -> pd.DataFrame:
    """The table as it was written; one without rows where there is none yet."""
    if not path.is_file():
        return pd.DataFrame(columns=list(COLUMNS))
    return pd.read_csv(path, comment="#", dtype={"value": str, "neutral": str})


def _copy(file: Path, to: Path, wanted: pd.DataFrame | None) -> None:
    """Copy the rows of a published table that ``wanted`` needs; no file where it needs none."""
    raw = pd.read_csv(file, dtype=str, keep_default_na=False, encoding="utf-8-sig", skipinitialspace=True)
    if wanted is not None:
        raw = raw[_needed(file, raw, wanted)]
    if not raw.empty:
        raw.to_csv(to, index=False)


def _needed(file: Path, raw: pd.DataFrame, wanted: pd.DataFrame) -> pd.Series:
    if file.name in _TABLES.values():
        (table,) = (kind for kind, name in _TABLES.items() if name == file.name)
        ids = wanted.loc[wanted["table"] == table, "id"].str.split("#").str[0]
        return raw["id"].str.split().str.join(" ").isin(ids)
    part = wanted[(wanted["table"] == "paper") & (wanted["figure"] == file.stem.split("_")[1])]
    if part.empty or "system" not in raw:
        return pd.Series(not part.empty, raw.index, dtype=bool)
    sizes = part["id"].str.split(":").str[1:3].str.join(":")  # as ``paper`` names rows
    kept = (raw["model"].str.strip() + ":" + raw["num_gpus"].str.strip()).isin(sizes)
    return kept & raw["system"].str.strip().str.lower().isin(part["system"])


def _errors(part: pd.DataFrame, names: Sequence[str]) -> dict[str, float]:
    """``mean_with``, ``worst_without`` and so on: a statistic of the absolute errors, with or without the constant."""
    sides = {"with": part["relative_error"].abs(), "without": part["relative_error_without"].abs()}
    method = {"mean": "mean", "median": "median", "worst": "max"}
    pairs = {name: name.split("_") for name in names}
    return {name: round(float(sides[side].agg(method[what])), 4) for name, (what, side) in pairs.items()}


if __name__ == "__main__":
    sys.exit(main())
