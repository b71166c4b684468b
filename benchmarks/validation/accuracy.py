"""``docs/accuracy.md``: how far predictions are from published measurements, and what was fitted on what.

Every number is computed from the rows; the sentences stand in ``accuracy_template.md``.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from benchmarks.validation import ablation, calibrate, plots
from benchmarks.validation.alike import correlations
from benchmarks.validation.devices import DERIVED
from benchmarks.validation.fit import FitConstant, fit_constants
from benchmarks.validation.headline import COLUMNS as HEADLINE
from benchmarks.validation.headline import headline
from benchmarks.validation.markdown import sections, table
from benchmarks.validation.order import order_and_regret
from benchmarks.validation.overrides import current_value
from benchmarks.validation.report import STATISTICS, grouped, is_rate, is_time, statistics
from benchmarks.validation.stages import COLUMNS, share_of_bad_steps, steps_by_stages
from profiles.device_file import load_tables_of
from profiles.store import DATA, device_names, load_device
from profiles.tables.cross_validation import table_errors

if TYPE_CHECKING:
    from collections.abc import Mapping

TEMPLATE = Path(__file__).parent / "accuracy_template.md"
_FITTED = ("file", "constant", "meaning", "fitted rows", "error of these", "other rows of the table", "error of those")
_WITHOUT = (
    "constant",
    "file",
    "meaning",
    "value",
    "left out",
    "fitted rows that move",
    "mean error",
    "without",
    "worst",
    "worst without",
    "unfitted, same systems",
    "error, without",
    "unfitted, other systems",
    "errors, without",
    "what goes wrong",
)
ALL_KINDS = "all"
FAMILY_COLUMNS = ("table", "quantity", "model_kind", "rows", "mean", "median", "worst")
FAMILY_COLUMNS += ("in sample", "worst in sample", "naive")
SMALL = 0.005
"""Rise of a mean or median error up to which the page says that a constant is not needed."""


def write_accuracy(frame: pd.DataFrame, path: Path, again: pd.DataFrame | None = None) -> None:
    """Write the page and, beside it, its picture ``<stem>.png`` and ``<stem>.json``, which a gate holds."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".writing-") as name:
        folder = Path(name)
        (folder / path.name).write_text(accuracy_text(frame, f"{path.stem}.png", again), encoding="utf-8")
        text = json.dumps(figures(frame), indent=1, sort_keys=True) + "\n"
        (folder / f"{path.stem}.json").write_text(text, encoding="utf-8")
        plots.write_png(plots.points_of(frame), folder / f"{path.stem}.png")
        for file in sorted(folder.iterdir()):
            os.replace(file, path.parent / file.name)


def accuracy_text(frame: pd.DataFrame, picture: str, again: pd.DataFrame | None = None) -> str:
    """The whole page; ``again`` holds the constants fitted anew (``leave_out.refitted``), when that was done."""
    text = TEMPLATE.read_text(encoding="utf-8")
    frame = frame if "left_out" in frame else frame.assign(left_out=frame["predicted"])
    for name, part in _parts(frame, again, picture).items():
        text = text.replace(f"<!-- {name} -->", part)
    return text


def _parts(frame: pd.DataFrame, again: pd.DataFrame | None, picture: str) -> Mapping[str, str]:
    per_fit = grouped(frame, "table", "quantity", "fit")
    intervals, alike = calibrate.coverage(frame), correlations(calibrate.residuals(frame))
    families = family_errors(frame)
    return {
        "headline": table(headline(families), HEADLINE),
        "left one family out": table(families, FAMILY_COLUMNS),
        "worst families": table(worst_families(frame), ("table", "family", "rows", "left out", "in sample")),
        "order": table(order_and_regret(frame), ("table", "pairs", "in order", "choices", "regret")),
        "stages": table(steps_by_stages(frame), COLUMNS),
        "refitted": refitted_text(again),
        "picture": f"![Predicted over measured]({picture})",
        "fit": table([r for r in per_fit if r["predicted"]], ("table", "quantity", "fit", *STATISTICS)),
        "sections": "\n\n".join(sections(frame)),
        "constants": table([fitted_record(frame, constant) for constant in fit_constants()], _FITTED),
        "without": without_text(ablation.read_ablation()),
        "left out": table(left_out(frame), ("table", "system", "rows", "error", "other systems", "error of others")),
        "devices": table(device_records(frame), ("device", "basis", *STATISTICS)),
        "lookup": table(lookup_records(), ("device", "table", "points left out", "median", "90 %", "99 %")),
        "sustained": table(sustained_records(), ("device", "dtype", "share of peak", "source")),
        "correlations": ", ".join(f"{name} {rho:.2f}" for name, rho in alike.items()),
        "intervals": table(intervals, tuple(intervals[0]) if intervals else ("table",)),
    }


