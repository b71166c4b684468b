"""What one measured run of a family is worth for its other runs: errors before and after a calibration on it.

    python -m benchmarks.calibration --rl rl_steps.csv --training training.csv --out DIR

Any tables of the kinds of ``benchmarks/published``; those where none is given. A family is a model on a device with a
release (days of a development version are one; LoRA is not full training); the row with the most published stages (the
first of them) is calibrated on, by the prior and the fit of ``hybridmap calibrate``; the family's other rows are
predicted. ``families.csv`` has each family, ``rows.csv`` each row, ``summary.json`` the means, and as ``every row in
turn`` those with each row of a family calibrated on once, which ``--first`` leaves out; ``rl without tables`` are those
of the RL rows whose device has no tables.

A row counts as a log of one step. One that publishes no stage is one number, by which the prior keeps its usual width;
so does the total of a job, of which the table has the hours over its steps. None is left out for that.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from benchmarks.calibration_rows import STAGES, Known, iteration_s, rl_rows, training_rows
from benchmarks.validation import training
from benchmarks.validation.names import WITHOUT_TABLES, number, text_of
from benchmarks.validation.tables import read_tables
from hybridmap.calibration.learn import learn
from hybridmap.runlogs.records import BOTH_LOG_PROBS, LoggedStep, RunLog
from profiles.calibration import FACTORS, UNCALIBRATED
from profiles.errors import InputError
from simulator.calibration.factors import WIDTHS, Belief, calibrated, calibration_of, layer_of, prior
from simulator.calibration.posterior import Observation, fit_to

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from profiles.records import Floats
    from simulator.facts import Facts
    from simulator.plan.plan import Plan

Cells = dict[str, Any]
PUBLISHED = Path(__file__).parent / "published"

ROW_ERROR = 0.08
"""Relative: rows of a family lie this far from their mean (robust standard deviation over the published training rows):
a run's own noise, and sizes and layouts whose parts are off by unlike shares."""
FAMILY_ERROR = 0.06
"""Relative: the means of those families lie this far from the prices (robust, too)."""


def logged(cells: Mapping[str, Any], plan: Plan) -> RunLog:
    """A published row as the log of one step."""
    seconds = {call: s for stage, call in STAGES.items() if (s := number(cells.get(stage))) is not None and s > 0}
    if "compute_log_prob" in seconds or "compute_ref_log_prob" in seconds:
        seconds.pop(BOTH_LOG_PROBS, None)
    if plan.schedule != "sync":
        seconds.pop("generate_sequences", None)  # what the trainer waits
    return RunLog("published", text_of(cells.get("id")), (LoggedStep(1, seconds),))


def rl_after(known: Known, others: Sequence[Known]) -> list[float]:
    """Predictions of other rows by what one row says; as they are where nothing can be learned from it."""
    cells, facts, plan = known.given
    try:
        layer = layer_of([learn(logged(cells, plan), plan, facts).file])
    except InputError:  # nothing can be learned from it
        layer = UNCALIBRATED
    return [iteration_s(calibrated(other_facts, layer), other_plan) for _, other_facts, other_plan in _given(others)]


def rl_before(rows: Sequence[Known]) -> list[float]:
    """Predictions without any calibration."""
    return [iteration_s(facts, plan) for _, facts, plan in _given(rows)]


def _given(rows: Sequence[Known]) -> list[tuple[Cells, Facts, Plan]]:
    return [row.given for row in rows]


class TrainerPrices:
    """Seconds of training steps under the trainer's two factors."""

    def __init__(self, steps: Sequence[training.Step]) -> None:
        self.steps = tuple(steps)

    def seconds(self, observed: Observation, log_factors: Floats) -> float:
        """Predicted seconds of a step."""
        return self.at(observed.case, Belief(log_factors, np.eye(len(FACTORS))))

    def at(self, case: int, belief: Belief) -> float:
        """The same for a belief."""
        step = self.steps[case]
        facts = calibrated(step.facts, calibration_of(belief, {}))
        return training.step_seconds(replace(step, facts=facts)) * belief.factors["training"]

    def same_run(self, one: int, other: int) -> bool:
        """Each row is a run of its own."""
        return one == other


def training_after(known: Known, others: Sequence[Known]) -> list[float]:
    """Predictions of other rows by what one row says."""
    prices = TrainerPrices([row.given for row in (known, *others)])
    row = Observation(0, ("update_actor",), known.measured_s, ROW_ERROR)
    belief = fit_to(prices, [row], scales=(FAMILY_ERROR / WIDTHS["training"],)).belief
    return [prices.at(i, belief) for i in range(1, len(others) + 1)]


