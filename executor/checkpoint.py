"""Checkpoints of a run: saved while it goes on, loaded into any plan of the same run.

    saver = Saver(models, controller, folder, keep=2, identity=..., layout=...)
    saver.begin(iteration)      copies every rank's state; ranks write it while the next calls run
    saver.publish()             from now on it may become visible, as soon as all of it is on disk
    saver.wait()                until it is; also raises what went wrong
    saver.close()               at the end of a run, however it ends: nothing half done stays behind a return

    require_free(folder, iteration)    no checkpoint there is beyond the iteration that a run begins with
    latest(folder)              the newest complete ``Checkpoint`` in a folder, or None
    load(models, controller, checkpoint)    into models that are initialised, in whatever layout they have
    save(models, controller, folder, iteration, identity=..., layout=...)    all of it at once, waiting

``iteration`` counts the iterations that are through. Saved are the master weights and optimizer states of every role
that is trained, random states of every rank, counters of optimizer steps and updates, KL coefficient and cost
multiplier, what was generated ahead of training, and what identifies the run. There is no scheduler: learning rates
are constant. Roles that are not trained come from the weights that the run section names. Files and the way they
appear: ``checkpoint_files``; shards: ``checkpoint_shards``; a rank's side: ``rank_checkpoint``.
"""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from executor.actor_group import ActorGroup
from executor.checkpoint_files import (
    Checkpoint,
    Manifest,
    RoleFacts,
    begin_aside,
    checkpoints,
    clean,
    commit,
    facts_of,
    prune,
    read_checkpoint,
    require_digest,
    sync_file,
)
from profiles.errors import FileFormatError, InputError
from simulator.dataflow import CONTROLLER

if TYPE_CHECKING:
    from collections.abc import Mapping

    from executor.controller import Controller
    from executor.futures import Future
    from executor.models import Models
    from executor.worker_group import WorkerGroup

POLL_LEAST_S, POLL_MOST_S = 0.005, 0.5
"""Between two looks for what ranks have written: twice as long each time."""
SEEN_S = 60.0
"""How long the controller waits to see files that ranks have synced: network file systems show them late."""
GENERATED, SAMPLED = "generated", "sampled"
GENERATOR = "-generation"
"""After a role's name: its ranks on a generation pool of their own."""


@dataclass(frozen=True)
class SaveReport:
    """One save: ``blocking_s`` the run stood still for it, ``background_s`` it was written while the run went on."""

    iteration: int
    blocking_s: float
    background_s: float
    num_bytes: int


def latest(folder: str | Path) -> Checkpoint | None:
    """The newest complete checkpoint in ``folder``, by the manifests there."""
    found = checkpoints(Path(folder))
    return found[-1] if found else None


def checkpoint_at(path: str | Path) -> Checkpoint:
    """The newest checkpoint of a folder of them, or the one that ``path`` is; ``InputError`` where there is none."""
    given = Path(path)
    if given.name.startswith("iteration-"):
        return read_checkpoint(given)
    found = latest(given)
    if found is None:
        raise InputError(f"{given} has no complete checkpoint; 'run.checkpoint: {{every: N}}' makes a run save them")
    return found


def save(
    models: Models, controller: Controller, folder: str | Path, iteration: int, *, identity: Mapping[str, Any],
    layout: str = "", keep: int = 2,
) -> Checkpoint:  # fmt: skip
    """Save and wait until the checkpoint is there."""
    saver = Saver(models, controller, Path(folder), keep=keep, identity=identity, layout=layout)
    saver.begin(iteration)
    saver.publish()
    saver.wait()
    found = latest(folder)
    assert found is not None, "it was written a moment ago"
    return found


def load(models: Models, controller: Controller, checkpoint: Checkpoint) -> int:
    """Bring initialised models to the state of a checkpoint; returns the iteration to go on with.

    Every rank reads what its layout needs. ``InputError`` names a file that is damaged or a role that is missing.
    """
    manifest, waiting = checkpoint.manifest, []
    for name, group in groups_of(models).items():
        if name in manifest.roles:
            folder = str(checkpoint.folder / name)
            waiting += group.load_checkpoint(folder=folder, facts=manifest.roles[name])
        elif not name.endswith(GENERATOR):
            raise FileFormatError(f"{checkpoint.folder} has nothing of {name}; it has {', '.join(manifest.roles)}")
    waiting += models.controller.set_controls(**manifest.controls)
    for future in waiting:
        future.wait()
    controller.count_on_from(manifest.next_call)
    actor = models.groups["actor"]
    assert isinstance(actor, ActorGroup), "every algorithm generates with its actor"
    ahead = _read_generated(controller, checkpoint) if actor.ahead == manifest.ahead else {}
    actor.go_on(manifest.iteration, manifest.roles["actor"].counters["updates"], ahead)
    return manifest.iteration


