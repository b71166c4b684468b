"""Saves a run's checkpoints while it runs.

saver = Saver(models, controller, folder, keep=2, identity=..., layout=...)
saver.begin(iteration)      copies every rank's state; ranks write it while the next calls run
saver.publish()             from now on it may become visible, as soon as all of it is on disk
saver.wait()                until it is; also raises what went wrong
saver.close()               at the end of a run, however it ends: nothing half done stays behind a return
"""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from executor.checkpoint.files import KEPT, begin_unfinished, commit, os_errors_as, prepare, prune
from executor.checkpoint.generated import GENERATED, write_generated
from executor.checkpoint.manifest import Manifest, RoleFacts
from executor.controller.actor_group import ActorGroup
from executor.recovery.load import groups_of
from profiles.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from contextlib import AbstractContextManager
    from pathlib import Path

    from executor.controller.controller import Controller
    from executor.controller.models import Models

POLL_LEAST_S, POLL_MOST_S = 0.005, 0.5
"""Between two looks for what ranks have written: twice as long each time."""
SEEN_S = 60.0
"""How long the controller waits to see files that ranks have synced: network file systems show them late."""


@dataclass(frozen=True)
class SaveReport:
    """One save: ``blocking_s`` the run stood still for it, ``background_s`` it was written while the run went on."""

    iteration: int
    blocking_s: float
    background_s: float
    num_bytes: int


class Saver:
    """Saves one checkpoint at a time into ``root`` and keeps the newest ``keep``; see the top of this file.

    ``damaged`` are folders there that count as none, and are deleted or replaced when the run has come to them.
    """

    def __init__(
        self,
        models: Models,
        controller: Controller,
        root: Path,
        *,
        keep: int,
        identity: Mapping[str, Any],
        layout: str = "",
        damaged: Collection[Path] = (),
    ) -> None:
        prepare(root)
        self.models, self.controller, self.root, self.keep = models, controller, root, keep
        self.identity, self.layout = dict(identity), layout
        self.reports: list[SaveReport] = []
        """Saves that are through, oldest first."""
        self._damaged = set(damaged)
        self._begun: _Begun | None = None
        self._committing: threading.Thread | None = None
        self._give_up = threading.Event()
        self._error: Exception | None = None

    @property
    def has_begun(self) -> bool:
        """Whether something waits for ``publish``."""
        return self._begun is not None

    def begin(self, iteration: int) -> float:
        """Copy the state after ``iteration`` iterations; waits for the save before. Returns the seconds it took."""
        start_s = time.perf_counter()
        self.wait()
        groups = groups_of(self.models)
        actor = self.models.groups["actor"]
        assert isinstance(actor, ActorGroup), "every algorithm generates with its actor"
        folders = [*groups, *([GENERATED] if actor.generated else [])]
        with self._os_errors(iteration):
            unfinished = begin_unfinished(self.root, iteration, folders)
        waiting = [f for name, group in groups.items() for f in group.begin_save(folder=str(unfinished / name))]
        controls = self.models.controller.controls()[0].first()
        for future in waiting:
            future.wait()
        ahead = {GENERATED: write_generated(unfinished / GENERATED, actor.generated)} if actor.generated else {}
        manifest = Manifest(
            iteration=iteration,
            next_call=self.controller.next_number(),
            controls=controls,
            batches_drawn=iteration if actor.ahead or actor.prompts is None else actor.prompts.num_drawn,
            ahead=actor.ahead,
            identity=self.identity,
            layout=self.layout,
            roles=ahead,
        )
        ranks = {name: group.degrees.num_ranks for name, group in groups.items()}
        blocking_s = time.perf_counter() - start_s
        self._begun = _Begun(unfinished, manifest, ranks, blocking_s, time.perf_counter())
        return blocking_s

    def publish(self) -> None:
        """Let what was begun become a checkpoint; call it when all that must not be lost with it is on disk."""
        begun, self._begun = self._begun, None
        if begun is not None:
            self._committing = threading.Thread(target=self._commit, args=(begun,), daemon=True)
            self._committing.start()

    def wait(self) -> None:
        """Wait until a published save is there; raises what a rank or the file system had against it."""
        if self._committing is not None:
            for group in groups_of(self.models).values():
                for future in group.finish_save():
                    future.wait()
            self._committing.join(SEEN_S)
            if self._committing.is_alive():
                self.close()
                raise InputError(
                    f"ranks have written a checkpoint, and {self.root} does not show all of it here after {SEEN_S:.0f} "
                    "s: run.checkpoint.dir must be a folder that all machines of the run share"
                )
            self._committing = None
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def close(self) -> None:
        """Commit what is complete, give up what is not."""
        self._give_up.set()
        if self._committing is not None:
            self._committing.join()
            self._committing = None

    def _commit(self, begun: _Begun) -> None:
        try:
            iteration = begun.manifest.iteration
            with self._os_errors(iteration):
                written = self._written(begun)
                if written is None:
                    return
                roles = begun.manifest.roles | written
                found = commit(begun.unfinished, begun.manifest.model_copy(update={"roles": roles}))
            self._damaged.discard(found.folder)
            with os_errors_as(f"{self.root}: checkpoints that are no longer kept could not be deleted"):
                prune(self.root, self.keep, iteration, self._damaged)
        except Exception as error:  # raised by wait, where the run can end with it
            self._error = error
        else:
            background_s = time.perf_counter() - begun.begun_s
            self.reports.append(SaveReport(begun.manifest.iteration, begun.blocking_s, background_s, found.num_bytes))

    def _os_errors(self, iteration: int) -> AbstractContextManager[None]:
        what = f"{self.root}: the checkpoint after iteration {iteration} could not be saved"
        return os_errors_as(what, KEPT)

    def _written(self, begun: _Begun) -> dict[str, RoleFacts] | None:
        """What all ranks wrote, once they have; ``None`` if the run ends before."""
        from executor.checkpoint.rank import report_name, take_report

        found: dict[str, RoleFacts] = {}
        delay_s, given_up = POLL_LEAST_S, False
        for role, num in begun.num_ranks.items():
            folder, names = begun.unfinished / role, [report_name(rank) for rank in range(num)]
            while not set(names) <= set(os.listdir(folder)):
                if given_up:  # seen before the last look
                    return None
                given_up = self._give_up.wait(delay_s)
                delay_s = min(2 * delay_s, POLL_MOST_S)
            found[role] = _together(role, [take_report(folder / name) for name in names])
        return found


@dataclass(frozen=True)
class _Begun:
    """A save whose states are copied."""

    unfinished: Path
    manifest: Manifest
    num_ranks: dict[str, int]
    blocking_s: float
    begun_s: float


def _together(role: str, ranks: list[RoleFacts]) -> RoleFacts:
    """The facts of a role from those of its ranks, which must have counted alike."""
    for rank, found in enumerate(ranks):
        if found.counters != ranks[0].counters:
            raise InputError(
                f"ranks of {role} are not in step: rank 0 counts {ranks[0].counters}, rank {rank} {found.counters}"
            )
    files = {name: facts for found in ranks for name, facts in found.files.items()}
    return RoleFacts(num_ranks=len(ranks), counters=ranks[0].counters, files=files)
