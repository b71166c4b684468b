"""Predict the HybridFlow paper's figures: every ``paper_*.csv`` of a folder, told apart by its columns."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import pandas as pd

from benchmarks.validation.paper_job import TOKENS
from benchmarks.validation.paper_plans import baseline, baseline_run, generation_sweep, hybridflow, transition_s
from benchmarks.validation.rows import Row
from profiles.errors import HybridmapError, InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    Cells = Mapping[str, str]

NO_BAR = "no number is published (out of memory, or the bar is missing)"
ZERO = "the published time is zero: a relative error is not defined"
MAPPER_TIME = "run time of the paper's own mapper on an unnamed CPU: not a quantity of the simulator"
MAPPERS_PICK = ("algorithm1", "algorithm 1", "hybridflow", "any", "mapper")
_SYSTEMS = {
    "ds-chat": "deepspeed-chat",
    "dschat": "deepspeed-chat",
    "nemo": "nemo-aligner",
    "nemoaligner": "nemo-aligner",
}


def predict(directory: Path) -> list[Row]:
    """Every quantity of every row of every ``paper_*.csv`` in ``directory``, predicted or with the reason why not."""
    return [row for file in sorted(directory.glob("paper_*.csv")) for row in _predict_file(file)]


def _predict_file(file: Path) -> list[Row]:
    table = pd.read_csv(file, dtype=str, keep_default_na=False, encoding="utf-8-sig", skipinitialspace=True)
    table.columns = [str(c).strip().lower() for c in table.columns]
    parts = file.stem.split("_")
    figure = parts[1] if len(parts) > 1 else file.stem
    handle = _kind(set(table.columns))
    records = [{str(k): str(v).strip() for k, v in cells.items()} for cells in table.to_dict(orient="records")]
    return [row for cells in records for row in handle(figure, cells)]


def _kind(columns: set[str]) -> Callable[[str, Cells], list[Row]]:
    """The figure's kind by its columns, most special first."""
    if "t_g" in columns:
        return _sweep
    if "transition_s" in columns:
        return _transition
    if "generation_s" in columns:
        return _generation
    if "placement" in columns or "system" in columns:
        return _iteration
    return _unpredicted


def _iteration(figure: str, cells: Cells) -> list[Row]:
    """Throughput (and iteration time) of a system, or of HybridFlow in a given placement."""
    placement, system = cells.get("placement", "").lower(), cells.get("system", "").lower()
    system = _SYSTEMS.get(system, system)
    base = _row(figure, cells, placement or system, system=system or "hybridflow", placement=placement)
    measured = _measured_seconds(cells)
    if measured is None:
        return [replace(base, quantity="tokens_per_s", measured=math.nan, reason=NO_BAR)]
    try:
        seconds, note = _outcome(cells, system, placement)
    except (HybridmapError, ValueError, KeyError) as error:
        return [
            replace(base, quantity=q, measured=m, reason=_first_line(error))
            for q, m in (("tokens_per_s", TOKENS / measured), ("iteration_s", measured))
        ]
    pairs = (("tokens_per_s", TOKENS / measured, TOKENS / seconds), ("iteration_s", measured, seconds))
    return [replace(base, quantity=q, measured=m, predicted=p, reason=note) for q, m, p in pairs]


def _outcome(cells: Cells, system: str, placement: str) -> tuple[float, str]:
    algorithm, model, num = cells.get("algorithm", "").lower() or "ppo", cells["model"], _gpus(cells)
    if placement:
        return hybridflow(algorithm, model, num, "any" if placement in MAPPERS_PICK else placement)
    if system == "hybridflow":
        return hybridflow(algorithm, model, num)
    if system == "nemo-aligner" and algorithm == "remax":
        raise InputError("NeMo-Aligner does not support ReMax")
    return baseline(system, algorithm, model, num)


def _measured_seconds(cells: Cells) -> float | None:
    """Seconds of an iteration from whichever of the two columns is filled; ``None`` for a missing or zero bar."""
    tokens, seconds = _number(cells.get("tokens_per_s")), _number(cells.get("iteration_s"))
    if tokens:
        return TOKENS / tokens
    return seconds or None


def _transition(figure: str, cells: Cells) -> list[Row]:
    system = cells.get("system", "").lower()
    system = _SYSTEMS.get(system, system)
    base = _row(figure, cells, system, system=system, quantity="transition_s")
    algorithm = cells.get("algorithm", "").lower() or "ppo"
    return [_scalar(base, cells, lambda: transition_s(system, algorithm, cells["model"], _gpus(cells)))]


def _sweep(figure: str, cells: Cells) -> list[Row]:
    base = _row(figure, cells, f"tg{cells['t_g']}", system="hybridflow", placement="colocate")

    def sweep(position: int) -> float:
        return generation_sweep(cells["model"], _gpus(cells), _whole(cells["t_g"]))[position]

    quantities = ("generation_s", "transition_s")
    return [
        _scalar(replace(base, quantity=q), cells, partial(sweep, i)) for i, q in enumerate(quantities) if q in cells
    ]


def _generation(figure: str, cells: Cells) -> list[Row]:
    """Generation of another system's iteration."""
    system = cells["system"].lower()
    base = _row(figure, cells, system, system=system, quantity="generation_s")
    algorithm = cells.get("algorithm", "").lower() or "ppo"

    def predicted() -> float:
        return baseline_run(system, algorithm, cells["model"], _gpus(cells))[0].stages["generation"]

    return [_scalar(base, cells, predicted)]


def _scalar(base: Row, cells: Cells, predicted: Callable[[], float]) -> Row:
    """The row with its number and prediction; a published zero has no relative error."""
    measured = _number(cells.get(base.quantity))
    if not measured:
        return replace(
            base, measured=math.nan if measured is None else 0.0, reason=NO_BAR if measured is None else ZERO
        )
    try:
        return replace(base, measured=measured, predicted=predicted())
    except (HybridmapError, ValueError, KeyError) as error:
        return replace(base, measured=measured, reason=_first_line(error))


def _unpredicted(figure: str, cells: Cells) -> list[Row]:
    quantity = "seconds" if "seconds" in cells else next(reversed(list(cells)), "")
    reason = MAPPER_TIME if quantity == "seconds" else f"no rule for a table with the columns {', '.join(cells)}"
    measured = _number(cells.get(quantity))
    row = _row(figure, cells, "", system="hybridflow", quantity=quantity)
    return [replace(row, measured=math.nan if measured is None else measured, reason=reason)]


def _row(figure: str, cells: Cells, last: str, *, system: str = "", placement: str = "", quantity: str = "") -> Row:
    parts = [figure, cells.get("model", ""), cells.get("num_gpus", ""), last]
    return Row(
        "paper",
        ":".join(part for part in parts if part),
        quantity,
        math.nan,
        figure=figure,
        system=system,
        placement=placement,
        schedule="sync",
        model_kind="dense",
        device="a100-80gb-sxm",
    )


def _number(text: str | None) -> float | None:
    try:
        value = float((text or "").replace(",", "").replace("~", ""))
    except ValueError:
        return None
    return value if math.isfinite(value) and value >= 0 else None


def _gpus(cells: Cells) -> int:
    return _whole(cells["num_gpus"])


def _whole(text: str) -> int:
    value = _number(text)
    if value is None or value != int(value) or value < 1:
        raise InputError(f"'{text}' is not a positive whole number")
    return int(value)


def _first_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__
