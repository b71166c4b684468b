"""Checkpoints of a run: found, and loaded into any plan of the same run. Saving: ``checkpoint_saver``.

    require_free(folder, iteration)    no checkpoint there is beyond the iteration that a run begins with
    latest(folder)              the newest complete ``Checkpoint`` in a folder, or None
    checkpoint_at(path)         that one, or the one that the path is
    load(models, controller, checkpoint)    into models that are initialised, in whatever layout they have

``iteration`` counts the iterations that are through. Saved are the master weights and optimizer states of every role
that is trained, random states of every rank, counters of optimizer steps and updates, KL coefficient and cost
multiplier, what was generated ahead of training, and what identifies the run. There is no scheduler: learning rates
are constant. Roles that are not trained come from the weights that the run section names. Files and the way they
appear: ``checkpoint_files``; shards: ``checkpoint_shards``; a rank's side: ``rank_checkpoint``.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from executor.actor_group import ActorGroup
from executor.checkpoint_files import Checkpoint, checkpoints, read_checkpoint
from executor.checkpoint_generated import read_generated
from profiles.errors import FileFormatError, InputError
from simulator.dataflow import CONTROLLER

if TYPE_CHECKING:
    from executor.controller import Controller
    from executor.models import Models
    from executor.worker_group import WorkerGroup

GENERATOR = "-generation"
"""After a role's name: its ranks on a generation pool of their own."""


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
    ahead = read_generated(controller, checkpoint) if actor.ahead == manifest.ahead else {}
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