def figures(frame: pd.DataFrame) -> dict[str, float]:
    """The figures that a gate holds, by name: errors of left-out families, pairs out of order, regret."""
    found = {"/".join(map(str, (r["table"], r["quantity"], r["model_kind"]))): r["mean"] for r in family_errors(frame)}
    for line in order_and_regret(frame):
        found |= {f"out of order/{line['table']}": 1.0 - line["in order"], f"regret/{line['table']}": line["regret"]}
    if (bad := share_of_bad_steps(frame)) is not None:
        found["steps not good by their stages/rl"] = bad
    return {name: round(float(value), 4) for name, value in found.items()}


def family_errors(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """By table, quantity and kind of model, and of all kinds: errors left one family out, in sample, and naive."""
    rows = frame[frame["predicted"].notna() & (frame["level"].isin(["A", "B"]) | (frame["table"] == "paper"))]
    rows = rows[rows["measured"] > 0]
    mixed = rows.groupby(["table", "quantity"])["model_kind"].transform("nunique") > 1
    rows = pd.concat([rows, rows[mixed].assign(model_kind=ALL_KINDS)])
    found = []
    for keys, part in rows.groupby(["table", "quantity", "model_kind"], sort=True):
        sides = {side: (part[side] / part["measured"] - 1.0).abs() for side in ("left_out", "predicted", "naive")}
        left = sides["left_out"]
        line = dict(zip(("table", "quantity", "model_kind"), keys, strict=True)) | {"rows": len(part)}
        line |= {"mean": left.mean(), "median": left.median(), "worst": left.max()}
        line |= {"in sample": sides["predicted"].mean(), "worst in sample": sides["predicted"].max()}
        found.append(line | {"naive": sides["naive"].mean() if sides["naive"].notna().any() else None})
    return found


def worst_families(frame: pd.DataFrame, count: int = 12) -> list[dict[str, Any]]:
    """The families with the largest mean error of times and rates, left out and in sample."""
    timed = frame["quantity"].map(lambda q: is_time(q) or is_rate(q)).astype(bool) & frame["level"].isin(["A", "B"])
    rows = frame[timed & frame["predicted"].notna() & (frame["measured"] > 0)]
    found: list[dict[str, Any]] = []
    for (name, own), part in rows.groupby(["table", "family"], sort=True):
        sides = ("left_out", "predicted")
        left, inside = (float((part[side] / part["measured"] - 1.0).abs().mean()) for side in sides)
        found.append(
            {"table": name, "family": own, "rows": part["id"].nunique(), "left out": left, "in sample": inside}
        )
    return sorted(found, key=lambda line: -float(line["left out"]))[:count]


def refitted_text(again: pd.DataFrame | None) -> str:
    """The table of constants fitted anew."""
    if again is None or again.empty:
        return "No constant was fitted again for this page."
    records = [{str(k): v for k, v in record.items()} for record in again.to_dict(orient="records")]
    for record in records:
        record["constant"], record["file"] = f"`{record['constant']}`", f"`{Path(record['file']).name}`"
    return table(records, ("constant", "file", "committed", "fitted", "lowest", "highest", "families"))


def fitted_record(frame: pd.DataFrame, constant: FitConstant) -> dict[str, Any]:
    """Mean absolute error of the rows that a constant was fitted on, and of the other rows of those tables."""
    own = ablation.fitted_rows(frame, constant)
    tables = {rows.table for rows in constant.rows}
    quantities = set(frame.loc[own, "quantity"])
    others = frame["table"].isin(tables) & frame["quantity"].isin(quantities) & ~own
    return {
        "file": ", ".join(f"`{Path(file).name}`" for file in constant.files),
        "constant": f"`{constant.constant}`",
        "meaning": constant.meaning,
        "fitted rows": int(frame.loc[own, "predicted"].notna().sum()),
        "error of these": _mean(frame[own]),
        "other rows of the table": int(frame.loc[others, "predicted"].notna().sum()),
        "error of those": _mean(frame[others]),
    }


def without_text(found: pd.DataFrame) -> str:
    """The table of ``ablation.csv``, when it was made, and the constants that could go."""
    records = {(record["file"], record["constant"]): record for record in found.to_dict(orient="records")}
    listed = [(c, records.get((c.file, c.constant))) for c in fit_constants()]
    parts = [table([without_record(constant, record) for constant, record in listed], _WITHOUT)]
    spare = [_spare_text(c, r) for c, r in listed if r is not None and is_spare(r)]
    if spare:
        words = f"Leaving one of these out raises no mean or median error of the table by more than {SMALL:.1%}"
        parts.append(f"{words}: {', '.join(spare)}.")
    return "\n\n".join(parts)


def _spare_text(constant: FitConstant, record: Mapping[Any, Any]) -> str:
    why = "" if record["moved"] else ", which prices none of its fitted rows"
    return f"`{constant.constant}` (`{Path(constant.file).name}`{why})"


def without_record(constant: FitConstant, record: Mapping[Any, Any] | None) -> dict[str, Any]:
    """One constant's line: its rows with it and without it, and the unfitted rows of the same systems."""
    now = ablation.text_of_value(current_value(constant))
    line = {
        "constant": f"`{constant.constant}`",
        "file": f"`{Path(constant.file).name}`",
        "meaning": constant.meaning,
        "value": now,
        "left out": ablation.text_of_value(constant.neutral),
        "what goes wrong": constant.error_without,
    }
    if record is None:
        return {**line, "fitted rows that move": "not in `ablation.csv`: run `make ablation`"}
    if (record["value"], record["neutral"]) != (line["value"], line["left out"]):
        line["value"] = f"{now} (errors are those of {record['value']}: run `make ablation`)"
    errors = {"mean error": "mean_with", "without": "mean_without", "worst": "worst_with"}
    errors["worst without"] = "worst_without"
    line |= {name: f"{record[key]:.1%}" for name, key in errors.items()}
    line["fitted rows that move"] = f"{record['moved']} of {record['rows']}"
    names = {
        "other": ("unfitted, same systems", "error, without"),
        "rest": ("unfitted, other systems", "errors, without"),
    }
    for group, (count, change) in names.items():
        line[count] = f"{record[f'{group}_moved']} of {record[f'{group}_rows']}" if record[f"{group}_rows"] else ""
        with_it, without = (record[f"{group}_median_{side}"] for side in ("with", "without"))
        line[change] = "" if pd.isna(with_it) else f"{with_it:.1%}, {without:.1%}"
    return line


def is_spare(record: Mapping[Any, Any]) -> bool:
    """Whether neither the fitted rows nor the unfitted ones say that the constant is needed."""
    names = ("mean", "other_median", "rest_median")
    rises = [record[f"{name}_without"] - record[f"{name}_with"] for name in names]
    return record["lost"] == 0 and all(pd.isna(rise) or rise <= SMALL for rise in rises)


def left_out(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """For each system whose rows fixed a constant: its error, and that of the systems that fixed none."""
    found = []
    for (name, system), part in frame[frame["fit"]].groupby(["table", "system"], sort=True):
        others = frame[(frame["table"] == name) & (frame["system"] != system) & ~frame["fit"]]
        others = others[others["quantity"].isin(set(part["quantity"]))]
        found.append(
            {
                "table": name,
                "system": system,
                "rows": int(part["predicted"].notna().sum()),
                "error": _mean(part),
                "other systems": int(others["predicted"].notna().sum()),
                "error of others": _mean(others),
            }
        )
    return found


def device_records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Errors of times and rates by device: measured tables, derived from another part, or no rows at all."""
    timed = frame[frame["quantity"].map(lambda q: is_time(q) or is_rate(q)).astype(bool)]
    found = []
    for device in (*device_names(), *DERIVED):
        other = DERIVED[device].base if device in DERIVED else load_tables_of(DATA / device)
        basis = f"derived from {other}" if other else "measured tables"
        found.append({"device": device, "basis": basis, **statistics(timed[timed["device"] == device])})
    return found


def lookup_records() -> list[dict[str, Any]]:
    """Error of a lookup between measured points, for every shipped table: each point predicted without itself."""
    return [
        {
            "device": name,
            "table": measured,
            "points left out": e.points,
            "median": f"{e.median:.1%}",
            "90 %": f"{e.p90:.1%}",
            "99 %": f"{e.p99:.1%}",
        }
        for name in device_names()
        for measured, e in table_errors(load_device(name)).items()
    ]


def sustained_records() -> list[dict[str, Any]]:
    """The rate that long dense work holds on each device, over its peak, with its source."""
    found = []
    for name in device_names():
        spec = load_device(name).spec
        for dtype, rate in sorted(spec.sustained_flop_per_s.items()):
            source = spec.sources.get(f"sustained_flop_per_s.{dtype}", "")
            share = f"{rate / spec.peak(dtype):.0%}"
            found.append({"device": name, "dtype": dtype, "share of peak": share, "source": source})
    return found


def _mean(part: pd.DataFrame) -> str:
    errors = part["relative_error"].dropna().abs()
    return "" if errors.empty else f"{errors.mean():.1%}"
