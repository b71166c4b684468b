"""A log of any kind: what it is is seen from its name and its first bytes."""

from __future__ import annotations

import csv
from dataclasses import replace
from typing import TYPE_CHECKING

from hybridmap.files.timeline import read_timeline
from hybridmap.runlogs.console import Console
from hybridmap.runlogs.events import gathered
from hybridmap.runlogs.records import STEP, LoggedStep, RunLog
from hybridmap.runlogs.tables import Tables
from profiles.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from simulator.plan.timeline import Timeline

EVENTS = "tfevents"
MOST_BYTES = 4 << 30
MOST_LINE = 1 << 22


def read_log(path: Path) -> RunLog:
    """Read a log.

    Parameters
    ----------
    path
        verl's console output or ``.jsonl``; a console log of NeMo-RL, OpenRLHF or slime; a file or folder of
        TensorBoard events; a ``.csv`` of W&B or MLflow; a ``timeline.json`` of ours.

    Raises
    ------
    InputError
        It cannot be read, or holds no times of a run's stages.
    """
    source = str(path)
    try:
        if path.is_dir():
            return _events(sorted(p for p in path.rglob(f"*{EVENTS}*") if p.is_file()), source)
        if not path.is_file():
            raise InputError(f"{source}: there is no such file or folder")
        if path.stat().st_size > MOST_BYTES:
            raise InputError(f"{source}: {path.stat().st_size:,} bytes, at most {MOST_BYTES:,} are read; cut the log")
        if EVENTS in path.name:
            return _events([path], source)
        if path.suffix == ".csv":
            return _csv(path, source)
        first = next((line for line in _lines(path) if line.strip()), "")
        if path.suffix == ".json":
            return _own(path)
        if first.lstrip().startswith("{"):
            tables = Tables()
            events = list(tables.json_lines(_lines(path)))
            return gathered(events, source, tables.damaged)
        console = Console()
        events = list(console.events(_lines(path)))
        return replace(gathered(events, source, console.damaged), model=console.model)
    except OSError as error:
        raise InputError(f"{source}: {error.strerror or error}") from error


def _csv(path: Path, source: str) -> RunLog:
    tables = Tables()
    try:
        events = list(tables.csv(_lines(path), source))
    except csv.Error as error:
        raise InputError(f"{source}: not CSV ({error})") from None
    return gathered(events, source, tables.damaged)


def _events(paths: list[Path], source: str) -> RunLog:
    if not paths:
        raise InputError(f"{source}: no TensorBoard events in this folder (files with {EVENTS} in their names)")
    tables = Tables()
    events = list(tables.tensorboard(paths))
    return gathered(events, source, tables.damaged)


def _own(path: Path) -> RunLog:
    timeline = read_timeline(path)
    if timeline.source != "measured":
        raise InputError(f"{path}: a timeline that was simulated, which says nothing about a run; give a measured one")
    return log_of([timeline], str(path))


def log_of(timelines: Sequence[Timeline], source: str) -> RunLog:
    """Measured iterations as a log."""
    steps = [
        LoggedStep(
            i,
            {span.call: span.rank_s for span in timeline.spans} | {STEP: timeline.iteration_s},
            between_s=timeline.between_s,
        )
        for i, timeline in enumerate(timelines)
    ]
    return RunLog("hybridmap", source, tuple(steps))


def _lines(path: Path) -> Iterator[str]:
    """Lines of text, whatever bytes are among them; of a longer line than any record the beginning."""
    with path.open("rb") as file:
        while raw := file.readline(MOST_LINE):
            yield raw.decode("utf-8", "replace")