def training_before(rows: Sequence[Known]) -> list[float]:
    """Predictions without any calibration."""
    prices = TrainerPrices([row.given for row in rows])
    return [prices.at(i, prior()) for i in range(len(rows))]


def compared(
    kind: str,
    rows: Sequence[Known],
    before: Callable[[Sequence[Known]], list[float]],
    after: Callable[[Known, Sequence[Known]], list[float]],
    *,
    turns: bool = True,
) -> pd.DataFrame:
    """Relative errors before and after of every row by each other row of its family; ``first`` is the fullest row's.

    Without ``turns`` by the fullest row alone.
    """
    records = []
    for family in dict.fromkeys(row.family for row in rows):
        own = [row for row in rows if row.family == family]
        fullest = max(own, key=lambda row: row.stages)
        for known in (own if turns else [fullest]) if len(own) > 1 else ():
            others = [row for row in own if row is not known]
            for row, plain_s, fitted_s in zip(others, before(others), after(known, others), strict=True):
                errors = {"before": plain_s / row.measured_s - 1.0, "after": fitted_s / row.measured_s - 1.0}
                names = {"table": kind, "family": family, "calibrated_on": known.name, "id": row.name}
                records.append({**names, **errors, "first": known is fullest})
    names = ["table", "family", "calibrated_on", "id", "before", "after", "first"]
    return pd.DataFrame(records, columns=names).astype({"before": float, "after": float, "first": bool})


def summary(frame: pd.DataFrame) -> dict[str, float | int | None]:
    """Rows, and the mean absolute error before and after; each row counts once, by the mean over its predictions."""
    if frame.empty:
        return {"rows": 0, "before": None, "after": None}
    rows = frame[["before", "after"]].abs().groupby([frame["family"], frame["id"]]).mean()
    return {"rows": len(rows), **{name: float(rows[name].mean()) for name in ("before", "after")}}


def tables_of(rl_files: list[Path], training_files: list[Path]) -> dict[str, list[Path]]:
    """The files of each kind; those of ``benchmarks/published`` where none is given."""
    if rl_files or training_files:
        return {"rl": rl_files, "training": training_files}
    return {"rl": [PUBLISHED / "rl_steps.csv"], "training": [PUBLISHED / "training.csv"]}


def main(arguments: Sequence[str] | None = None) -> int:
    """Write ``rows.csv``, ``families.csv`` and ``summary.json``; returns the exit code."""
    parser = argparse.ArgumentParser(prog="benchmarks.calibration", description=__doc__.splitlines()[0])
    parser.add_argument("--rl", type=Path, nargs="*", default=[])
    parser.add_argument("--training", type=Path, nargs="*", default=[])
    parser.add_argument("--first", action="store_true", help="calibrate on the fullest row of each family alone")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args(arguments)
    try:
        _write(_frames(tables_of(given.rl, given.training), turns=not given.first), given.out, turns=not given.first)
    except (InputError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def _frames(files: Mapping[str, Sequence[Path]], *, turns: bool) -> dict[str, pd.DataFrame]:
    frames = {}
    if files["rl"]:
        rows = rl_rows(read_tables("rl", files["rl"]))
        frames["rl"] = compared("rl", rows, rl_before, rl_after, turns=turns)
    if files["training"]:
        rows = training_rows(read_tables("training", files["training"]))
        frames["training"] = compared("training", rows, training_before, training_after, turns=turns)
    return frames


def _write(frames: Mapping[str, pd.DataFrame], out: Path, *, turns: bool) -> None:
    out.mkdir(parents=True, exist_ok=True)
    pd.concat(frames.values()).to_csv(out / "rows.csv", index=False)
    first = pd.concat([frame[frame["first"]] for frame in frames.values()])
    sizes = first.assign(before=first["before"].abs(), after=first["after"].abs())
    means = {"rows": ("id", "size"), "before": ("before", "mean"), "after": ("after", "mean")}
    families = sizes.groupby(["table", "family"]).agg(**means)
    families.to_csv(out / "families.csv")
    found: dict[str, Any] = {kind: summary(frame[frame["first"]]) for kind, frame in frames.items()}
    if "rl" in frames:
        bare = frames["rl"]["family"].map(lambda family: family.split(" | ")[1] in WITHOUT_TABLES).astype(bool)
        found["rl without tables"] = summary(frames["rl"][bare & frames["rl"]["first"]])
    if turns:
        found["every row in turn"] = {kind: summary(frame) for kind, frame in frames.items()}
    (out / "summary.json").write_text(json.dumps(found, indent=1) + "\n")
    print(families.to_string(float_format="{:.3f}".format))
    print(json.dumps(found))


if __name__ == "__main__":
    sys.exit(main())
