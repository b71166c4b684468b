"""What a run does about checkpoints: where they are, when one is due, what its metrics say of them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from executor.checkpoint.files import os_errors_as
from executor.errors import DamagedCheckpointError
from executor.recovery.load import checkpoints_at, require_free, require_whole, skipping
from executor.recovery.run_identity import require_same_run
from executor.recovery.saver import Saver
from profiles.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from types import TracebackType

    from executor.checkpoint.manifest import Checkpoint
    from executor.controller.controller import Controller
    from executor.controller.models import Models
    from executor.recorder import MetricsLog
    from executor.run_config import RunConfig

CHECKPOINTS = "checkpoints"
"""The folder inside a run's output, where its section names none."""


def folder_of(config: RunConfig, out_dir: Path) -> Path:
    """Where a run saves its checkpoints; absolute, since ranks work in folders of their own."""
    named = config.checkpoint.dir if config.checkpoint is not None else None
    return (Path(named) if named else out_dir / CHECKPOINTS).absolute()


def where_to_begin(
    config: RunConfig,
    out_dir: Path,
    resume: str | Path | bool,
    identity: Mapping[str, Any],
    iterations: int,
    on_skipped: Callable[[str], None],
) -> tuple[Checkpoint, ...]:
    """Checkpoints that a run may resume from, newest first; none for one that begins anew. ``resume`` as in ``run``.

    ``on_skipped`` is called for each that is damaged. ``InputError`` where the newest is another run's, where
    nothing is left to do, or where the folder to save into has checkpoints that this run would mix with its own.
    """
    found: tuple[Checkpoint, ...] = ()
    if resume:
        found = checkpoints_at(folder_of(config, out_dir) if resume is True else resume, on_skipped)
    if found:
        require_same_run(found[0].manifest.identity, dict(identity), str(found[0].folder))
        found = tuple(each for each in found if each.manifest.identity == found[0].manifest.identity)
        if config.checkpoint is not None:
            require_free(folder_of(config, out_dir), found[0].manifest.iteration)
        return _unfinished(found, iterations, on_skipped)
    if config.checkpoint is not None:
        require_free(folder_of(config, out_dir), 0)
    return ()


def _unfinished(
    found: tuple[Checkpoint, ...], iterations: int, on_skipped: Callable[[str], None]
) -> tuple[Checkpoint, ...]:
    """Those with iterations left to make; ``InputError`` where the newest that is whole has none left."""
    newest, *older = found
    done = newest.manifest.iteration
    if done < iterations:
        return found
    try:
        require_whole(newest)
    except DamagedCheckpointError as error:
        if not older:
            raise
        on_skipped(skipping(str(error), older[0]))
        return _unfinished(tuple(older), iterations, on_skipped)
    raise InputError(
        f"{newest.folder} has {done} iterations behind it and the run shall make {iterations}: nothing is left "
        f"to do; --iterations {done + 1} or more continues it"
    )


class Saving:
    """The checkpoints of a run as its loop sees them; nothing happens where its section asks for none.

    ``last`` is the iteration count at which the run ends: that is saved, too. ``damaged`` are folders of checkpoints
    that the run has skipped.
    """

    def __init__(
        self,
        models: Models,
        controller: Controller,
        config: RunConfig,
        out_dir: Path,
        *,
        identity: Mapping[str, Any],
        layout: str,
        last: int,
        damaged: Collection[Path] = (),
    ) -> None:
        self._section, self._last, self._num_reported = config.checkpoint, last, 0
        self._saver: Saver | None = None
        if self._section is not None:
            root, keep = folder_of(config, out_dir), self._section.keep
            self._saver = Saver(models, controller, root, keep=keep, identity=identity, layout=layout, damaged=damaged)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._saver is not None:
            self._saver.close()

    def is_due(self, iteration: int) -> bool:
        """Whether a save begins after ``iteration`` iterations."""
        return self._section is not None and (iteration % self._section.every == 0 or iteration == self._last)

    def after(self, iteration: int) -> dict[str, float]:
        """Begin a save if one is due after ``iteration`` iterations; metrics of saves, for the log.

        ``checkpoint/blocking_s``: the run stood still for it, now. ``checkpoint/background_s`` and ``checkpoint/bytes``
        are of saves that came to their end since this was last called.
        """
        if self._saver is None or self._section is None:
            return {}
        found = {}
        if self.is_due(iteration):
            found["checkpoint/blocking_s"] = self._saver.begin(iteration)
        through, self._num_reported = self._saver.reports[self._num_reported :], len(self._saver.reports)
        if through:
            found["checkpoint/background_s"] = sum(report.background_s for report in through)
            found["checkpoint/bytes"] = float(sum(report.num_bytes for report in through))
        return found

    def publish(self, log: MetricsLog) -> None:
        """Let what was begun appear, once the metrics of its iterations are on disk."""
        if self._saver is not None and self._saver.has_begun:
            with os_errors_as("metrics.jsonl could not be written, and no checkpoint may be ahead of it"):
                log.sync()
            self._saver.publish()

    def finish(self) -> None:
        """Wait until the last save is there."""
        if self._saver is not None:
            self._saver.wait()