def require_free(folder: Path, iteration: int) -> None:
    """Raise ``InputError`` where ``folder`` has checkpoints beyond ``iteration``: of another run, or of a later one."""
    newest = latest(folder)
    if newest is not None and newest.manifest.iteration > iteration:
        raise InputError(
            f"{folder} has checkpoints up to iteration {newest.manifest.iteration}, this run begins at {iteration}: "
            "--resume goes on from the newest; another --out or run.checkpoint.dir begins beside them"
        )


def groups_of(models: Models) -> dict[str, WorkerGroup]:
    """The groups that have a part in a checkpoint, by the names of their folders."""
    found: dict[str, WorkerGroup] = {}
    for role, group in models.groups.items():
        if isinstance(group, ActorGroup):
            found[role] = group.trainer
            if group.generator is not group.trainer:
                found[role + GENERATOR] = group.generator
        elif role != CONTROLLER:
            found[role] = group
    return found


class Saver:
    """Saves one checkpoint at a time into ``root`` and keeps the newest ``keep``; see the top of this file."""

    def __init__(
        self, models: Models, controller: Controller, root: Path, *, keep: int, identity: Mapping[str, Any],
        layout: str = "",
    ) -> None:  # fmt: skip
        root.mkdir(parents=True, exist_ok=True)
        clean(root)
        self.models, self.controller, self.root, self.keep = models, controller, root, keep
        self.identity, self.layout = dict(identity), layout
        self.reports: list[SaveReport] = []
        """Saves that are through, oldest first."""
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
        aside = begin_aside(self.root, iteration, folders)
        waiting = [f for name, group in groups.items() for f in group.begin_save(folder=str(aside / name))]
        controls = self.models.controller.controls()[0].first()
        for future in waiting:
            future.wait()
        ahead = {GENERATED: _write_generated(aside / GENERATED, actor.generated)} if actor.generated else {}
        manifest = Manifest(
            iteration=iteration, next_call=self.controller.next_number(), controls=controls, ahead=actor.ahead,
            identity=self.identity, layout=self.layout, roles=ahead,
        )  # fmt: skip
        ranks = {name: group.degrees.num_ranks for name, group in groups.items()}
        blocking_s = time.perf_counter() - start_s
        self._begun = _Begun(aside, manifest, ranks, blocking_s, time.perf_counter())
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
            written = self._written(begun)
            if written is None:
                return
            roles = begun.manifest.roles | written
            found = commit(begun.aside, begun.manifest.model_copy(update={"roles": roles}))
            prune(self.root, self.keep)
        except OSError as error:  # raised by wait, where the run can end with it
            self._error = InputError(f"the checkpoint could not be written: {error}")
        except Exception as error:
            self._error = error
        else:
            background_s = time.perf_counter() - begun.begun_s
            self.reports.append(SaveReport(begun.manifest.iteration, begun.blocking_s, background_s, found.num_bytes))

    def _written(self, begun: _Begun) -> dict[str, RoleFacts] | None:
        """What all ranks wrote, once they have; ``None`` if the run ends before."""
        from executor.rank_checkpoint import report_name, take_report

        found: dict[str, RoleFacts] = {}
        delay_s, given_up = POLL_LEAST_S, False
        for role, num in begun.num_ranks.items():
            folder, names = begun.aside / role, [report_name(rank) for rank in range(num)]
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

    aside: Path
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


def _write_generated(folder: Path, generated: Mapping[tuple[str, int], Future]) -> RoleFacts:
    """Responses to prompts of later iterations; waits for those that are still being written."""
    from safetensors.torch import save_file

    files = {}
    for (suffix, iteration), future in generated.items():
        path = folder / f"{suffix or SAMPLED}.{iteration}.safetensors"
        save_file({name: column.contiguous() for name, column in future.get().items()}, path)
        sync_file(path)
        files[path.name] = facts_of(path)
    return RoleFacts(num_ranks=1, counters={}, files=files)


def _read_generated(controller: Controller, checkpoint: Checkpoint) -> dict[tuple[str, int], Future]:
    from safetensors.torch import load_file
    from tensordict import TensorDict

    found: dict[tuple[str, int], Future] = {}
    facts = checkpoint.manifest.roles.get(GENERATED)
    for name, file in facts.files.items() if facts else ():
        path = checkpoint.folder / GENERATED / name
        require_digest(path, file)
        suffix, iteration, _ = name.split(".")
        columns = load_file(path)
        rows = next(iter(columns.values())).shape[0]
        found[suffix if suffix != SAMPLED else "", int(iteration)] = controller.put(TensorDict(columns, [rows]))
    return found
