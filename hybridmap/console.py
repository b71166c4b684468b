"""Where output goes: answers to stdout, everything about the run itself to stderr, colour only to a terminal."""

from __future__ import annotations

import math
import os
import select
import shutil
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, NoReturn, TextIO

import typer

from hybridmap.json_text import to_json
from profiles.errors import HybridmapError, InfeasibleError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from hybridmap.table import Table

PIPED_WIDTH = 120
"""Columns where neither a terminal nor ``COLUMNS`` says how many there are."""

LEAST_WIDTH = 40
"""Narrower terminals wrap by themselves."""

PROGRESS_AFTER_S, DRAWN_EVERY_S, WRITTEN_EVERY_S = 3.0, 0.2, 2.0
"""Seconds before a search says what it does, and between two looks at a terminal, or two lines in a log."""

EXIT_INTERRUPTED = 130
"""What a shell says of a program that Ctrl-C ended."""

BAR_AFTER_S = 2.0
"""Seconds before a progress bar shows; shorter work needs none."""


def shown(text: str) -> str:
    """``text`` without characters that a terminal obeys or cannot show: names come from files of others."""
    return "".join(c if c.isprintable() or c in "\n\t" else "?" for c in text)


def width_of(stream: TextIO) -> int:
    """Columns of what shows a stream: ``COLUMNS``, else those of the terminal, else ``PIPED_WIDTH``."""
    columns = shutil.get_terminal_size((PIPED_WIDTH, 24)).columns if stream.isatty() else 0
    said = os.environ.get("COLUMNS", "")
    return max(LEAST_WIDTH, columns or (int(said) if said.isdecimal() and int(said) else PIPED_WIDTH))


def say(text: str = "") -> None:
    """Print a line of the answer, or several, wrapped between words."""
    from hybridmap.table import wrapped

    for line in wrapped(shown(text), width_of(sys.stdout)):
        typer.echo(line)


def say_whole(text: str) -> None:
    """Print text whose lines must stay as they are: a script, a file."""
    typer.echo(shown(text))


def say_json(document: object) -> None:
    """Print the answer as one JSON document."""
    typer.echo(to_json(document), nl=False)


def warn(text: str) -> None:
    """Print a line beside the answer."""
    typer.echo(shown(f"warning: {text}"), err=True)


def say_table(table: Table) -> None:
    """Print a table: aligned where it fits, else one block a row; columns that say nothing are left out."""
    from hybridmap.table import table_lines

    for i, line in enumerate(table_lines(table, width_of(sys.stdout))):
        typer.echo(typer.style(shown(line), bold=True) if i == 0 and sys.stdout.isatty() else shown(line))


def new_table(columns: Sequence[str], right: Sequence[str] = (), prose: Sequence[str] = (), keys: int = 1) -> Table:
    """An empty table; columns of ``right`` are numbers, those of ``prose`` may be wrapped, ``keys`` name a row."""
    from hybridmap.table import Table

    return Table(tuple(columns), frozenset(right), frozenset(prose), keys=keys)


@contextmanager
def working(text: str, asked: bool = False, quiet: bool = False) -> Iterator[None]:
    """Show on a terminal that something takes a while, and after some seconds what a search does and its best plan.

    Elsewhere, and where ``quiet`` (``--json``), only if ``asked`` for: a line now and then, to stderr.
    """
    on_terminal = sys.stderr.isatty() and not quiet
    if not on_terminal and not asked:
        yield
        return
    from rich.console import Console

    from mapper.progress import Progress, listening

    console, began, last, best_s = Console(stderr=True, highlight=False), time.monotonic(), [0.0], [math.inf]

    def line(now: Progress) -> str:
        steps = f" {now.done:,} of {now.total:,}" if now.total else ""
        best = f", best so far {best_s[0]:,.2f} s" if math.isfinite(best_s[0]) else ""
        return f"{text} {now.doing}{steps}{best} ({time.monotonic() - began:.0f} s)"

    def due(now: Progress, every_s: float) -> bool:
        at = time.monotonic()
        best_s[0] = min(best_s[0], now.best_s or math.inf)  # other placements are looked at after the best
        if at - began < PROGRESS_AFTER_S or at - last[0] < every_s:
            return False
        last[0] = at
        return True

    if not on_terminal:
        with listening(lambda now: typer.echo(line(now), err=True) if due(now, WRITTEN_EVERY_S) else None):
            yield
        return
    status = console.status(text)
    with status, listening(lambda now: status.update(line(now)) if due(now, DRAWN_EVERY_S) else None):
        yield


@contextmanager
def progress_bar(what: str) -> Iterator[Callable[[int, int], None]]:
    """Give a function to call with what is done and how much there is; a terminal shows it after two seconds."""
    if not sys.stderr.isatty():
        yield lambda done, total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    began = time.monotonic()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    bar = Progress(*columns, console=Console(stderr=True), transient=True)
    task = bar.add_task(what, total=None)

    def show(done: int, total: int) -> None:
        bar.update(task, completed=done, total=total)
        if time.monotonic() - began >= BAR_AFTER_S and not bar.live.is_started:
            bar.start()

    try:
        yield show
    finally:
        bar.stop()


def fail(error: HybridmapError, as_json: bool) -> NoReturn:
    """End the command with the one message of an expected outcome."""
    with unread_is_fine():
        if not as_json:
            typer.echo(shown(f"Error: {error}"), err=True)
        elif isinstance(error, InfeasibleError):
            say_json({"error": str(error), "status": "infeasible", "fewest_gpus": error.fewest_gpus})
        else:
            say_json({"error": str(error)})
    raise SystemExit(error.exit_status)


@contextmanager
def unread_is_fine() -> Iterator[None]:
    """Write to a reader that may have gone (``| head -1``) without minding."""
    try:
        yield
    except BrokenPipeError:
        if not stop_writing():
            raise


def stop_writing() -> bool:
    """Whether what reads stdout or stderr has gone; from then on nothing is written there, at exit neither."""
    gone = [stream for stream in (sys.stdout, sys.stderr) if _unread(stream)]
    for stream in gone:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
    return bool(gone)


def _unread(stream: TextIO) -> bool:
    try:
        found = select.poll()
        found.register(stream.fileno(), 0)  # an error is reported whatever is asked for
    except (AttributeError, OSError, ValueError):  # no such system, or no file behind the stream
        return False
    return any(event & select.POLLERR for _, event in found.poll(0))
