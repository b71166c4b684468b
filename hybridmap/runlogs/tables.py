"""Metrics in files: JSON lines, CSV tables as W&B and MLflow export them, TensorBoard's events."""

from __future__ import annotations

import csv
import json
import re
from typing import TYPE_CHECKING, Any

from hybridmap.runlogs.events import Event, wanted
from profiles.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

STEP_COLUMNS = (
    "step",
    "_step",
    "global_step",
    "trainer/global_step",
    "training/global_step",
    "train/global_step",
    "rollout/step",
)
_CHART = re.compile(r".* - (?P<name>[^ ]+?)(?P<bound>__MIN|__MAX)?$")
"""A column of an exported W&B chart: ``run name - metric``, and the range of each point beside it."""


class Tables:
    """Reads rows one by one; ``damaged`` counts those that cannot be read."""

    def __init__(self) -> None:
        self.damaged = 0

    def json_lines(self, lines: Iterable[str]) -> Iterator[Event]:
        """``{"step": 3, "data": {...}}`` (verl's ``file`` logger), or flat with a step among the keys (W&B)."""
        for line in lines:
            if not line.strip():
                continue
            try:
                row = json.loads(line)
                metrics = row.get("data", row)
                step = _step_of({**metrics, **row})
                found = [Event(step, k, float(v)) for k, v in metrics.items() if wanted(k) and _is_number(v)]
            except (ValueError, OverflowError, AttributeError, TypeError, KeyError, RecursionError):
                self.damaged += 1
                continue
            yield from found

    def csv(self, lines: Iterable[str], source: str) -> Iterator[Event]:
        """A column for each metric and a row for each step, or ``key,value,step`` (MLflow).

        ``InputError`` where neither is in the first line.
        """
        rows = csv.DictReader(lines)
        names = list(rows.fieldnames or ())
        long = {"key", "value", "step"} <= set(names)
        columns = {name: metric for name in names if wanted(metric := _metric_of(name))}
        step = next((name for name in names if name.lower() in STEP_COLUMNS), None)
        if not long and (step is None or not columns):
            raise InputError(
                f"{source}: the first line names no step ({', '.join(STEP_COLUMNS[:3])}) with known metrics, "
                f"nor key, value and step; it has {', '.join(names[:6])}"
            )
        for row in rows:
            try:
                if long:
                    if wanted(row["key"]):
                        yield Event(int(float(row["step"])), row["key"], float(row["value"]))
                    continue
                number = int(float(row[step]))
                found = [Event(number, metric, float(row[name])) for name, metric in columns.items() if row[name]]
            except (ValueError, TypeError, KeyError, OverflowError):
                self.damaged += 1
                continue
            yield from found

    def tensorboard(self, paths: Iterable[Path]) -> Iterator[Event]:
        """Scalars of event files, as far as these are whole; ``InputError`` without the package to read them."""
        try:
            from tensorboard.backend.event_processing.event_file_loader import (  # type: ignore[import-untyped]
                EventFileLoader,
            )
        except ImportError as error:
            raise InputError(
                "to read TensorBoard events: pip install 'hybridmap[run]', or tensorboard alone"
            ) from error
        for path in paths:
            try:
                for event in EventFileLoader(str(path)).Load():
                    for value in event.summary.value:
                        if wanted(value.tag):
                            yield Event(int(event.step), value.tag, _scalar(value))
            except Exception as error:  # the package raises what it meets: a cut record, a wrong length
                if isinstance(error, OSError):
                    raise InputError(f"{path}: {error.strerror or error}") from error
                self.damaged += 1


def _scalar(value: Any) -> float:
    tensor = value.tensor
    for numbers in (tensor.float_val, tensor.double_val, tensor.int64_val, tensor.int_val):
        if numbers:
            return float(numbers[0])
    return float(value.simple_value)


def _metric_of(column: str) -> str:
    if wanted(column):
        return column
    chart = _CHART.match(column)
    return chart["name"] if chart is not None and chart["bound"] is None else ""


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _step_of(row: Mapping[str, Any]) -> int:
    step = next((row[name] for name in STEP_COLUMNS if name in row), None)
    if not isinstance(step, int | float) or not 0 <= step < 1e9:
        raise ValueError(step)
    return int(step)
